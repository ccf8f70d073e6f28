// Parser of plans as text: see apply.h.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace hpcckpt {
namespace lms {

struct Place {  // an output or an input of an op
    std::string op;
    int number = 0;
};

struct PlannedOut {
    std::string name;
    Place tensor;
};

struct PlannedIn {
    std::string name, swap_out;
    std::vector<Place> consumers;
};

struct PlannedCopy {
    struct Consumer {
        int output;
        Place input;
    };
    std::string name, op;
    std::vector<Place> inputs;
    std::vector<Consumer> consumers;
};

struct PlannedRelease {
    std::string name;
    Place tensor;
};

struct PlannedEdge {
    std::string first, then;
};

struct WrittenPlan {
    std::vector<PlannedOut> outs;
    std::vector<PlannedIn> ins;
    std::vector<PlannedCopy> copies;
    std::vector<PlannedRelease> releases;
    std::vector<PlannedEdge> edges;
};

absl::Status read_plan(const std::string& text, WrittenPlan* plan);

}  // namespace lms
}  // namespace hpcckpt
