// TMCI's C++ interface: a plugin that was written for TMCI compiles with this header unchanged.
//
//     #include <tmci/backend.hpp>
//
//     class MyBackend : public tmci::Backend {
//       public:
//         MyBackend(const char* config);
//         int Save(const std::vector<std::reference_wrapper<const tensorflow::Tensor>>& tensors) override;
//         int Load(const std::vector<std::reference_wrapper<const tensorflow::Tensor>>& tensors) override;
//     };
//
//     TMCI_REGISTER_BACKEND(mine, MyBackend);
//
// The plugin is linked to TensorFlow, hpcckpt is not: they meet in the C functions of <hpcckpt/plugin.h>.  Each tensor
// is wrapped again there, around the same memory.  They are in the order of the model's weights and then of the
// optimizer's variables; their names are lost, so a plugin of this kind can be used by hpcckpt.tmci, not by
// Checkpointer.
#ifndef HPCCKPT_TMCI_BACKEND_HPP
#define HPCCKPT_TMCI_BACKEND_HPP

#include <hpcckpt/backend.hpp>

#if defined(__has_include)
#if !__has_include("tensorflow/core/framework/tensor.h")
#error \
    "TensorFlow's headers are not on the include path: add the directories that python -m hpcckpt.native.tfinfo prints"
#endif
#endif

#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tmci {

class Backend {
   public:
    Backend() = default;
    virtual ~Backend() = default;

    // Both return 0 for success, and anything else for failure; they may throw too.
    virtual int Save(const std::vector<std::reference_wrapper<const tensorflow::Tensor>>& tensors) = 0;
    virtual int Load(const std::vector<std::reference_wrapper<const tensorflow::Tensor>>& tensors) = 0;
};

namespace detail {

// Memory that belongs to somebody else.
class Borrowed : public tensorflow::TensorBuffer {
   public:
    Borrowed(void* data, std::size_t nbytes) : TensorBuffer(data), nbytes_(nbytes) {}

    std::size_t size() const override { return nbytes_; }
    TensorBuffer* root_buffer() override { return this; }
    bool OwnsMemory() const override { return false; }
    void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
        description->set_requested_bytes(static_cast<std::int64_t>(nbytes_));
        description->set_allocator_name("hpcckpt");
    }

   private:
    std::size_t nbytes_;
};

inline tensorflow::DataType DataTypeOf(const hpcckpt::Tensor& tensor) {
    switch (tensor.dtype()) {
        case HPCCKPT_DTYPE_BOOL:
            return tensorflow::DT_BOOL;
        case HPCCKPT_DTYPE_INT8:
            return tensorflow::DT_INT8;
        case HPCCKPT_DTYPE_INT16:
            return tensorflow::DT_INT16;
        case HPCCKPT_DTYPE_INT32:
            return tensorflow::DT_INT32;
        case HPCCKPT_DTYPE_INT64:
            return tensorflow::DT_INT64;
        case HPCCKPT_DTYPE_UINT8:
            return tensorflow::DT_UINT8;
        case HPCCKPT_DTYPE_UINT16:
            return tensorflow::DT_UINT16;
        case HPCCKPT_DTYPE_UINT32:
            return tensorflow::DT_UINT32;
        case HPCCKPT_DTYPE_UINT64:
            return tensorflow::DT_UINT64;
        case HPCCKPT_DTYPE_FLOAT16:
            return tensorflow::DT_HALF;
        case HPCCKPT_DTYPE_FLOAT32:
            return tensorflow::DT_FLOAT;
        case HPCCKPT_DTYPE_FLOAT64:
            return tensorflow::DT_DOUBLE;
        case HPCCKPT_DTYPE_COMPLEX64:
            return tensorflow::DT_COMPLEX64;
        case HPCCKPT_DTYPE_COMPLEX128:
            return tensorflow::DT_COMPLEX128;
        case HPCCKPT_DTYPE_BFLOAT16:
            return tensorflow::DT_BFLOAT16;
        case HPCCKPT_DTYPE_FLOAT8_E4M3FN:
            return tensorflow::DT_FLOAT8_E4M3FN;
        case HPCCKPT_DTYPE_FLOAT8_E5M2:
            return tensorflow::DT_FLOAT8_E5M2;
        default:
            throw std::invalid_argument(std::string(tensor.name()) + ": TensorFlow has no " +
                                        std::string(tensor.dtype_name()));
    }
}

// One tensor of a call, wrapped around its own memory.  Where that is not aligned as TensorFlow wants it, which its own
// tensors always are, around a copy.
class Wrapped {
   public:
    explicit Wrapped(const hpcckpt::Tensor& raw) : raw_(raw) {
        tensorflow::TensorShape shape;
        const bool is_box = raw.n_elements() == Product(raw.shape());
        for (const std::int64_t length : raw.shape()) {
            if (is_box) shape.AddDim(length);
        }
        if (!is_box) shape.AddDim(static_cast<std::int64_t>(raw.n_elements()));
        if (is_copy()) {
            tensor_ = tensorflow::Tensor(DataTypeOf(raw), shape);
            std::memcpy(memory(), raw.data(), raw.nbytes());
        } else {
            tensorflow::TensorBuffer* buffer = new Borrowed(raw.data(), raw.nbytes());
            tensor_ = tensorflow::Tensor(DataTypeOf(raw), shape, buffer);
            buffer->Unref();  // the tensor has its own reference
        }
    }

    const tensorflow::Tensor& tensor() const { return tensor_; }

    // Brings what was loaded to where it belongs.
    void Finish() const {
        if (is_copy()) std::memcpy(raw_.data(), memory(), raw_.nbytes());
    }

   private:
    bool is_copy() const { return reinterpret_cast<std::uintptr_t>(raw_.data()) % EIGEN_MAX_ALIGN_BYTES != 0; }
    char* memory() const { return const_cast<char*>(tensor_.tensor_data().data()); }

    static std::uint64_t Product(const hpcckpt::Dims& dims) {
        std::uint64_t product = 1;
        for (const std::int64_t length : dims) product *= static_cast<std::uint64_t>(length);
        return product;
    }

    hpcckpt::Tensor raw_;
    tensorflow::Tensor tensor_;
};

// The tensors of a call.
class Tensors {
   public:
    explicit Tensors(const hpcckpt::Context& context) : wrapped_(context.tensors().begin(), context.tensors().end()) {
        for (const Wrapped& each : wrapped_) references_.emplace_back(each.tensor());
    }

    const std::vector<std::reference_wrapper<const tensorflow::Tensor>>& references() const { return references_; }

    void Finish() const {
        for (const Wrapped& each : wrapped_) each.Finish();
    }

   private:
    std::vector<Wrapped> wrapped_;
    std::vector<std::reference_wrapper<const tensorflow::Tensor>> references_;
};

// A backend of TMCI's as one of hpcckpt's.
template <class Class>
class Adapter : public hpcckpt::Backend {
    static_assert(std::is_base_of_v<tmci::Backend, Class>, "a backend derives from tmci::Backend");

   public:
    static constexpr std::uint32_t kFeatures = 0;  // it has nothing but the order to find tensors again

    explicit Adapter(const char* config) : own_(config) {}

    int Save(const hpcckpt::Context& context) override { return base().Save(Tensors(context).references()); }

    int Load(const hpcckpt::Context& context) override {
        const Tensors tensors(context);
        const int code = base().Load(tensors.references());
        if (code == 0) tensors.Finish();
        return code;
    }

   private:
    tmci::Backend& base() { return own_; }  // whose methods are public

    Class own_;
};

}  // namespace detail
}  // namespace tmci

// Makes a class known under a name, which is a C identifier without quotes. A semicolon may follow.
#define TMCI_REGISTER_BACKEND(name, Class) HPCCKPT_REGISTER_BACKEND(name, ::tmci::detail::Adapter<Class>)

#endif
