// A tensor that is or will be swapped out: what a swap-out passes to its swap-ins.
//
// Its space in a tier is freed when the last of them drops it, whether or not the step succeeded.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "file_store.h"
#include "pool.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace hpcckpt {
namespace lms {

class SwapEngine;

struct SwappedTensor {
    enum class State { kKept, kLeaving, kAway, kFailed };
    enum class Place { kNowhere, kHost, kFile };

    SwappedTensor(std::string name, const tensorflow::Tensor& tensor);
    ~SwappedTensor();
    SwappedTensor(const SwappedTensor&) = delete;
    SwappedTensor& operator=(const SwappedTensor&) = delete;

    const std::string name;  // of the swap-out
    const tensorflow::DataType dtype;
    const tensorflow::TensorShape shape;
    const std::size_t nbytes;

    // Set before other threads see it.
    Place place = Place::kNowhere;
    std::shared_ptr<FileStore> file;
    off_t offset = 0;
    Pages host;

    std::mutex lock;  // of what follows
    State state = State::kKept;
    tensorflow::Tensor tensor;  // until it is away
    absl::Status failure;
};

// What a variant tensor holds.
struct Handle {
    std::shared_ptr<SwappedTensor> swapped;

    std::string TypeName() const { return "hpcckpt::lms::Handle"; }
    std::string DebugString() const { return swapped == nullptr ? "nothing" : swapped->name; }
    void Encode(tensorflow::VariantTensorData*) const {}
    bool Decode(const tensorflow::VariantTensorData&) { return false; }  // not valid in another process
};

}  // namespace lms
}  // namespace hpcckpt
