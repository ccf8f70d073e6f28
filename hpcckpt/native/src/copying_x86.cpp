// Copies with streaming stores on x86-64, which spare the destination's old bytes the way into the cache.
//
// On Intel's processors four stretches are copied side by side, as glibc's large_memcpy_4x does: a single stream leaves
// memory channels and prefetchers idle, and is slower with streaming stores than memcpy.  glibc takes this way itself
// only for a single copy larger than a share of the shared cache.  On AMD's a single stream is the fastest, and four
// are slower than memcpy unless source and destination lie half a page apart (docs/decisions/0007-native-copies.md).
#include "copying.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace hpcckpt {
namespace copying {
namespace {

#define HPCCKPT_AVX2 __attribute__((target("avx2")))
#define HPCCKPT_AVX512F __attribute__((target("avx512f")))

constexpr std::size_t kStep = 128;  // of each lane, in turn: two cache lines
constexpr std::size_t kMaxLane = std::size_t{64} << 10;
constexpr std::size_t kMinLane = std::size_t{4} << 10;
constexpr std::size_t kAhead = 512;
constexpr std::size_t kStoreAlignment = 64;

inline void prefetch_step(const std::uint8_t* from) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + kAhead, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(from) + kAhead + 64, _MM_HINT_T0);
}

template <std::size_t kLanes>
HPCCKPT_AVX512F void avx512_lanes(std::uint8_t* to, const std::uint8_t* from, std::size_t lane) {
    for (std::size_t i = 0; i < lane; i += kStep) {
        __m512i low[kLanes], high[kLanes];
        for (std::size_t k = 0; k < kLanes; ++k) prefetch_step(from + k * lane + i);
        for (std::size_t k = 0; k < kLanes; ++k) {
            low[k] = _mm512_loadu_si512(from + k * lane + i);
            high[k] = _mm512_loadu_si512(from + k * lane + i + 64);
        }
        for (std::size_t k = 0; k < kLanes; ++k) {
            _mm512_stream_si512(reinterpret_cast<__m512i*>(to + k * lane + i), low[k]);
            _mm512_stream_si512(reinterpret_cast<__m512i*>(to + k * lane + i + 64), high[k]);
        }
    }
}

template <std::size_t kLanes>
HPCCKPT_AVX2 void avx2_lanes(std::uint8_t* to, const std::uint8_t* from, std::size_t lane) {
    for (std::size_t i = 0; i < lane; i += kStep) {
        for (std::size_t k = 0; k < kLanes; ++k) prefetch_step(from + k * lane + i);
        for (std::size_t k = 0; k < kLanes; ++k) {
            const auto* source = reinterpret_cast<const __m256i*>(from + k * lane + i);
            auto* target = reinterpret_cast<__m256i*>(to + k * lane + i);
            const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
            const __m256i c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
            _mm256_stream_si256(target, a);
            _mm256_stream_si256(target + 1, b);
            _mm256_stream_si256(target + 2, c);
            _mm256_stream_si256(target + 3, d);
        }
    }
}

template <std::size_t kLanes, void (*lanes)(std::uint8_t*, const std::uint8_t*, std::size_t)>
void streaming_kernel(std::uint8_t* to, const std::uint8_t* from, std::size_t nbytes) {
    const std::size_t past = reinterpret_cast<std::uintptr_t>(to) % kStoreAlignment;
    const std::size_t head = std::min(past == 0 ? 0 : kStoreAlignment - past, nbytes);
    std::memcpy(to, from, head);
    std::size_t done = head;
    while (true) {
        const std::size_t lane = std::min(kMaxLane, (nbytes - done) / kLanes / kStep * kStep);
        if (lane < kMinLane) break;
        lanes(to + done, from + done, lane);
        done += kLanes * lane;
    }
    _mm_sfence();  // streaming stores are ordered before nothing else, not even the end of a thread
    std::memcpy(to + done, from + done, nbytes - done);
}

}  // namespace

void append_streaming_kernels(std::vector<CopyChoice>& kernels) {
    std::vector<CopyChoice> one_stream, four_streams;
    if (__builtin_cpu_supports("avx512f") != 0) {
        one_stream.push_back({"avx512, one stream", streaming_kernel<1, avx512_lanes<1>>});
        four_streams.push_back({"avx512", streaming_kernel<4, avx512_lanes<4>>});
    }
    if (__builtin_cpu_supports("avx2") != 0) {
        one_stream.push_back({"avx2, one stream", streaming_kernel<1, avx2_lanes<1>>});
        four_streams.push_back({"avx2", streaming_kernel<4, avx2_lanes<4>>});
    }
    const bool is_amd = __builtin_cpu_is("amd") != 0;
    for (const auto& some : {is_amd ? one_stream : four_streams, is_amd ? four_streams : one_stream}) {
        kernels.insert(kernels.end(), some.begin(), some.end());
    }
}

}  // namespace copying
}  // namespace hpcckpt

#endif  // __x86_64__
