#include "dlpack.h"

namespace hpcckpt::dlpack {
namespace {

struct NamedType {
    std::uint8_t code;
    std::uint8_t bits;
    const char* token;
};

constexpr NamedType kTypes[] = {
    {0, 8, "int8"},
    {0, 16, "int16"},
    {0, 32, "int32"},
    {0, 64, "int64"},
    {1, 8, "uint8"},
    {1, 16, "uint16"},
    {1, 32, "uint32"},
    {1, 64, "uint64"},
    {2, 16, "float16"},
    {2, 32, "float32"},
    {2, 64, "float64"},
    {4, 16, "bfloat16"},
    {5, 64, "complex64"},
    {5, 128, "complex128"},
    {6, 8, "bool"},
    {7, 8, "float8_e3m4"},
    {8, 8, "float8_e4m3"},
    {9, 8, "float8_e4m3b11fnuz"},
    {10, 8, "float8_e4m3fn"},
    {11, 8, "float8_e4m3fnuz"},
    {12, 8, "float8_e5m2"},
    {13, 8, "float8_e5m2fnuz"},
    {14, 8, "float8_e8m0fnu"},
};

constexpr std::int32_t kCpu = 1;
constexpr std::int32_t kCudaHost = 3;
constexpr std::int32_t kRocmHost = 11;

}  // namespace

std::string dtype_token(const DataType& dtype) {
    for (const NamedType& type : kTypes) {
        if (type.code == dtype.code && type.bits == dtype.bits && dtype.lanes == 1) return type.token;
    }
    return "";
}

bool is_host_memory(const Device& device) {
    return device.type == kCpu || device.type == kCudaHost || device.type == kRocmHost;
}

bool is_c_contiguous(const Tensor& tensor) {
    if (tensor.strides == nullptr || count_bytes(tensor) == 0) return true;
    std::int64_t dense = 1;
    for (std::int32_t axis = tensor.ndim - 1; axis >= 0; --axis) {
        // The stride of an axis of length one is never used, and frameworks leave anything there.
        if (tensor.shape[axis] != 1 && tensor.strides[axis] != dense) return false;
        dense *= tensor.shape[axis];
    }
    return true;
}

std::size_t count_bytes(const Tensor& tensor) {
    std::size_t nbytes = tensor.dtype.bits / 8;
    for (std::int32_t axis = 0; axis < tensor.ndim; ++axis) nbytes *= static_cast<std::size_t>(tensor.shape[axis]);
    return nbytes;
}

}  // namespace hpcckpt::dlpack
