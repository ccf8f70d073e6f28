// Measures the tier and the allocator: how fast swaps are, and whether freed memory stays resident.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace hpcckpt {
namespace lms {

struct Speed {
    std::int64_t write_ns = 0, read_ns = 0;
};

// Swaps `count` tensors of `nbytes` out and in again, as fast as the tier allows.
absl::Status probe(std::size_t nbytes, int count, Speed* speed);

// Whether TensorFlow's allocator keeps what is freed: with oneDNN it is a pool, unless the user has turned that off.
bool allocator_keeps_freed();

}  // namespace lms
}  // namespace hpcckpt
