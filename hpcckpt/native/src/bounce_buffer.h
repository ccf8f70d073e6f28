// A bounce buffer for reads and writes where the kernel's own copy would be slow.
//
// Linux on x86-64 copies between memory and the pages of a file by `rep movsb`.  On AMD's Zen 3 that takes 2 to 3 times
// as long if the destination begins 1 to 31 bytes further into its page than the source
// (docs/decisions/0007-native-copies.md).  Large NumPy arrays begin 16 bytes into a page, so this is the case for every
// array that a file has at the start of a page.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace hpcckpt {

// The size of the buffer: more bytes at once never use it.
constexpr std::size_t kBounceBytes = std::size_t{256} << 10;

// Whether a read of `data` from this offset in a file, or a write, is so slow that the buffer is faster.  It never is
// on other processors than AMD's.
bool is_slow_to_read(const std::uint8_t* data, std::size_t nbytes, off_t offset);
bool is_slow_to_write(const std::uint8_t* data, std::size_t nbytes, off_t offset);

// Returns the address to read `nbytes` bytes into: `data`, or this thread's buffer if that is faster.  `end_read` then
// copies them to `data`.  The buffer is valid until this thread's next read or write.
std::uint8_t* begin_read(std::uint8_t* data, std::size_t nbytes, off_t offset);
void end_read(std::uint8_t* data, const std::uint8_t* read, std::size_t nbytes);

// Returns the address to write `nbytes` bytes from: `data`, or a copy in this thread's buffer if that is faster.
const std::uint8_t* begin_write(const std::uint8_t* data, std::size_t nbytes, off_t offset);

}  // namespace hpcckpt
