// CRC32C (Castagnoli, polynomial 0x1EDC6F41 reflected to 0x82F63B78), as in RFC 3720:
// initial value and final XOR are all ones, so crc32c("123456789") is 0xE3069283.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hpcckpt {

// Continues `crc` (0 to begin) over `nbytes` bytes, with the fastest kernel this processor has.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t nbytes);

// CRC of the concatenation A+B from crc(A), crc(B) and the length of B.
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t nbytes_b);

// A kernel maps the raw register (no initial or final XOR) over bytes.
using Crc32cKernel = std::uint32_t (*)(std::uint32_t state, const std::uint8_t* data, std::size_t nbytes);

struct Crc32cChoice {
    std::string name;
    Crc32cKernel run;
};

// The kernels this processor can run, fastest first; the last is always the portable table.
const std::vector<Crc32cChoice>& crc32c_kernels();

namespace crc {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // bit i is the coefficient of x^(31-i)

// Product of two polynomials modulo the CRC polynomial.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
    std::uint32_t product = 0;
    for (std::uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        if ((a & bit) != 0) product ^= b;
        b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
    }
    return product;
}

constexpr std::uint32_t kX = 0x40000000u;   // x^1
constexpr std::uint32_t kX8 = 0x00800000u;  // x^8

// base^n modulo the CRC polynomial, by repeated squaring.
constexpr std::uint32_t power(std::uint32_t base, std::uint64_t n) {
    std::uint32_t result = 0x80000000u;  // x^0
    std::uint32_t square = base;
    for (; n != 0; n >>= 1) {
        if ((n & 1) != 0) result = multiply(result, square);
        square = multiply(square, square);
    }
    return result;
}

// x^n modulo the CRC polynomial.
constexpr std::uint32_t power_of_x(std::uint64_t n) { return power(kX, n); }

std::uint32_t table_kernel(std::uint32_t state, const std::uint8_t* data, std::size_t nbytes);

// Appends the kernels of this architecture that the processor supports, fastest first.
void append_hardware_kernels(std::vector<Crc32cChoice>& kernels);

}  // namespace crc
}  // namespace hpcckpt
