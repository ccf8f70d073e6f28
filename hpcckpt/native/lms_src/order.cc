#include "order.h"

#include <vector>

namespace hpcckpt {
namespace lms {
namespace {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

enum class Mark : char { kNew, kOpen, kDone };

struct Visit {
    const Node* node;
    std::vector<const Node*> left;  // successors not yet visited
};

Visit visit(const Node* node) {
    Visit made{node, {}};
    if (node->IsNextIteration()) return made;
    for (const Edge* edge : node->out_edges()) made.left.push_back(edge->dst());
    return made;
}

std::string circle_text(const std::vector<Visit>& path, const Node* again) {
    std::string text;
    bool is_on_circle = false;
    for (const Visit& each : path) {
        is_on_circle = is_on_circle || each.node == again;
        if (is_on_circle) text += each.node->name() + " -> ";
    }
    return text + again->name();
}

std::string find_cycle_from(const Node* start, std::vector<Mark>* marks) {
    std::vector<Visit> path{visit(start)};
    (*marks)[start->id()] = Mark::kOpen;
    while (!path.empty()) {
        if (path.back().left.empty()) {
            (*marks)[path.back().node->id()] = Mark::kDone;
            path.pop_back();
            continue;
        }
        const Node* next = path.back().left.back();
        path.back().left.pop_back();
        Mark& mark = (*marks)[next->id()];
        if (mark == Mark::kOpen) return circle_text(path, next);
        if (mark == Mark::kDone) continue;
        mark = Mark::kOpen;
        path.push_back(visit(next));
    }
    return "";
}

// A loop that begins also ends: consumers of its outputs run as often as its inputs.
bool is_of_loop(const Node& switch_node) {
    const Node* condition = nullptr;
    return switch_node.input_node(1, &condition).ok() && condition->type_string() == "LoopCond";
}

bool is_end_of_condition(const Node& node) {
    if (!node.IsMerge()) return false;
    for (const Edge* edge : node.in_edges()) {
        if (!edge->IsControlEdge() && edge->src()->IsNextIteration()) return false;
    }
    return true;
}

}  // namespace

std::string find_cycle(const Graph& graph) {
    std::vector<Mark> marks(graph.num_node_ids(), Mark::kNew);
    for (const Node* node : graph.op_nodes()) {
        if (marks[node->id()] != Mark::kNew) continue;
        const std::string cycle = find_cycle_from(node, &marks);
        if (!cycle.empty()) return cycle;
    }
    return "";
}

std::unordered_set<int> find_conditional(const Graph& graph) {
    std::unordered_set<int> found;
    std::vector<const Node*> open;
    for (const Node* node : graph.op_nodes()) {
        if (node->IsSwitch() && !is_of_loop(*node)) open.push_back(node);
    }
    while (!open.empty()) {
        const Node* node = open.back();
        open.pop_back();
        for (const Edge* edge : node->out_edges()) {
            const Node* next = edge->dst();
            if (!next->IsOp() || is_end_of_condition(*next) || !found.insert(next->id()).second) continue;
            open.push_back(next);
        }
    }
    return found;
}

}  // namespace lms
}  // namespace hpcckpt
