#include "bounce_buffer.h"

#include <cstring>
#include <memory>
#include <new>

#include "copying.h"

namespace hpcckpt {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kSlowBytes = 32;

bool is_amd() {
#if defined(__x86_64__)
    static const bool is = __builtin_cpu_is("amd") != 0;
    return is;
#else
    return false;
#endif
}

// With fewer bytes than a page the second copy costs more than it gains.
bool is_slow(std::uintptr_t to, std::uintptr_t from, std::size_t nbytes) {
    const std::uintptr_t ahead = (to - from) % kPageBytes;
    return ahead > 0 && ahead < kSlowBytes && nbytes >= kPageBytes && is_amd();
}

std::uintptr_t address(const std::uint8_t* data) { return reinterpret_cast<std::uintptr_t>(data); }

// Returns a buffer that lies half a page from the bytes of the file, counted within a page, so that both copies are
// fast; nullptr if there is no memory for it.
std::uint8_t* buffer_for(off_t offset) {
    thread_local std::unique_ptr<std::uint8_t[]> memory;
    if (!memory) memory.reset(new (std::nothrow) std::uint8_t[kBounceBytes + kPageBytes]);
    if (!memory) return nullptr;
    const std::uintptr_t wanted = static_cast<std::uintptr_t>(offset) + kPageBytes / 2;
    return memory.get() + (wanted - address(memory.get())) % kPageBytes;
}

}  // namespace

bool is_slow_to_read(const std::uint8_t* data, std::size_t nbytes, off_t offset) {
    return is_slow(address(data), static_cast<std::uintptr_t>(offset), nbytes);
}

bool is_slow_to_write(const std::uint8_t* data, std::size_t nbytes, off_t offset) {
    return is_slow(static_cast<std::uintptr_t>(offset), address(data), nbytes);
}

std::uint8_t* begin_read(std::uint8_t* data, std::size_t nbytes, off_t offset) {
    if (nbytes > kBounceBytes || !is_slow_to_read(data, nbytes, offset)) return data;
    std::uint8_t* const buffer = buffer_for(offset);
    return buffer == nullptr ? data : buffer;
}

void end_read(std::uint8_t* data, const std::uint8_t* read, std::size_t nbytes) {
    if (read != data) copy_kernels().front().run(data, read, nbytes);
}

const std::uint8_t* begin_write(const std::uint8_t* data, std::size_t nbytes, off_t offset) {
    if (nbytes > kBounceBytes || !is_slow_to_write(data, nbytes, offset)) return data;
    std::uint8_t* const buffer = buffer_for(offset);
    if (buffer == nullptr) return data;
    std::memcpy(buffer, data, nbytes);
    return buffer;
}

}  // namespace hpcckpt
