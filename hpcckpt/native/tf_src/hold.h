// What one call of HpcckptHold holds, until Python has made arrays of it.
#pragma once

#include <string>
#include <vector>

#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/tensor.h"

namespace hpcckpt {

struct Slot {
    enum class State {
        kHeld,       // `tensor` shares the variable's buffer
        kEmpty,      // it has no value yet
        kElsewhere,  // on an accelerator, or read by copying: TensorFlow's own read is the way
    };
    State state;
    tensorflow::Tensor tensor;
};

// Owned by the op's first output, so that nothing is held for ever if Python is interrupted before it takes it.
class Held : public tensorflow::ResourceBase {
   public:
    std::string DebugString() const override { return "buffers of variables, held"; }

    std::vector<Slot> slots;
};

}  // namespace hpcckpt
