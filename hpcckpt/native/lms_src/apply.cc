#include "apply.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "describe.h"
#include "order.h"
#include "plan_text.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"

namespace hpcckpt {
namespace lms {
namespace {

using tensorflow::DataType;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeDef;

absl::Status bad(const std::string& text) { return absl::InvalidArgumentError(text); }

bool is_on_gpu(const Node& node) { return node.assigned_device_name().find("GPU") != std::string::npos; }

// The processor beside a device: "/job:localhost/replica:0/task:0/device:CPU:0".
std::string host_of(const std::string& device) {
    const std::size_t at = device.find("/device:");
    return at == std::string::npos ? device : device.substr(0, at) + "/device:CPU:0";
}

// Ops that return their input unchanged.
bool is_alias(const Node& node) {
    const std::string& type = node.type_string();
    return node.IsIdentity() || type == "IdentityN" || type == "StopGradient" || type == "PreventGradient" ||
           type == "CheckNumerics" || type == "Snapshot";
}

class Applier {
   public:
    Applier(const WrittenPlan& plan, Graph* graph) : plan_(plan), graph_(*graph) {}

    absl::Status run(bool with_stalls) {
        TF_RETURN_IF_ERROR(find_frames(graph_, &frames_));
        conditional_ = find_conditional(graph_);
        for (Node* node : graph_.op_nodes()) nodes_[node->name()] = {node, node};
        for (const PlannedCopy& copy : plan_.copies) TF_RETURN_IF_ERROR(add_copy(copy));
        for (const PlannedOut& out : plan_.outs) TF_RETURN_IF_ERROR(add_out(out));
        for (const PlannedIn& in : plan_.ins) TF_RETURN_IF_ERROR(add_in(in));
        for (const PlannedCopy& copy : plan_.copies) TF_RETURN_IF_ERROR(connect(copy));
        for (const PlannedIn& in : plan_.ins) TF_RETURN_IF_ERROR(reroute(in));
        for (const PlannedCopy& copy : plan_.copies) TF_RETURN_IF_ERROR(reroute(copy));
        for (const PlannedRelease& each : plan_.releases) TF_RETURN_IF_ERROR(add_release(each));
        for (const PlannedEdge& edge : plan_.edges) TF_RETURN_IF_ERROR(add_edge(edge));
        if (with_stalls) TF_RETURN_IF_ERROR(watch());
        const std::string cycle = find_cycle(graph_);
        return cycle.empty() ? absl::OkStatus() : bad("the plan makes a circle: " + cycle);
    }

   private:
    // A name of the plan may refer to two nodes in a row: on an accelerator, a copy is part of a swap.
    struct Span {
        Node *first, *last;
    };

    absl::Status find(const std::string& name, Span* span) {
        const auto found = nodes_.find(name);
        if (found == nodes_.end()) return bad("the plan names '" + name + "', and the graph has no such op");
        if (frames_.count(found->second.first->id()) > 0) {
            return bad("the plan names '" + name + "', which is inside a while loop: leave those out");
        }
        *span = found->second;
        return absl::OkStatus();
    }

    absl::Status find_tensor(const Place& place, Node** node) {
        Span span;
        TF_RETURN_IF_ERROR(find(place.op, &span));
        if (place.number >= span.last->num_outputs())
            return bad(absl::StrCat(place.op, " has no output ", place.number));
        *node = span.last;
        return absl::OkStatus();
    }

    absl::Status add_node(NodeDef def, const std::string& device, Node** made) {
        if (nodes_.count(def.name()) > 0) return bad("the plan adds '" + def.name() + "', and there is one already");
        def.set_device(device);
        absl::Status status;
        *made = graph_.AddNode(std::move(def), &status);
        if (status.ok()) (*made)->set_assigned_device_name(device);
        return status;
    }

    static NodeDef new_def(const std::string& name, const char* op, DataType type) {
        NodeDef def;
        def.set_name(name);
        def.set_op(op);
        tensorflow::AddNodeAttr("T", type, &def);
        return def;
    }

    absl::Status add_copy(const PlannedCopy& copy) {
        Span original;
        TF_RETURN_IF_ERROR(find(copy.op, &original));
        const Node& op = *original.first;
        if (op.op_def().is_stateful() || op.IsControlFlow()) {
            return bad(copy.op + " (" + op.type_string() +
                       ") has a state or directs others: it cannot be computed twice");
        }
        if (static_cast<int>(copy.inputs.size()) != op.num_inputs()) {
            return bad(absl::StrCat(copy.name, " has ", copy.inputs.size(), " inputs and ", copy.op, " has ",
                                    op.num_inputs()));
        }
        NodeDef def = op.def();
        def.set_name(copy.name);
        def.clear_input();
        def.mutable_attr()->erase("_class");
        tensorflow::AddNodeAttr("_hpcckpt_again", true, &def);  // equal nodes might be merged
        Node* made = nullptr;
        TF_RETURN_IF_ERROR(add_node(std::move(def), op.assigned_device_name(), &made));
        nodes_[copy.name] = {made, made};
        return absl::OkStatus();
    }

    absl::Status add_out(const PlannedOut& out) {
        Node* tensor = nullptr;
        TF_RETURN_IF_ERROR(find_tensor(out.tensor, &tensor));
        const DataType type = tensor->output_type(out.tensor.number);
        if (tensorflow::IsRefType(type) || !tensorflow::DataTypeCanUseMemcpy(type)) {
            return bad(absl::StrCat(out.tensor.op, ":", out.tensor.number, " is of ", tensorflow::DataTypeString(type),
                                    ", which cannot be swapped"));
        }
        const std::string& device = tensor->assigned_device_name();
        const bool is_far = is_on_gpu(*tensor);
        Node *copy = nullptr, *made = nullptr;
        if (is_far)
            TF_RETURN_IF_ERROR(add_node(new_def(out.name + "/to_host", "_CopyFromGpuToHost", type), device, &copy));
        NodeDef def = new_def(out.name, "HpcckptSwapOut", type);
        tensorflow::AddNodeAttr("by_reference", is_far, &def);
        TF_RETURN_IF_ERROR(add_node(std::move(def), is_far ? host_of(device) : device, &made));
        Node* first = is_far ? copy : made;
        graph_.AddEdge(tensor, out.tensor.number, first, 0);
        if (is_far) graph_.AddEdge(copy, 0, made, 0);
        nodes_[out.name] = {first, made};
        tensors_[out.name] = {tensor, out.tensor.number};
        return absl::OkStatus();
    }

    absl::Status add_release(const PlannedRelease& release) {
        Node *tensor = nullptr, *made = nullptr;
        TF_RETURN_IF_ERROR(find_tensor(release.tensor, &tensor));
        const DataType type = tensor->output_type(release.tensor.number);
        NodeDef def = new_def(release.name, "HpcckptRelease", type);
        TF_RETURN_IF_ERROR(add_node(std::move(def), tensor->assigned_device_name(), &made));
        graph_.AddEdge(tensor, release.tensor.number, made, 0);
        nodes_[release.name] = {made, made};
        return absl::OkStatus();
    }

    absl::Status add_in(const PlannedIn& in) {
        const auto left = tensors_.find(in.swap_out);
        if (left == tensors_.end())
            return bad(in.name + " brings back '" + in.swap_out + "', which the plan does not swap out");
        const auto [tensor, number] = left->second;
        const DataType type = tensor->output_type(number);
        const std::string& device = tensor->assigned_device_name();
        const bool is_far = is_on_gpu(*tensor);
        std::vector<std::string> consumers;
        for (const Place& each : in.consumers) {
            if (std::find(consumers.begin(), consumers.end(), each.op) == consumers.end()) consumers.push_back(each.op);
        }
        NodeDef def = new_def(in.name, "HpcckptSwapIn", type);
        tensorflow::AddNodeAttr("consumers", consumers, &def);
        Node *made = nullptr, *copy = nullptr;
        TF_RETURN_IF_ERROR(add_node(std::move(def), is_far ? host_of(device) : device, &made));
        if (is_far)
            TF_RETURN_IF_ERROR(add_node(new_def(in.name + "/to_device", "_CopyFromHostToGpu", type), device, &copy));
        graph_.AddEdge(nodes_[in.swap_out].last, 0, made, 0);
        if (is_far) graph_.AddEdge(made, 0, copy, 0);
        nodes_[in.name] = {made, is_far ? copy : made};
        return absl::OkStatus();
    }

    absl::Status connect(const PlannedCopy& copy) {
        for (std::size_t i = 0; i < copy.inputs.size(); ++i) {
            Node* from = nullptr;
            TF_RETURN_IF_ERROR(find_tensor(copy.inputs[i], &from));
            graph_.AddEdge(from, copy.inputs[i].number, nodes_[copy.name].first, static_cast<int>(i));
        }
        return absl::OkStatus();
    }

    // Lets an input take another tensor than `was`; its present input must be `was`, or return it unchanged.
    absl::Status reroute(const Place& input, const Node* was, int was_number, Node* now, int now_number) {
        Span span;
        TF_RETURN_IF_ERROR(find(input.op, &span));
        const Edge* edge = nullptr;
        const absl::Status found = span.first->input_edge(input.number, &edge);
        if (!found.ok()) return bad(absl::StrCat(input.op, " has no input ", input.number));
        if (edge->src() == now && edge->src_output() == now_number)
            return absl::OkStatus();  // a copy that names it itself
        if (!is_same(edge, was, was_number)) {
            return bad(absl::StrCat("input ", input.number, " of ", input.op, " is ", edge->src()->name(), ":",
                                    edge->src_output(), ", and the plan takes it for ", was->name(), ":", was_number));
        }
        graph_.RemoveEdge(edge);
        graph_.AddEdge(now, now_number, span.first, input.number);
        return absl::OkStatus();
    }

    static bool is_same(const Edge* edge, const Node* was, int was_number) {
        while (edge->src() != was || edge->src_output() != was_number) {
            if (!is_alias(*edge->src())) return false;
            const int number = edge->src()->type_string() == "IdentityN" ? edge->src_output() : 0;
            if (!edge->src()->input_edge(number, &edge).ok()) return false;
        }
        return true;
    }

    absl::Status reroute(const PlannedIn& in) {
        const auto [was, number] = tensors_[in.swap_out];
        for (const Place& each : in.consumers) {
            TF_RETURN_IF_ERROR(reroute(each, was, number, nodes_[in.name].last, 0));
        }
        return absl::OkStatus();
    }

    absl::Status reroute(const PlannedCopy& copy) {
        Span original;
        TF_RETURN_IF_ERROR(find(copy.op, &original));
        for (const PlannedCopy::Consumer& each : copy.consumers) {
            TF_RETURN_IF_ERROR(reroute(each.input, original.last, each.output, nodes_[copy.name].last, each.output));
        }
        return absl::OkStatus();
    }

    absl::Status add_edge(const PlannedEdge& edge) {
        Span first, then;
        TF_RETURN_IF_ERROR(find(edge.first, &first));
        TF_RETURN_IF_ERROR(find(edge.then, &then));
        if (conditional_.count(first.last->id()) > 0) {
            return bad("the plan lets '" + edge.then + "' wait for '" + edge.first + "', which does not always run");
        }
        graph_.AddControlEdge(first.last, then.first);
        return absl::OkStatus();
    }

    // For each consumer of swapped-in tensors, a node that waits for all its other inputs.
    absl::Status watch() {
        std::map<std::string, std::unordered_set<const Node*>> swap_ins;  // by consumer
        for (const PlannedIn& in : plan_.ins) {
            for (const Place& each : in.consumers) swap_ins[each.op].insert(nodes_[in.name].last);
        }
        for (const auto& [name, sources] : swap_ins) {
            std::vector<Node*> others;
            for (const Edge* edge : nodes_[name].first->in_edges()) {
                if (edge->src()->IsOp() && sources.count(edge->src()) == 0) others.push_back(edge->src());
            }
            if (!others.empty()) TF_RETURN_IF_ERROR(add_watch(name, sources.size(), others));
        }
        return absl::OkStatus();
    }

    absl::Status add_watch(const std::string& name, std::size_t n_swap_ins, const std::vector<Node*>& others) {
        NodeDef def;
        def.set_name("lms/others_ready_" + name);
        def.set_op("HpcckptOthersReady");
        tensorflow::AddNodeAttr("op", name, &def);
        tensorflow::AddNodeAttr("n_swap_ins", static_cast<std::int64_t>(n_swap_ins), &def);
        Node* made = nullptr;
        TF_RETURN_IF_ERROR(add_node(std::move(def), host_of(nodes_[name].first->assigned_device_name()), &made));
        for (Node* each : others) graph_.AddControlEdge(each, made);
        return absl::OkStatus();
    }

    const WrittenPlan& plan_;
    Graph& graph_;
    std::unordered_map<int, std::string> frames_;
    std::unordered_set<int> conditional_;
    std::unordered_map<std::string, Span> nodes_;
    std::unordered_map<std::string, std::pair<Node*, int>> tensors_;  // by the swap-out
};

}  // namespace

absl::Status apply(const std::string& plan, bool with_stalls, Graph* graph) {
    WrittenPlan read;
    TF_RETURN_IF_ERROR(read_plan(plan, &read));
    return Applier(read, graph).run(with_stalls);
}

}  // namespace lms
}  // namespace hpcckpt
