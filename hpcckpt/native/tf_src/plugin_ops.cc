// HpcckptPluginSave and HpcckptPluginLoad: they hand the tensors' own memory to a storage plugin.
//
// Each tensor of a call is a resource variable, or a value: `slots` says which, i for variables[i] and -1-i for
// values[i].  Values are what cannot be handed over as a variable: variables on accelerators, which TensorFlow copies
// to and from the host, and in HpcckptPluginLoadRefs the variables of TensorFlow 1.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "open_plugins.h"
#include "variables.h"

namespace hpcckpt {
namespace {

using tensorflow::DataType;
using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::Tensor;
using tensorflow::Var;

// -- tensors as plugins see them ------------------------------------------------------------------

struct Dtype {
    std::uint32_t number;
    const char* name;
};

// Types of TensorFlow that have a number in plugin.h.  The rest is refused: text, variants, quantized and 4-bit
// numbers.
Dtype dtype_of(DataType type) {
    switch (type) {
        case tensorflow::DT_BOOL:
            return {HPCCKPT_DTYPE_BOOL, "bool"};
        case tensorflow::DT_INT8:
            return {HPCCKPT_DTYPE_INT8, "int8"};
        case tensorflow::DT_INT16:
            return {HPCCKPT_DTYPE_INT16, "int16"};
        case tensorflow::DT_INT32:
            return {HPCCKPT_DTYPE_INT32, "int32"};
        case tensorflow::DT_INT64:
            return {HPCCKPT_DTYPE_INT64, "int64"};
        case tensorflow::DT_UINT8:
            return {HPCCKPT_DTYPE_UINT8, "uint8"};
        case tensorflow::DT_UINT16:
            return {HPCCKPT_DTYPE_UINT16, "uint16"};
        case tensorflow::DT_UINT32:
            return {HPCCKPT_DTYPE_UINT32, "uint32"};
        case tensorflow::DT_UINT64:
            return {HPCCKPT_DTYPE_UINT64, "uint64"};
        case tensorflow::DT_HALF:
            return {HPCCKPT_DTYPE_FLOAT16, "float16"};
        case tensorflow::DT_FLOAT:
            return {HPCCKPT_DTYPE_FLOAT32, "float32"};
        case tensorflow::DT_DOUBLE:
            return {HPCCKPT_DTYPE_FLOAT64, "float64"};
        case tensorflow::DT_COMPLEX64:
            return {HPCCKPT_DTYPE_COMPLEX64, "complex64"};
        case tensorflow::DT_COMPLEX128:
            return {HPCCKPT_DTYPE_COMPLEX128, "complex128"};
        case tensorflow::DT_BFLOAT16:
            return {HPCCKPT_DTYPE_BFLOAT16, "bfloat16"};
        case tensorflow::DT_FLOAT8_E4M3FN:
            return {HPCCKPT_DTYPE_FLOAT8_E4M3FN, "float8_e4m3fn"};
        case tensorflow::DT_FLOAT8_E5M2:
            return {HPCCKPT_DTYPE_FLOAT8_E5M2, "float8_e5m2"};
        default:
            return {HPCCKPT_DTYPE_OTHER, nullptr};
    }
}

// The tensors of one call.  Their memory belongs to the caller; this object owns the lists below.
class Entries {
   public:
    explicit Entries(std::size_t n) : tensors_(n), shapes_(n), pointers_(n) {}

    absl::Status set(std::size_t i, const std::string& name, const Tensor& tensor) {
        const Dtype dtype = dtype_of(tensor.dtype());
        if (dtype.name == nullptr) {
            return absl::InvalidArgumentError(absl::StrCat(name, ": ", tensorflow::DataTypeString(tensor.dtype()),
                                                           " cannot be handed to a plugin; convert it"));
        }
        std::vector<std::int64_t>& lists = shapes_[i];  // the shape, then as many zeros; never empty
        for (int axis = 0; axis < tensor.dims(); ++axis) lists.push_back(tensor.dim_size(axis));
        lists.resize(2 * lists.size() + 1, 0);
        hpcckpt_tensor& entry = tensors_[i];
        entry = {};
        entry.struct_size = sizeof entry;
        entry.dtype = dtype.number;
        entry.name = name.c_str();
        entry.dtype_name = dtype.name;
        entry.itemsize = static_cast<std::uint32_t>(tensorflow::DataTypeSize(tensor.dtype()));
        entry.ndim = static_cast<std::uint32_t>(tensor.dims());
        entry.kind = HPCCKPT_KIND_PER_RANK;
        entry.global_shape = entry.shape = lists.data();
        entry.offset = lists.data() + tensor.dims();
        entry.n_elements = static_cast<std::uint64_t>(tensor.NumElements());
        entry.data = const_cast<char*>(tensor.tensor_data().data());
        entry.nbytes = entry.n_elements * entry.itemsize;
        pointers_[i] = &entry;
        return absl::OkStatus();
    }

    hpcckpt_context context(std::int64_t rank, std::int64_t n_ranks) const {
        hpcckpt_context context = {};
        context.struct_size = sizeof context;
        context.directory = context.save_id = "";
        context.step = -1;
        context.rank = static_cast<std::uint32_t>(rank);
        context.n_ranks = static_cast<std::uint32_t>(n_ranks);
        context.n_tensors = pointers_.size();
        context.tensors = pointers_.data();
        return context;
    }

   private:
    std::vector<hpcckpt_tensor> tensors_;
    std::vector<std::vector<std::int64_t>> shapes_;
    std::vector<const hpcckpt_tensor*> pointers_;
};

// -- what the ops have in common --------------------------------------------------------------------

class PluginOp : public tensorflow::OpKernel {
   public:
    explicit PluginOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
        OP_REQUIRES_OK(ctx, ctx->GetAttr("plugin", &token_));
        OP_REQUIRES_OK(ctx, ctx->GetAttr("names", &names_));
        OP_REQUIRES_OK(ctx, ctx->GetAttr("slots", &slots_));
        OP_REQUIRES_OK(ctx, ctx->GetAttr("rank", &rank_));
        OP_REQUIRES_OK(ctx, ctx->GetAttr("n_ranks", &n_ranks_));
        OP_REQUIRES(ctx, names_.size() == slots_.size(),
                    absl::InvalidArgumentError("names and slots must be of one length"));
    }

   protected:
    // The variables of a call, found and on the host, in the order of the op's input.
    absl::Status find_variables(OpKernelContext* ctx, std::vector<VarRef>* found) const {
        OpInputList handles;
        if (const absl::Status status = ctx->input_list("variables", &handles); !status.ok()) return status;
        found->resize(handles.size());
        for (std::size_t i = 0; i < slots_.size(); ++i) {
            if (slots_[i] < 0) continue;
            if (slots_[i] >= handles.size()) return beyond();
            const ResourceHandle& handle = handles[slots_[i]].scalar<ResourceHandle>()();
            if (!is_on_host(handle)) {
                return absl::FailedPreconditionError(absl::StrCat(
                    names_[i], ": is on ", handle.device(), "; pass its value, which TensorFlow copies to the host"));
            }
            const absl::Status status = find_variable(ctx, handle, &(*found)[slots_[i]]);
            if (!status.ok()) return without_value(i);
        }
        return absl::OkStatus();
    }

    absl::Status call(OpenPlugin::Call which, const Entries& entries) const {
        const std::shared_ptr<OpenPlugin> plugin = find_plugin(token_);
        if (plugin == nullptr) {
            return absl::FailedPreconditionError(
                "this plugin is not open: the graph was made in another process, or the plugin was closed");
        }
        const std::string failure = plugin->call(which, entries.context(rank_, n_ranks_));
        return failure.empty() ? absl::OkStatus() : absl::InternalError(failure);
    }

    static std::vector<Var*> all_of(const std::vector<VarRef>& variables) {
        std::vector<Var*> all;
        for (const VarRef& variable : variables) {
            if (variable != nullptr) all.push_back(variable.get());
        }
        return all;
    }

    static absl::Status beyond() { return absl::InvalidArgumentError("a slot points beyond the inputs"); }

    absl::Status without_value(std::size_t i) const {
        return absl::FailedPreconditionError(absl::StrCat(names_[i], ": has no value yet; initialize it"));
    }

    std::vector<std::string> names_;
    std::vector<std::int64_t> slots_;

   private:
    std::int64_t token_ = 0, rank_ = 0, n_ranks_ = 1;
};

// -- save -------------------------------------------------------------------------------------------

class SaveOp : public PluginOp {
   public:
    using PluginOp::PluginOp;

    void Compute(OpKernelContext* ctx) override {
        std::vector<VarRef> variables;
        OpInputList values;
        OP_REQUIRES_OK(ctx, find_variables(ctx, &variables));
        OP_REQUIRES_OK(ctx, ctx->input_list("values", &values));
        // All are locked while references to their buffers are taken: a variable's mode changes under its lock only.
        VariableLocks locks(all_of(variables), VariableLocks::Mode::kShared);
        std::vector<Tensor> held(names_.size());
        Entries entries(names_.size());
        for (std::size_t i = 0; i < names_.size(); ++i) {
            const std::int64_t slot = slots_[i];
            if (slot < 0) {
                OP_REQUIRES(ctx, -1 - slot < values.size(), beyond());
                held[i] = values[-1 - slot];
            } else {
                Var* variable = variables[slot].get();
                held[i] = *variable->tensor();
                OP_REQUIRES(ctx, variable->is_initialized || held[i].NumElements() > 0, without_value(i));
            }
            OP_REQUIRES_OK(ctx, entries.set(i, names_[i], held[i]));
        }
        // Those that are updated in place stay locked until the plugin is done; of the others the reference is enough,
        // for an update that meets it takes fresh memory, and so does a change of the mode.
        locks.release_unless([](Var* variable) { return variable->copy_on_read_mode.load(); });
        OP_REQUIRES_OK(ctx, call(OpenPlugin::Call::kSave, entries));
    }
};

REGISTER_OP("HpcckptPluginSave")
    .Input("variables: N * resource")
    .Input("values: T")
    .Attr("N: int >= 0")
    .Attr("T: list(type) >= 0")
    .Attr("plugin: int")
    .Attr("names: list(string)")
    .Attr("slots: list(int)")
    .Attr("rank: int")
    .Attr("n_ranks: int")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); });
REGISTER_KERNEL_BUILDER(Name("HpcckptPluginSave").Device(tensorflow::DEVICE_CPU), SaveOp);

// -- load -------------------------------------------------------------------------------------------

// Where the plugin writes for one variable: into the variable's buffer if there is no other reference to it, else into
// a new one that replaces it afterwards.
class Target {
   public:
    absl::Status prepare(OpKernelContext* ctx, Tensor* own) {
        own_ = own;
        is_in_place_ = own->RefCountIsOne() || own->NumElements() == 0;
        return is_in_place_ ? absl::OkStatus() : ctx->allocate_temp(own->dtype(), own->shape(), &fresh_);
    }
    const Tensor& memory() const { return is_in_place_ ? *own_ : fresh_; }
    void finish() {
        if (own_ != nullptr && !is_in_place_) *own_ = fresh_;
    }

   private:
    Tensor* own_ = nullptr;
    Tensor fresh_;
    bool is_in_place_ = false;
};

class LoadOp : public PluginOp {
   public:
    using PluginOp::PluginOp;

    void Compute(OpKernelContext* ctx) override {
        std::vector<VarRef> variables;
        OP_REQUIRES_OK(ctx, find_variables(ctx, &variables));
        const VariableLocks locks(all_of(variables), VariableLocks::Mode::kExclusive);
        std::vector<Target> targets(variables.size());
        std::vector<Tensor> others(names_.size());
        Entries entries(names_.size());
        for (std::size_t i = 0; i < names_.size(); ++i) {
            const std::int64_t slot = slots_[i];
            if (slot < 0) {
                OP_REQUIRES_OK(ctx, find_other(ctx, static_cast<int>(-1 - slot), i, &others[i]));
                OP_REQUIRES_OK(ctx, entries.set(i, names_[i], others[i]));
            } else {
                Var* variable = variables[slot].get();
                OP_REQUIRES(ctx, variable->is_initialized || variable->tensor()->NumElements() > 0, without_value(i));
                OP_REQUIRES_OK(ctx, targets[slot].prepare(ctx, variable->tensor()));
                OP_REQUIRES_OK(ctx, entries.set(i, names_[i], targets[slot].memory()));
            }
        }
        OP_REQUIRES_OK(ctx, call(OpenPlugin::Call::kLoad, entries));
        for (Target& target : targets) target.finish();
    }

   private:
    // Finds memory for what is no resource variable: the number of it, and of its name.
    virtual absl::Status find_other(OpKernelContext* ctx, int number, std::size_t i, Tensor* tensor) = 0;
};

class LoadValuesOp : public LoadOp {
   public:
    explicit LoadValuesOp(OpKernelConstruction* ctx) : LoadOp(ctx) {
        OP_REQUIRES_OK(ctx, ctx->GetAttr("shapes", &shapes_));
        OP_REQUIRES(ctx, static_cast<int>(shapes_.size()) == ctx->num_outputs(),
                    absl::InvalidArgumentError("every value needs a shape"));
    }

   private:
    absl::Status find_other(OpKernelContext* ctx, int number, std::size_t, Tensor* tensor) override {
        if (number >= ctx->num_outputs()) return beyond();
        Tensor* value = nullptr;
        const absl::Status status = ctx->allocate_output(number, shapes_[number], &value);
        if (status.ok()) *tensor = *value;
        return status;
    }

    std::vector<tensorflow::TensorShape> shapes_;
};

// Variables of TensorFlow 1 (use_resource=False) have no counted buffers: as all ops that assign to them do, this one
// writes where they are.
class LoadRefsOp : public LoadOp {
   public:
    using LoadOp::LoadOp;

   private:
    absl::Status find_other(OpKernelContext* ctx, int number, std::size_t i, Tensor* tensor) override {
        OpInputList refs;
        if (const absl::Status status = ctx->input_list("variables", &refs); !status.ok()) return status;
        const int index = refs.size() + number;
        if (index >= ctx->num_inputs()) return beyond();
        *tensor = ctx->mutable_input(index, false);
        return tensor->IsInitialized() ? absl::OkStatus() : without_value(i);
    }
};

REGISTER_OP("HpcckptPluginLoad")
    .Input("variables: N * resource")
    .Output("values: T")
    .Attr("N: int >= 0")
    .Attr("T: list(type) >= 0")
    .Attr("shapes: list(shape)")
    .Attr("plugin: int")
    .Attr("names: list(string)")
    .Attr("slots: list(int)")
    .Attr("rank: int")
    .Attr("n_ranks: int")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
        std::vector<tensorflow::TensorShape> shapes;
        if (const absl::Status status = c->GetAttr("shapes", &shapes); !status.ok()) return status;
        for (std::size_t i = 0; i < shapes.size() && static_cast<int>(i) < c->num_outputs(); ++i) {
            tensorflow::shape_inference::ShapeHandle shape;
            if (const absl::Status status = c->MakeShapeFromTensorShape(shapes[i], &shape); !status.ok()) return status;
            c->set_output(static_cast<int>(i), shape);
        }
        return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("HpcckptPluginLoad").Device(tensorflow::DEVICE_CPU), LoadValuesOp);

REGISTER_OP("HpcckptPluginLoadRefs")
    .Input("variables: N * resource")
    .Input("refs: Ref(T)")
    .Attr("N: int >= 0")
    .Attr("T: list(type) >= 0")
    .Attr("plugin: int")
    .Attr("names: list(string)")
    .Attr("slots: list(int)")
    .Attr("rank: int")
    .Attr("n_ranks: int")
    .SetIsStateful()
    .SetAllowsUninitializedInput()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); });
REGISTER_KERNEL_BUILDER(Name("HpcckptPluginLoadRefs").Device(tensorflow::DEVICE_CPU), LoadRefsOp);

}  // namespace
}  // namespace hpcckpt
