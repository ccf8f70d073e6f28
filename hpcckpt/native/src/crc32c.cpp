// Choice of kernel, the portable table kernel, and combination.
//
// The table kernel is slicing-by-8: Kounavis and Berry, "Novel Table Lookup-Based Algorithms for High-Performance
// CRC Generation", IEEE Trans. Computers 57(11), 2008.  Combination multiplies by x^(8n) modulo the polynomial, as
// zlib's crc32_combine does since 1.2.12.
#include "crc32c.h"

#include <array>
#include <cstring>

namespace hpcckpt {
namespace crc {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
    Tables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
        tables[0][byte] = crc;
    }
    for (std::size_t byte = 0; byte < 256; ++byte) {
        for (std::size_t k = 1; k < 8; ++k) {
            const std::uint32_t previous = tables[k - 1][byte];
            tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xFF];
        }
    }
    return tables;
}

constexpr Tables kTables = make_tables();

std::uint32_t load_le32(const std::uint8_t* p) {
    return static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8 |
           static_cast<std::uint32_t>(p[2]) << 16 | static_cast<std::uint32_t>(p[3]) << 24;
}

std::uint32_t eight_bytes(std::uint32_t state, const std::uint8_t* p) {
    const std::uint32_t low = state ^ load_le32(p);
    const std::uint32_t high = load_le32(p + 4);
    return kTables[7][low & 0xFF] ^ kTables[6][(low >> 8) & 0xFF] ^ kTables[5][(low >> 16) & 0xFF] ^
           kTables[4][low >> 24] ^ kTables[3][high & 0xFF] ^ kTables[2][(high >> 8) & 0xFF] ^
           kTables[1][(high >> 16) & 0xFF] ^ kTables[0][high >> 24];
}

}  // namespace

std::uint32_t table_kernel(std::uint32_t state, const std::uint8_t* data, std::size_t nbytes) {
    for (; nbytes >= 8; data += 8, nbytes -= 8) state = eight_bytes(state, data);
    for (; nbytes > 0; ++data, --nbytes) state = (state >> 8) ^ kTables[0][(state ^ *data) & 0xFF];
    return state;
}

#if !defined(__x86_64__) && !defined(__aarch64__)
void append_hardware_kernels(std::vector<Crc32cChoice>&) {}
#endif

}  // namespace crc

const std::vector<Crc32cChoice>& crc32c_kernels() {
    static const std::vector<Crc32cChoice> kernels = [] {
        std::vector<Crc32cChoice> found;
        crc::append_hardware_kernels(found);
        found.push_back({"table", crc::table_kernel});
        return found;
    }();
    return kernels;
}

std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t nbytes) {
    static const Crc32cKernel fastest = crc32c_kernels().front().run;
    return ~fastest(~crc, static_cast<const std::uint8_t*>(data), nbytes);
}

std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t nbytes_b) {
    return crc::multiply(crc::power(crc::kX8, nbytes_b), crc_a) ^ crc_b;
}

}  // namespace hpcckpt
