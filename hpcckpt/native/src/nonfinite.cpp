#include "nonfinite.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "workers.h"

namespace hpcckpt {
namespace {

constexpr std::size_t kRangeBytes = std::size_t{1} << 20;
constexpr std::size_t kStretchBytes = 4096;  // looked through for any at all, and counted only where there is one

// Types with infinities have them and NaN under the highest exponent; e4m3fn keeps only the last bit pattern of each
// sign, the fnuz ones only minus zero.
constexpr NonfinitePattern kPatterns[] = {
    {"float16", 2, 0x7C00, 0x7C00, 1},           {"bfloat16", 2, 0x7F80, 0x7F80, 1},
    {"float32", 4, 0x7F800000, 0x7F800000, 1},   {"float64", 8, 0x7FF0000000000000, 0x7FF0000000000000, 1},
    {"complex64", 4, 0x7F800000, 0x7F800000, 2}, {"complex128", 8, 0x7FF0000000000000, 0x7FF0000000000000, 2},
    {"float8_e3m4", 1, 0x70, 0x70, 1},           {"float8_e4m3", 1, 0x78, 0x78, 1},
    {"float8_e4m3fn", 1, 0x7F, 0x7F, 1},         {"float8_e5m2", 1, 0x7C, 0x7C, 1},
    {"float8_e4m3b11", 1, 0xFF, 0x80, 1},        {"float8_e4m3b11fnuz", 1, 0xFF, 0x80, 1},
    {"float8_e4m3fnuz", 1, 0xFF, 0x80, 1},       {"float8_e5m2fnuz", 1, 0xFF, 0x80, 1},
    {"float8_e8m0fnu", 1, 0xFF, 0xFF, 1},
};

template <typename Word>
inline bool is_nonfinite(const std::uint8_t* word, const NonfinitePattern& pattern) {
    Word bits;
    std::memcpy(&bits, word, sizeof bits);
    return static_cast<Word>(bits & static_cast<Word>(pattern.mask)) == static_cast<Word>(pattern.value);
}

// Written so that compilers turn it into vector instructions of whatever target inlines it.
template <typename Word>
[[gnu::always_inline]] inline bool has_any(const std::uint8_t* data, std::size_t nbytes,
                                           const NonfinitePattern& pattern) {
    const Word mask = static_cast<Word>(pattern.mask), value = static_cast<Word>(pattern.value);
    Word found = 0;
    for (std::size_t i = 0; i < nbytes; i += sizeof(Word)) {
        Word bits;
        std::memcpy(&bits, data + i, sizeof bits);
        found |= static_cast<Word>(static_cast<Word>(bits & mask) == value);
    }
    return found != 0;
}

#if defined(__x86_64__)
template <typename Word>
__attribute__((target("avx512f,avx512bw,prefer-vector-width=512"))) bool has_any_avx512(
    const std::uint8_t* data, std::size_t nbytes, const NonfinitePattern& pattern) {
    return has_any<Word>(data, nbytes, pattern);
}

template <typename Word>
__attribute__((target("avx2"))) bool has_any_avx2(const std::uint8_t* data, std::size_t nbytes,
                                                  const NonfinitePattern& pattern) {
    return has_any<Word>(data, nbytes, pattern);
}
#endif

template <typename Word>
bool has_any_plain(const std::uint8_t* data, std::size_t nbytes, const NonfinitePattern& pattern) {
    return has_any<Word>(data, nbytes, pattern);
}

using Search = bool (*)(const std::uint8_t*, std::size_t, const NonfinitePattern&);

template <typename Word>
Search fastest_search() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") != 0) return has_any_avx512<Word>;
    if (__builtin_cpu_supports("avx2") != 0) return has_any_avx2<Word>;
#endif
    return has_any_plain<Word>;
}

template <typename Word>
std::size_t count_elements(const std::uint8_t* data, std::size_t nbytes, const NonfinitePattern& pattern) {
    const std::size_t element = pattern.n_words * sizeof(Word);
    std::size_t count = 0;
    for (std::size_t i = 0; i < nbytes; i += element) {
        bool is_found = is_nonfinite<Word>(data + i, pattern);
        if (pattern.n_words == 2) is_found = is_found || is_nonfinite<Word>(data + i + sizeof(Word), pattern);
        count += is_found ? 1 : 0;
    }
    return count;
}

template <typename Word>
std::size_t count_range(const std::uint8_t* data, std::size_t nbytes, const NonfinitePattern& pattern) {
    static const Search has_any_here = fastest_search<Word>();
    std::size_t count = 0;
    for (std::size_t start = 0; start < nbytes; start += kStretchBytes) {
        const std::size_t length = std::min(kStretchBytes, nbytes - start);
        if (has_any_here(data + start, length, pattern)) count += count_elements<Word>(data + start, length, pattern);
    }
    return count;
}

using Counter = std::size_t (*)(const std::uint8_t*, std::size_t, const NonfinitePattern&);

Counter counter_of(const NonfinitePattern& pattern) {
    switch (pattern.nbytes) {
        case 1:
            return count_range<std::uint8_t>;
        case 2:
            return count_range<std::uint16_t>;
        case 4:
            return count_range<std::uint32_t>;
        default:
            return count_range<std::uint64_t>;
    }
}

}  // namespace

const NonfinitePattern* find_nonfinite_pattern(std::string_view token) {
    for (const NonfinitePattern& pattern : kPatterns) {
        if (pattern.token == token) return &pattern;
    }
    return nullptr;
}

std::size_t count_nonfinite(const std::uint8_t* data, std::size_t nbytes, const NonfinitePattern& pattern,
                            std::size_t n_threads, const StopCheck& should_stop) {
    const Counter count = counter_of(pattern);
    const std::size_t n_ranges = nbytes / kRangeBytes + (nbytes % kRangeBytes != 0 ? 1 : 0);
    std::atomic<std::size_t> total{0};
    for_each_item(
        n_ranges, n_threads,
        [&](std::size_t i) {
            const std::size_t start = i * kRangeBytes;
            total += count(data + start, std::min(kRangeBytes, nbytes - start), pattern);
            return true;
        },
        should_stop);
    return total;
}

}  // namespace hpcckpt
