// The part of DLPack that a consumer of CPU tensors needs: the structures of versions 0.x and 1.x and their checks.
//
// After dlpack.h of github.com/dmlc/dlpack (Apache-2.0), whose layout is frozen per major version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hpcckpt::dlpack {

struct Device {
    std::int32_t type;
    std::int32_t id;
};

struct DataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    std::int32_t ndim;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  // in elements; null means C-contiguous
    std::uint64_t byte_offset;
};

struct Managed {
    Tensor tensor;
    void* manager_ctx;
    void (*deleter)(Managed*);
};

struct ManagedVersioned {
    std::uint32_t major;
    std::uint32_t minor;
    void* manager_ctx;
    void (*deleter)(ManagedVersioned*);
    std::uint64_t flags;
    Tensor tensor;
};

static_assert(sizeof(void*) != 8 || (offsetof(Tensor, ndim) == 16 && offsetof(Tensor, shape) == 24 &&
                                     sizeof(Tensor) == 48 && offsetof(ManagedVersioned, tensor) == 32));

constexpr std::uint32_t kMajorVersion = 1;
constexpr std::uint64_t kReadOnly = 1;  // bit of ManagedVersioned::flags

// NumPy's or ml_dtypes' name of a dtype, or empty if there is none.
std::string dtype_token(const DataType& dtype);

// Memory of plain CPU tensors and of pinned host memory can be read in place.
bool is_host_memory(const Device& device);

bool is_c_contiguous(const Tensor& tensor);

std::size_t count_bytes(const Tensor& tensor);

}  // namespace hpcckpt::dlpack
