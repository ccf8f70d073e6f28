#include "tensor_buffer.h"

#include <atomic>

#include "dlpack.h"

namespace nb = nanobind;

namespace hpcckpt {
namespace {

std::atomic<std::size_t> n_claims{0};

struct Received {
    const dlpack::Tensor* tensor;
    bool is_readonly;
};

// Reads the capsule without consuming it: it stays the owner, and frees the tensor when the last claim lets go.
Received open_capsule(nb::handle capsule) {
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
        const auto* managed =
            static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
        if (managed->major != dlpack::kMajorVersion) {
            throw nb::buffer_error(("DLPack version " + std::to_string(managed->major) + " is not understood").c_str());
        }
        return {&managed->tensor, (managed->flags & dlpack::kReadOnly) != 0};
    }
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
        const auto* managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
        return {&managed->tensor, false};
    }
    throw nb::value_error("not an unconsumed DLPack capsule");
}

void check_tensor(const dlpack::Tensor& tensor) {
    if (!dlpack::is_host_memory(tensor.device)) {
        const std::string type = std::to_string(tensor.device.type);
        throw nb::buffer_error(("tensor is on DLPack device type " + type + ", not in host memory").c_str());
    }
    if (dlpack::dtype_token(tensor.dtype).empty()) {
        const std::string code = std::to_string(tensor.dtype.code) + ", " + std::to_string(tensor.dtype.bits);
        throw nb::type_error(("DLPack dtype (" + code + ") has no dtype token").c_str());
    }
    if (!dlpack::is_c_contiguous(tensor)) throw nb::buffer_error("tensor is not C-contiguous: make it so before");
}

}  // namespace

Claim::Claim(ByteView bytes) : bytes_(std::make_unique<ByteView>(std::move(bytes))) { ++n_claims; }
Claim::Claim(nb::object exporter) : exporter_(std::move(exporter)) { ++n_claims; }
Claim::~Claim() { --n_claims; }
std::size_t Claim::count() { return n_claims; }

TensorBuffer::TensorBuffer(nb::handle object, std::string dtype, std::vector<std::int64_t> shape)
    : dtype_(std::move(dtype)), shape_(std::move(shape)) {
    ByteView bytes(object);
    data_ = bytes.data();
    nbytes_ = bytes.nbytes();
    is_readonly_ = bytes.is_readonly();
    claim_ = std::make_shared<Claim>(std::move(bytes));
}

TensorBuffer TensorBuffer::from_dlpack(nb::object capsule) {
    const Received received = open_capsule(capsule);
    const dlpack::Tensor& tensor = *received.tensor;
    check_tensor(tensor);
    TensorBuffer buffer;
    buffer.nbytes_ = dlpack::count_bytes(tensor);
    buffer.data_ = static_cast<std::uint8_t*>(tensor.data);
    if (buffer.data_ != nullptr) buffer.data_ += tensor.byte_offset;
    buffer.dtype_ = dlpack::dtype_token(tensor.dtype);
    buffer.shape_.assign(tensor.shape, tensor.shape + tensor.ndim);
    buffer.is_readonly_ = received.is_readonly;
    buffer.claim_ = std::make_shared<Claim>(std::move(capsule));
    return buffer;
}

std::uint8_t* TensorBuffer::data() const {
    require_claim();
    return data_;
}

std::size_t TensorBuffer::nbytes() const {
    require_claim();
    return nbytes_;
}

const std::shared_ptr<Claim>& TensorBuffer::claim() const {
    require_claim();
    return claim_;
}

void TensorBuffer::require_claim() const {
    if (is_released()) throw nb::value_error("this tensor buffer was released");
}

}  // namespace hpcckpt
