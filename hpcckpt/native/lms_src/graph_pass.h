// The pass over the graphs of functions and sessions, after everything else that optimizes them.
#pragma once

#include <cstdint>
#include <string>

namespace hpcckpt {
namespace lms {

struct Aim {
    std::string match;           // a regular expression that is searched in the function's name
    bool with_sessions = false;  // graphs of sessions, which have no name
    bool with_stalls = true;
    std::int64_t batch_size = 0;
};

// Returns what is wrong with the expression, or nothing.  Until this is called the pass does nothing, at no cost.
std::string arm(const Aim& aim);
void disarm();

}  // namespace lms
}  // namespace hpcckpt
