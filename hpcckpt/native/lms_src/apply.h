// Applies a plan to a graph.
//
// A plan is text: one entry per line, fields separated by tabs:
//
//     out   NAME  OP NUMBER                      a tensor that is swapped out
//     in    NAME  SWAP-OUT  {OP NUMBER}          the swap-in for these inputs of these ops
//     copy  NAME  OP  N  {OP NUMBER}*N  {OUTPUT OP NUMBER}    a recomputed op, its inputs, and its consumers
//     edge  FIRST  THEN                          a control edge
//
// Names may be of nodes that the plan itself adds, in any order.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/graph/graph.h"

namespace hpcckpt {
namespace lms {

// Fails if the plan does not match the graph, changes a while loop, or makes a cycle; the graph is unusable then.
// With `with_stalls`, nodes are added that measure how long ops wait for their swap-ins.
absl::Status apply(const std::string& plan, bool with_stalls, tensorflow::Graph* graph);

}  // namespace lms
}  // namespace hpcckpt
