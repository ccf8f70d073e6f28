// How fast the tier is that is set, measured with what swaps use of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace hpcckpt {
namespace lms {

struct Speed {
    std::int64_t write_ns = 0, read_ns = 0;
};

// Swaps `count` tensors of `nbytes` out and in again, as fast as the tier takes and gives them.
absl::Status probe(std::size_t nbytes, int count, Speed* speed);

}  // namespace lms
}  // namespace hpcckpt
