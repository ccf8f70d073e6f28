// A tensor's memory from the pool, in place of TensorFlow's allocator.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pool.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/tensor.h"

namespace hpcckpt {
namespace lms {

class MappedBuffer : public tensorflow::TensorBuffer {
   public:
    // Null if there is no memory; else the caller owns a reference.
    static MappedBuffer* make(std::size_t nbytes) {
        const Pages pages = Pool::one().take(nbytes);
        return pages.data == nullptr ? nullptr : new MappedBuffer(pages, nbytes);
    }
    ~MappedBuffer() override { Pool::one().give(pages_); }

    std::size_t size() const override { return nbytes_; }
    tensorflow::TensorBuffer* root_buffer() override { return this; }
    void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
        description->set_requested_bytes(static_cast<std::int64_t>(nbytes_));
        description->set_allocator_name("hpcckpt.lms");
    }

   private:
    MappedBuffer(const Pages& pages, std::size_t nbytes) : TensorBuffer(pages.data), pages_(pages), nbytes_(nbytes) {}

    const Pages pages_;
    const std::size_t nbytes_;
};

}  // namespace lms
}  // namespace hpcckpt
