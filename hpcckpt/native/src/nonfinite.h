// Counting NaN and infinity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "workers.h"

namespace hpcckpt {

// How values that are no finite numbers look: `(bits & mask) == value`, in words of `nbytes`.
struct NonfinitePattern {
    std::string_view token;
    std::size_t nbytes;
    std::uint64_t mask;
    std::uint64_t value;
    std::size_t n_words;  // per element: two for complex numbers
};

// The pattern of a dtype token, or null where every value is finite.
const NonfinitePattern* find_nonfinite_pattern(std::string_view token);

// Counts elements with at least one such word.  `nbytes` is a multiple of an element's.
std::size_t count_nonfinite(const std::uint8_t* data, std::size_t nbytes, const NonfinitePattern& pattern,
                            std::size_t n_threads, const StopCheck& should_stop = nullptr);

}  // namespace hpcckpt
