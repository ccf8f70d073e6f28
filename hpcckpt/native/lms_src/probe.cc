#include "probe.h"

#include <memory>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "clock.h"
#include "swap_engine.h"
#include "pool.h"
#include "tensorflow/core/framework/allocator.h"

namespace hpcckpt {
namespace lms {
namespace {

using tensorflow::Tensor;

// The result of several callbacks: the first failure, once all have been called.
class Answers {
   public:
    explicit Answers(int count) : left_(count) {}

    void say(const absl::Status& status) {
        {
            const std::lock_guard<std::mutex> guard(lock_);
            first_.Update(status);
        }
        left_.DecrementCount();
    }
    absl::Status wait() {
        left_.Wait();
        const std::lock_guard<std::mutex> guard(lock_);
        return first_;
    }

   private:
    absl::BlockingCounter left_;
    std::mutex lock_;
    absl::Status first_;
};

}  // namespace

absl::Status probe(std::size_t nbytes, int count, Speed* speed) {
    Tensor source(tensorflow::DT_UINT8, {static_cast<std::int64_t>(nbytes)});
    if (!source.IsInitialized() || source.tensor_data().size() != nbytes) {
        return absl::ResourceExhaustedError("no memory for the probe");
    }
    source.flat<std::uint8_t>().setConstant(1);
    std::vector<std::shared_ptr<SwappedTensor>> tensors;
    for (int i = 0; i < count; ++i) tensors.push_back(std::make_shared<SwappedTensor>("the probe", source));
    const auto left = std::make_shared<Answers>(count), back = std::make_shared<Answers>(count);
    std::int64_t began = now_ns();
    for (const auto& swapped : tensors) {
        SwapEngine::one().put(swapped, false, [left](const absl::Status& status) { left->say(status); });
    }
    const absl::Status written = left->wait();
    SwapEngine::one().wait_until_out();
    speed->write_ns = now_ns() - began;
    if (!written.ok()) return written;
    began = now_ns();
    for (const auto& swapped : tensors) {
        SwapEngine::one().get(swapped, [back](const absl::Status& status, const Tensor&, bool) { back->say(status); });
    }
    const absl::Status read = back->wait();
    speed->read_ns = now_ns() - began;
    forget_pages(source.tensor_data().data(), nbytes);  // an allocator may keep them, and a step is measured next
    return read;
}

bool allocator_keeps_freed() {
    tensorflow::Allocator* const allocator = tensorflow::cpu_allocator();
    if (allocator->Name() != "mklcpu") return false;
    allocator->DeallocateRaw(allocator->AllocateRaw(tensorflow::Allocator::kAllocatorAlignment, 1 << 20));
    const auto stats = allocator->GetStats();  // counts only memory from its pool
    return stats.has_value() && stats->num_allocs > 0;
}

}  // namespace lms
}  // namespace hpcckpt
