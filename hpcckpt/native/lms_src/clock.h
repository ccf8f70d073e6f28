#pragma once

#include <chrono>
#include <cstdint>

namespace hpcckpt {
namespace lms {

inline std::int64_t now_ns() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

}  // namespace lms
}  // namespace hpcckpt
