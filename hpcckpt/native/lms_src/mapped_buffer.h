// Memory straight from the kernel, which goes straight back: what malloc frees often stays with the process.
//
// It begins at a page, so that a file may be read into it without a detour.  New pages must be filled with zeros first,
// which may take longer than reading into them: so a little of what is given back is kept for what comes next.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/tensor.h"

namespace hpcckpt {
namespace lms {

constexpr std::size_t kPage = 4096;

inline std::size_t whole_pages(std::size_t nbytes) { return (nbytes + kPage - 1) / kPage * kPage; }

struct Pages {
    void* data = nullptr;
    std::size_t nbytes = 0;
};

class Pool {
   public:
    static Pool& one();

    // Without data if there is no memory; may be a little more than asked for.
    Pages take(std::size_t nbytes);
    void give(const Pages& pages);

    // How much may be kept.
    void set_limit(std::size_t nbytes);

   private:
    void shrink();

    std::mutex lock_;
    std::multimap<std::size_t, void*> kept_;
    std::size_t total_ = 0, limit_ = 0;
};

class MappedBuffer : public tensorflow::TensorBuffer {
   public:
    // Null if there is no memory; else the caller owns a reference.
    static MappedBuffer* make(std::size_t nbytes);
    ~MappedBuffer() override { Pool::one().give(pages_); }

    std::size_t size() const override { return nbytes_; }
    tensorflow::TensorBuffer* root_buffer() override { return this; }
    void FillAllocationDescription(tensorflow::AllocationDescription* told) const override {
        told->set_requested_bytes(static_cast<std::int64_t>(nbytes_));
        told->set_allocator_name("hpcckpt.lms");
    }

   private:
    MappedBuffer(const Pages& pages, std::size_t nbytes) : TensorBuffer(pages.data), pages_(pages), nbytes_(nbytes) {}

    const Pages pages_;
    const std::size_t nbytes_;
};

}  // namespace lms
}  // namespace hpcckpt
