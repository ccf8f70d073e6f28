// A tensor that has left, or is about to: what a swap-out hands on to its swap-ins.
//
// Its room in a tier is given back when the last of them drops it, whether the step ended well or not.
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

class Mover;

struct Parcel {
    enum class State { kKept, kLeaving, kAway, kFailed };
    enum class Place { kNowhere, kHost, kFile };

    Parcel(std::string name, const tensorflow::Tensor& tensor);
    ~Parcel();
    Parcel(const Parcel&) = delete;
    Parcel& operator=(const Parcel&) = delete;

    const std::string name;  // of the swap-out
    const tensorflow::DataType dtype;
    const tensorflow::TensorShape shape;
    const std::size_t nbytes;

    // Set before anybody else sees it.
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
    std::shared_ptr<Parcel> parcel;

    std::string TypeName() const { return "hpcckpt::lms::Handle"; }
    std::string DebugString() const { return parcel == nullptr ? "nothing" : parcel->name; }
    void Encode(tensorflow::VariantTensorData*) const {}
    bool Decode(const tensorflow::VariantTensorData&) { return false; }  // it means nothing in another process
};

}  // namespace lms
}  // namespace hpcckpt
