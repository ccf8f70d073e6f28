// CRC32C on x86-64.  Each function names the instructions it needs, so that one portable binary holds them all.
//
// sse42: three independent crc32q chains, because the instruction has a latency of three cycles and a throughput of
// one; joined by carry-less multiplication.  Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32
// Instruction", Intel, 2011.
// avx512: folding with carry-less multiplication, four accumulators of 512 bits.  Gopal et al., "Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009; the form of the constants
// (x^(D+31), x^(D-33) for a fold by D bits) is that of Peter Cawley's fast-crc32, github.com/corsix/fast-crc32.
#include "crc32c.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

namespace hpcckpt {
namespace crc {
namespace {

#define HPCCKPT_SSE42 __attribute__((target("sse4.2,pclmul")))
#define HPCCKPT_AVX512 __attribute__((target("avx512f,avx512dq,vpclmulqdq,sse4.2,pclmul")))

inline std::uint64_t load64(const std::uint8_t* p) {
    std::uint64_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

HPCCKPT_SSE42 inline __m128i product(std::uint64_t state, std::uint32_t factor) {
    return _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(state)),
                                _mm_cvtsi32_si128(static_cast<int>(factor)), 0);
}

// Runs three lanes of kLane bytes at once for as long as they fit, and joins them:
// a*x^(16 kLane) + b*x^(8 kLane) + c.  The carry-less product and crc32q add 33 to the exponent, taken off here.
template <std::size_t kLane>
HPCCKPT_SSE42 inline std::uint64_t three_lanes(std::uint64_t state, const std::uint8_t*& p, std::size_t& nbytes) {
    constexpr std::uint32_t kTwoLanes = power_of_x(16 * kLane - 33);
    constexpr std::uint32_t kOneLane = power_of_x(8 * kLane - 33);
    for (; nbytes >= 3 * kLane; p += 3 * kLane, nbytes -= 3 * kLane) {
        std::uint64_t a = state, b = 0, c = 0;
        for (std::size_t i = 0; i < kLane; i += 8) {
            a = _mm_crc32_u64(a, load64(p + i));
            b = _mm_crc32_u64(b, load64(p + kLane + i));
            c = _mm_crc32_u64(c, load64(p + 2 * kLane + i));
        }
        const __m128i joined = _mm_xor_si128(product(a, kTwoLanes), product(b, kOneLane));
        state = _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(joined))) ^ c;
    }
    return state;
}

HPCCKPT_SSE42 std::uint32_t sse42_kernel(std::uint32_t initial, const std::uint8_t* p, std::size_t nbytes) {
    std::uint64_t state = three_lanes<4096>(initial, p, nbytes);
    state = three_lanes<256>(state, p, nbytes);
    for (; nbytes >= 8; p += 8, nbytes -= 8) state = _mm_crc32_u64(state, load64(p));
    auto narrow = static_cast<std::uint32_t>(state);
    for (; nbytes > 0; ++p, --nbytes) narrow = _mm_crc32_u8(narrow, *p);
    return narrow;
}

constexpr std::size_t kVector = 64;
constexpr std::size_t kStride = 4 * kVector;

HPCCKPT_AVX512 inline __m512i fold(__m512i accumulator, __m512i factors, const std::uint8_t* next) {
    const __m512i low = _mm512_clmulepi64_epi128(accumulator, factors, 0x00);
    const __m512i high = _mm512_clmulepi64_epi128(accumulator, factors, 0x11);
    return _mm512_ternarylogic_epi64(low, high, _mm512_loadu_si512(next), 0x96);  // three-way XOR
}

HPCCKPT_AVX512 std::uint32_t avx512_kernel(std::uint32_t state, const std::uint8_t* p, std::size_t nbytes) {
    if (nbytes < 4 * kStride) return sse42_kernel(state, p, nbytes);
    constexpr auto kLow = static_cast<long long>(power_of_x(8 * kStride + 31));
    constexpr auto kHigh = static_cast<long long>(power_of_x(8 * kStride - 33));
    const __m512i factors = _mm512_set_epi64(kHigh, kLow, kHigh, kLow, kHigh, kLow, kHigh, kLow);
    const __m512i initial = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state)));
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p), initial);
    __m512i b = _mm512_loadu_si512(p + kVector);
    __m512i c = _mm512_loadu_si512(p + 2 * kVector);
    __m512i d = _mm512_loadu_si512(p + 3 * kVector);
    for (p += kStride, nbytes -= kStride; nbytes >= kStride; p += kStride, nbytes -= kStride) {
        a = fold(a, factors, p);
        b = fold(b, factors, p + kVector);
        c = fold(c, factors, p + 2 * kVector);
        d = fold(d, factors, p + 3 * kVector);
    }
    // The accumulators are 256 bytes with the same remainder as all bytes so far: the plain kernel ends the work.
    std::uint8_t folded[kStride];
    _mm512_storeu_si512(folded, a);
    _mm512_storeu_si512(folded + kVector, b);
    _mm512_storeu_si512(folded + 2 * kVector, c);
    _mm512_storeu_si512(folded + 3 * kVector, d);
    return sse42_kernel(sse42_kernel(0, folded, kStride), p, nbytes);
}

}  // namespace

void append_hardware_kernels(std::vector<Crc32cChoice>& kernels) {
    if (__builtin_cpu_supports("sse4.2") == 0 || __builtin_cpu_supports("pclmul") == 0) return;
    if (__builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0) {
        kernels.push_back({"avx512", avx512_kernel});
    }
    kernels.push_back({"sse42", sse42_kernel});
}

}  // namespace crc
}  // namespace hpcckpt

#endif  // __x86_64__
