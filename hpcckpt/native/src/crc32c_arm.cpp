// CRC32C on AArch64 with the CRC extension (optional in ARMv8.0, always there from ARMv8.1 on).
//
// Three independent chains hide the latency of crc32cx, as on x86-64.  They are joined by a multiplication in plain
// integers rather than PMULL, which needs another optional extension: once in 24 KiB its cost does not show.
#include "crc32c.h"

#if defined(__aarch64__)

#if defined(__clang__)
#define HPCCKPT_CRC __attribute__((target("crc")))
#else
#define HPCCKPT_CRC __attribute__((target("+crc")))
#include <arm_acle.h>
#endif

#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstring>

namespace hpcckpt {
namespace crc {
namespace {

constexpr std::size_t kLane = 8192;

inline std::uint64_t load64(const std::uint8_t* p) {
    std::uint64_t value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

// Before clang 16 its arm_acle.h has no crc functions unless the whole file is compiled for a processor with them.
HPCCKPT_CRC inline std::uint32_t add_byte(std::uint32_t state, std::uint8_t byte) {
#if defined(__clang__)
    return __builtin_arm_crc32cb(state, byte);
#else
    return __crc32cb(state, byte);
#endif
}

HPCCKPT_CRC inline std::uint32_t add_word(std::uint32_t state, std::uint64_t word) {
#if defined(__clang__)
    return __builtin_arm_crc32cd(state, word);
#else
    return __crc32cd(state, word);
#endif
}

HPCCKPT_CRC std::uint32_t crc_kernel(std::uint32_t state, const std::uint8_t* p, std::size_t nbytes) {
    constexpr std::uint32_t kTwoLanes = power_of_x(16 * kLane);
    constexpr std::uint32_t kOneLane = power_of_x(8 * kLane);
    for (; nbytes >= 3 * kLane; p += 3 * kLane, nbytes -= 3 * kLane) {
        std::uint32_t a = state, b = 0, c = 0;
        for (std::size_t i = 0; i < kLane; i += 8) {
            a = add_word(a, load64(p + i));
            b = add_word(b, load64(p + kLane + i));
            c = add_word(c, load64(p + 2 * kLane + i));
        }
        state = multiply(a, kTwoLanes) ^ multiply(b, kOneLane) ^ c;
    }
    for (; nbytes >= 8; p += 8, nbytes -= 8) state = add_word(state, load64(p));
    for (; nbytes > 0; ++p, --nbytes) state = add_byte(state, *p);
    return state;
}

bool has_crc_instructions() {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
    return true;  // every Apple processor has them
#endif
}

}  // namespace

void append_hardware_kernels(std::vector<Crc32cChoice>& kernels) {
    if (has_crc_instructions()) kernels.push_back({"armv8", crc_kernel});
}

}  // namespace crc
}  // namespace hpcckpt

#endif  // __aarch64__
