// HpcckptHold: one op that takes references to the buffers of many variables, of any types, and moves no bytes.
//
// An update of a variable while its buffer is referenced allocates new memory (copy on write).  Variables in
// copy-on-read mode are updated in place and must be copied: they are left to TensorFlow's own read, like those on
// accelerators.
#include <cstdint>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "hold.h"
#include "variables.h"

namespace hpcckpt {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::Tensor;

absl::Status hold_one(OpKernelContext* ctx, const ResourceHandle& handle, Slot* slot) {
    slot->state = Slot::State::kElsewhere;
    if (!is_on_host(handle)) return absl::OkStatus();
    VarRef variable;
    const absl::Status found = find_variable(ctx, handle, &variable);
    if (!found.ok()) return found;
    // The lock that updates take: a reference is seen by them, or what they did is seen here.
    const tensorflow::tf_shared_lock lock(*variable->mu());
    if (variable->copy_on_read_mode.load()) return absl::OkStatus();
    const Tensor* tensor = variable->tensor();
    if (!variable->is_initialized && tensor->NumElements() == 0) {
        slot->state = Slot::State::kEmpty;
    } else if (tensorflow::DataTypeCanUseMemcpy(tensor->dtype())) {
        slot->state = Slot::State::kHeld;
        slot->tensor = *tensor;
    }
    return absl::OkStatus();
}

class HoldOp : public tensorflow::OpKernel {
   public:
    using OpKernel::OpKernel;

    void Compute(OpKernelContext* ctx) override {
        tensorflow::OpInputList handles;
        OP_REQUIRES_OK(ctx, ctx->input_list("variables", &handles));
        Tensor* owner = nullptr;
        Tensor* address = nullptr;
        OP_REQUIRES_OK(ctx, ctx->allocate_output("owner", {}, &owner));
        OP_REQUIRES_OK(ctx, ctx->allocate_output("address", {}, &address));
        auto* held = new Held;
        owner->scalar<ResourceHandle>()() = ResourceHandle::MakeRefCountingHandle(held, ctx->device()->name());
        address->scalar<std::int64_t>()() = reinterpret_cast<std::intptr_t>(held);
        held->slots.resize(handles.size());
        for (int i = 0; i < handles.size(); ++i) {
            OP_REQUIRES_OK(ctx, hold_one(ctx, handles[i].scalar<ResourceHandle>()(), &held->slots[i]));
        }
    }

    bool IsExpensive() override { return false; }
};

REGISTER_OP("HpcckptHold")
    .Input("variables: N * resource")
    .Output("owner: resource")
    .Output("address: int64")
    .Attr("N: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
        c->set_output(0, c->Scalar());
        c->set_output(1, c->Scalar());
        return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("HpcckptHold").Device(tensorflow::DEVICE_CPU), HoldOp);

}  // namespace
}  // namespace hpcckpt
