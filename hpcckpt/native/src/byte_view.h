// The door for memory that comes from Python: whatever passes is contiguous, and stays alive and in place.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace hpcckpt {

enum class Access { kRead, kWrite };

// Holds a Py_buffer.  Made, moved, released and destroyed with the GIL; the memory may be used without it.
class ByteView {
   public:
    // Raises TypeError if `object` has no buffer protocol, BufferError if it is not contiguous, was released, has a
    // dtype that the buffer protocol cannot express, or is read-only where `access` is kWrite.
    explicit ByteView(nanobind::handle object, Access access = Access::kRead);
    ~ByteView();
    ByteView(ByteView&& other) noexcept;
    ByteView(const ByteView&) = delete;
    ByteView& operator=(const ByteView&) = delete;
    ByteView& operator=(ByteView&&) = delete;

    std::uint8_t* data() const { return static_cast<std::uint8_t*>(buffer_.buf); }
    std::size_t nbytes() const { return static_cast<std::size_t>(buffer_.len); }
    bool is_readonly() const { return buffer_.readonly != 0; }

    // Releases the memory early; needs the GIL.
    void release() { PyBuffer_Release(&buffer_); }

   private:
    Py_buffer buffer_{};
};

}  // namespace hpcckpt
