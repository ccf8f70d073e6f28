// HpcckptSwapOut and HpcckptSwapIn: a tensor leaves and comes back.  HpcckptRelease: its memory goes back to the
// kernel. HpcckptOthersReady: measures how long an op waits.
//
// They are stateful, so that graph optimizers do not merge, fold or drop them. The graph pass adds them after all
// optimizers, the applier for graphs of TensorFlow 1 before.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "clock.h"
#include "figures.h"
#include "swap_engine.h"
#include "swapped_tensor.h"
#include "pool.h"
#include "stalls.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hpcckpt {
namespace lms {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::shape_inference::InferenceContext;

class SwapOutOp : public AsyncOpKernel {
   public:
    explicit SwapOutOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
        OP_REQUIRES_OK(ctx, ctx->GetAttr("by_reference", &by_reference_));
    }

    void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
        Tensor* handle = nullptr;
        OP_REQUIRES_OK_ASYNC(ctx, ctx->allocate_output(0, {}, &handle), done);
        auto swapped = std::make_shared<SwappedTensor>(name(), ctx->input(0));
        handle->scalar<tensorflow::Variant>()() = Handle{swapped};
        SwapEngine::one().put(swapped, by_reference_, [ctx, done](const absl::Status& status) {
            if (!status.ok()) ctx->CtxFailure(status);
            done();
        });
    }

    bool IsExpensive() override { return false; }

   private:
    bool by_reference_ = false;
};

class SwapInOp : public AsyncOpKernel {
   public:
    explicit SwapInOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
        OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
        OP_REQUIRES_OK(ctx, ctx->GetAttr("consumers", &consumers_));
    }

    void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
        const Handle* handle = ctx->input(0).scalar<tensorflow::Variant>()().get<Handle>();
        OP_REQUIRES_ASYNC(ctx, handle != nullptr && handle->swapped != nullptr && handle->swapped->dtype == dtype_,
                          absl::InvalidArgumentError(name() + " is not given what a swap-out of its type made"), done);
        const auto swapped = handle->swapped;
        SwapEngine::one().get(swapped, [this, ctx, done, nbytes = static_cast<std::int64_t>(swapped->nbytes),
                                        began = now_ns()](const absl::Status& status, Tensor tensor, bool is_hot) {
            if (status.ok()) {
                // Nothing else may refer to it: consumers can run within `done`, and then write over it in place.
                ctx->set_output(0, std::move(tensor));
            } else {
                ctx->CtxFailure(status);
            }
            Figures::one().count_in(name(), nbytes, is_hot, now_ns() - began);
            swap_in_is_done(consumers_, ctx->step_id(), began);
            done();
        });
    }

    bool IsExpensive() override { return false; }

   private:
    tensorflow::DataType dtype_;
    std::vector<std::string> consumers_;
};

// Returns the pages of a tensor that no other op needs to the kernel, before an allocator keeps them.
class ReleaseOp : public OpKernel {
   public:
    explicit ReleaseOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}

    // What could be overwritten in place, by TensorFlow's own rule, can also be forgotten.
    void Compute(OpKernelContext* ctx) override {
        const Tensor& input = ctx->input(0);
        const auto own = ctx->forward_input(0, -1, input.dtype(), input.shape(), ctx->input_memory_type(0),
                                            tensorflow::AllocatorAttributes());
        if (own != nullptr) forget_pages(own->tensor_data().data(), own->tensor_data().size());
    }

    bool IsExpensive() override { return false; }
};

class OthersReadyOp : public OpKernel {
   public:
    explicit OthersReadyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
        OP_REQUIRES_OK(ctx, ctx->GetAttr("op", &op_));
        OP_REQUIRES_OK(ctx, ctx->GetAttr("n_swap_ins", &n_swap_ins_));
    }

    void Compute(OpKernelContext* ctx) override { others_are_ready(op_, n_swap_ins_, ctx->step_id()); }

    bool IsExpensive() override { return false; }

   private:
    std::string op_;
    std::int64_t n_swap_ins_ = 0;
};

REGISTER_OP("HpcckptSwapOut")
    .Input("tensor: T")
    .Output("handle: variant")
    .Attr("T: type")
    .Attr("by_reference: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
        c->set_output(0, c->Scalar());
        return absl::OkStatus();
    });

REGISTER_OP("HpcckptSwapIn")
    .Input("handle: variant")
    .Output("tensor: T")
    .Attr("T: type")
    .Attr("shape: shape = {unknown_rank: true}")
    .Attr("consumers: list(string) = []")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
        tensorflow::PartialTensorShape shape;
        tensorflow::shape_inference::ShapeHandle made;
        TF_RETURN_IF_ERROR(c->GetAttr("shape", &shape));
        TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shape, &made));
        c->set_output(0, made);
        return absl::OkStatus();
    });

REGISTER_OP("HpcckptRelease").Input("tensor: T").Attr("T: type").SetIsStateful().SetShapeFn([](InferenceContext*) {
    return absl::OkStatus();
});

REGISTER_OP("HpcckptOthersReady")
    .Attr("op: string")
    .Attr("n_swap_ins: int")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); });

REGISTER_KERNEL_BUILDER(Name("HpcckptSwapOut").Device(tensorflow::DEVICE_CPU), SwapOutOp);
REGISTER_KERNEL_BUILDER(Name("HpcckptSwapIn").Device(tensorflow::DEVICE_CPU), SwapInOp);
REGISTER_KERNEL_BUILDER(Name("HpcckptRelease").Device(tensorflow::DEVICE_CPU), ReleaseOp);
REGISTER_KERNEL_BUILDER(Name("HpcckptOthersReady").Device(tensorflow::DEVICE_CPU), OthersReadyOp);

}  // namespace
}  // namespace lms
}  // namespace hpcckpt
