// A graph of TensorFlow in the form that hpcckpt.lms.graph.graph reads.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "tensorflow/core/graph/graph.h"

namespace hpcckpt {
namespace lms {

// Which while loop each node is in, by its number; those outside all are left out.
absl::Status find_frames(const tensorflow::Graph& graph, std::unordered_map<int, std::string>* frames);

// JSON.  Where a first dimension is unknown at the graph's inputs, `batch_size` is taken, unless it is 0.
absl::Status describe(const tensorflow::Graph& graph, std::int64_t batch_size, std::string* json);

}  // namespace lms
}  // namespace hpcckpt
