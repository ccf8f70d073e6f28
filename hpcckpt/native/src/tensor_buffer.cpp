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
    const char* used_name;
    std::function<void()> deleter;
};

template <typename Managed>
Managed* managed_in(nb::handle capsule, const char* name) {
    return static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
}

template <typename Managed>
std::function<void()> deleter_of(Managed* managed) {
    return [managed] {
        if (managed->deleter != nullptr) managed->deleter(managed);
    };
}

// Reads the capsule without consuming it.
Received open_capsule(nb::handle capsule) {
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
        auto* managed = managed_in<dlpack::ManagedVersioned>(capsule, "dltensor_versioned");
        if (managed->major != dlpack::kMajorVersion) {
            throw nb::buffer_error(("DLPack version " + std::to_string(managed->major) + " is not understood").c_str());
        }
        const bool is_readonly = (managed->flags & dlpack::kReadOnly) != 0;
        return {&managed->tensor, is_readonly, "used_dltensor_versioned", deleter_of(managed)};
    }
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
        auto* managed = managed_in<dlpack::Managed>(capsule, "dltensor");
        return {&managed->tensor, false, "used_dltensor", deleter_of(managed)};
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
Claim::Claim() { ++n_claims; }

Claim::~Claim() {
    --n_claims;
    if (!deleter_) return;
    const nb::error_scope pending;  // it may run Python code, and this may be the way out of an error
    deleter_();
}

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
    Received received = open_capsule(capsule);
    const dlpack::Tensor& tensor = *received.tensor;
    check_tensor(tensor);
    TensorBuffer buffer;
    buffer.nbytes_ = dlpack::count_bytes(tensor);
    buffer.data_ = static_cast<std::uint8_t*>(tensor.data);
    if (buffer.data_ != nullptr) buffer.data_ += tensor.byte_offset;
    buffer.dtype_ = dlpack::dtype_token(tensor.dtype);
    buffer.shape_.assign(tensor.shape, tensor.shape + tensor.ndim);
    buffer.is_readonly_ = received.is_readonly;
    buffer.claim_ = std::make_shared<Claim>();
    if (PyCapsule_SetName(capsule.ptr(), received.used_name) != 0) throw nb::python_error();
    buffer.claim_->own(std::move(received.deleter));  // by its new name the capsule's destructor knows not to delete
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
