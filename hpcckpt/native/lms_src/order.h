// What a graph's edges imply: cycles, and nodes that run only under a condition.
#pragma once

#include <string>
#include <unordered_set>

#include "tensorflow/core/graph/graph.h"

namespace hpcckpt {
namespace lms {

// "a -> b -> a", or nothing.  The back edges of while loops are none.
std::string find_cycle(const tensorflow::Graph& graph);

// The numbers of the nodes that run only if a condition holds; a while loop is no condition.
std::unordered_set<int> find_conditional(const tensorflow::Graph& graph);

}  // namespace lms
}  // namespace hpcckpt
