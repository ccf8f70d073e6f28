// A zero-copy view of a tensor's memory, and the claim that keeps that memory alive.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "byte_view.h"

namespace hpcckpt {

// Memory that may be read by all who share the claim; returned to its exporter with the last of them.
// Made and destroyed with the GIL.
class Claim {
   public:
    Claim();                         // a DLPack tensor, once `own` was called
    explicit Claim(ByteView bytes);  // the buffer protocol
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

    // Calls `deleter` when this is destroyed.
    void own(std::function<void()> deleter) noexcept { deleter_ = std::move(deleter); }

    // Number of claims in this process: tests assert lifetimes with it.
    static std::size_t count();

   private:
    std::unique_ptr<ByteView> bytes_;
    std::function<void()> deleter_;
};

class TensorBuffer {
   public:
    // `object` exports bytes; dtype and shape are taken on trust.
    TensorBuffer(nanobind::handle object, std::string dtype, std::vector<std::int64_t> shape);

    // Consumes the capsule.  Raises BufferError if the tensor is not in host memory or not C-contiguous, TypeError if
    // the dtype has no name here, ValueError if the capsule is no DLPack one or was consumed; the capsule is then as it
    // was.
    static TensorBuffer from_dlpack(nanobind::object capsule);

    // These raise ValueError once released.
    std::uint8_t* data() const;
    std::size_t nbytes() const;
    const std::shared_ptr<Claim>& claim() const;

    const std::string& dtype() const { return dtype_; }
    const std::vector<std::int64_t>& shape() const { return shape_; }
    bool is_readonly() const { return is_readonly_; }
    bool is_released() const { return claim_ == nullptr; }

    // Gives up this view's claim; memory exported from it before stays until those exports are gone too.
    void release() { claim_.reset(); }

   private:
    TensorBuffer() = default;
    void require_claim() const;

    std::shared_ptr<Claim> claim_;
    std::uint8_t* data_ = nullptr;
    std::size_t nbytes_ = 0;
    std::string dtype_;
    std::vector<std::int64_t> shape_;
    bool is_readonly_ = false;
};

}  // namespace hpcckpt
