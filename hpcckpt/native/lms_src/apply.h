// Does to a graph what a plan says.
//
// A plan is text, one thing a line, with tabs between its words:
//
//     out   NAME  OP NUMBER                      a tensor that leaves
//     in    NAME  SWAP-OUT  {OP NUMBER}          what brings it back, for these inputs of these ops
//     copy  NAME  OP  N  {OP NUMBER}*N  {OUTPUT OP NUMBER}    an op once more, its inputs, and who takes which output
//     edge  FIRST  THEN                          a control edge
//
// Names may be of nodes that the plan itself adds, in any order.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/graph/graph.h"

namespace hpcckpt {
namespace lms {

// Refuses a plan that does not fit the graph, touches a while loop, or makes a cycle; the graph is then of no use.
// With `with_stalls`, nodes are added that see how long ops wait for what comes back.
absl::Status apply(const std::string& plan, bool with_stalls, tensorflow::Graph* graph);

}  // namespace lms
}  // namespace hpcckpt
