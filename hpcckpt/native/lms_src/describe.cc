#include "describe.h"

#include <vector>

#include "figures.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/grappler/costs/graph_properties.h"
#include "tensorflow/core/grappler/grappler_item.h"

namespace hpcckpt {
namespace lms {
namespace {

using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::TensorShapeProto;

void set_batch(TensorShapeProto* shape, std::int64_t batch_size) {
    if (!shape->unknown_rank() && shape->dim_size() > 0 && shape->dim(0).size() < 0) {
        shape->mutable_dim(0)->set_size(batch_size);
    }
}

// Inputs of a graph have their shapes in attributes of these names.
void set_batches(tensorflow::GraphDef* graph, std::int64_t batch_size) {
    for (tensorflow::NodeDef& node : *graph->mutable_node()) {
        for (const char* key : {"output_shapes", "_output_shapes"}) {
            const auto found = node.mutable_attr()->find(key);
            if (found == node.mutable_attr()->end() || !found->second.has_list()) continue;
            for (TensorShapeProto& shape : *found->second.mutable_list()->mutable_shape())
                set_batch(&shape, batch_size);
        }
        const auto shape = node.mutable_attr()->find("shape");
        if (node.op() == "Placeholder" && shape != node.mutable_attr()->end()) {
            set_batch(shape->second.mutable_shape(), batch_size);
        }
    }
}

std::string shape_text(const TensorShapeProto& shape) {
    if (shape.unknown_rank()) return "null";
    std::string text;
    for (const auto& dim : shape.dim()) {
        text += (text.empty() ? "" : ",") + (dim.size() < 0 ? std::string("null") : std::to_string(dim.size()));
    }
    return "[" + text + "]";
}

std::string outputs_text(const Node& node, const tensorflow::grappler::GraphProperties& properties) {
    const auto& known = properties.GetOutputProperties(node.name());
    std::string text;
    for (int i = 0; i < node.num_outputs(); ++i) {
        const bool is_known = static_cast<std::size_t>(i) < known.size();
        text += (i > 0 ? ",[" : "[") + quoted(tensorflow::DataTypeString(node.output_type(i))) + "," +
                (is_known ? shape_text(known[i].shape()) : "null") + "]";
    }
    return "[" + text + "]";
}

std::string inputs_text(const Node& node) {
    std::vector<std::string> inputs(node.num_inputs());
    for (const tensorflow::Edge* edge : node.in_edges()) {
        if (!edge->src()->IsOp()) continue;
        if (edge->IsControlEdge()) {
            inputs.push_back("^" + edge->src()->name());
        } else {
            inputs[edge->dst_input()] = edge->src()->name() + ":" + std::to_string(edge->src_output());
        }
    }
    std::string text;
    for (const std::string& input : inputs) text += (text.empty() ? "" : ",") + quoted(input);
    return "[" + text + "]";
}

// The types of ops that grappler has fused into a node.
std::vector<std::string> fused_types(const Node& node) {
    std::vector<std::string> types, more;
    std::string activation;
    int n_side_inputs = 0;
    if (!tensorflow::TryGetNodeAttr(node.attrs(), "fused_ops", &types)) types.clear();
    if (tensorflow::TryGetNodeAttr(node.attrs(), "op_names", &more))
        types.insert(types.end(), more.begin(), more.end());
    if (tensorflow::TryGetNodeAttr(node.attrs(), "activation_mode", &activation) && activation != "Identity") {
        types.push_back(activation);
    }
    if (tensorflow::TryGetNodeAttr(node.attrs(), "num_side_inputs", &n_side_inputs) && n_side_inputs > 0) {
        types.push_back("AddV2");
    }
    return types;
}

std::string node_text(const Node& node, const std::string& frame, const std::string& outputs) {
    const std::string& device = node.has_assigned_device_name() ? node.assigned_device_name() : node.requested_device();
    std::string text = "{\"name\":" + quoted(node.name()) + ",\"type\":" + quoted(node.type_string()) +
                       ",\"device\":" + quoted(device) + ",\"in\":" + inputs_text(node) + ",\"out\":" + outputs;
    if (!frame.empty()) text += ",\"frame\":" + quoted(frame);
    if (node.op_def().is_stateful()) text += ",\"stateful\":true";
    bool is_training = false;
    if (tensorflow::TryGetNodeAttr(node.attrs(), "is_training", &is_training)) {
        text += is_training ? ",\"training\":true" : ",\"training\":false";
    }
    std::string fused;
    for (const std::string& type : fused_types(node)) fused += (fused.empty() ? "" : ",") + quoted(type);
    if (!fused.empty()) text += ",\"fused\":[" + fused + "]";
    return text + "}";
}

}  // namespace

absl::Status find_frames(const Graph& graph, std::unordered_map<int, std::string>* frames) {
    std::vector<tensorflow::ControlFlowInfo> infos;
    const absl::Status status = tensorflow::BuildControlFlowInfo(&graph, &infos);
    if (!status.ok()) return status;
    for (const Node* node : graph.op_nodes()) {
        if (!infos[node->id()].frame_name.empty()) (*frames)[node->id()] = infos[node->id()].frame_name;
    }
    return absl::OkStatus();
}

absl::Status describe(const Graph& graph, std::int64_t batch_size, std::string* json) {
    std::unordered_map<int, std::string> frames;
    const absl::Status status = find_frames(graph, &frames);
    if (!status.ok()) return status;
    tensorflow::grappler::GrapplerItem item;
    graph.ToGraphDef(&item.graph);
    if (batch_size > 0) set_batches(&item.graph, batch_size);
    tensorflow::grappler::GraphProperties properties(item);
    // Shapes that are not found are described as unknown; planners handle that.
    properties.InferStatically(true, false, false, false).IgnoreError();
    std::string text;
    for (const Node* node : graph.op_nodes()) {
        const auto frame = frames.find(node->id());
        text += (text.empty() ? "" : ",\n") +
                node_text(*node, frame == frames.end() ? "" : frame->second, outputs_text(*node, properties));
    }
    *json = "{\"ops\":[" + text + "]}";
    return absl::OkStatus();
}

}  // namespace lms
}  // namespace hpcckpt
