// A zero-copy view of a tensor's memory, and the claim that keeps that memory alive.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "byte_view.h"

namespace hpcckpt {

// Whoever shares a claim may read the memory; the last one to let go gives it back to its exporter.
// Made and destroyed with the GIL.
class Claim {
   public:
    explicit Claim(ByteView bytes);             // the buffer protocol
    explicit Claim(nanobind::object exporter);  // a DLPack capsule: its own destructor frees an unconsumed tensor
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

    // Number of claims in this process: tests assert lifetimes with it.
    static std::size_t count();

   private:
    std::unique_ptr<ByteView> bytes_;
    nanobind::object exporter_;
};

class TensorBuffer {
   public:
    // `object` exports bytes; dtype and shape are taken on trust.
    TensorBuffer(nanobind::handle object, std::string dtype, std::vector<std::int64_t> shape);

    // Raises BufferError if the tensor is not in host memory or not C-contiguous, TypeError if the dtype has no name
    // here, ValueError if the capsule is not a live DLPack one.
    static TensorBuffer from_dlpack(nanobind::object capsule);

    // These raise ValueError once released.
    std::uint8_t* data() const;
    std::size_t nbytes() const;
    const std::shared_ptr<Claim>& claim() const;

    const std::string& dtype() const { return dtype_; }
    const std::vector<std::int64_t>& shape() const { return shape_; }
    bool is_readonly() const { return is_readonly_; }
    bool is_released() const { return claim_ == nullptr; }

    // Gives up this view's claim; memory exported from it before lives on until those exports are gone too.
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
