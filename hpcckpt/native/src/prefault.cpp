#include "prefault.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>

#include "workers.h"

namespace hpcckpt {
namespace {

constexpr std::size_t kRangeBytes = std::size_t{16} << 20;
constexpr std::size_t kPageBytes = 4096;  // larger pages are merely touched more than once

// In one call into the kernel instead of a fault for each page (Linux 5.14; older C libraries do not name it).
bool populate([[maybe_unused]] std::uint8_t* data, [[maybe_unused]] std::size_t nbytes) {
#if defined(__linux__)
    constexpr int kPopulateWrite = 23;
    return ::madvise(data, nbytes, kPopulateWrite) == 0;
#else
    return false;
#endif
}

void touch(std::uint8_t* data, std::size_t nbytes) {
    for (std::size_t i = 0; i < nbytes; i += kPageBytes) {
        volatile std::uint8_t* byte = data + i;
        *byte = *byte;
    }
    volatile std::uint8_t* last = data + nbytes - 1;  // the last page, where the range begins within a page
    *last = *last;
}

}  // namespace

void prefault(std::uint8_t* data, std::size_t nbytes, std::size_t n_threads, const StopCheck& should_stop) {
    const std::size_t n_ranges = nbytes / kRangeBytes + (nbytes % kRangeBytes != 0 ? 1 : 0);
    for_each_item(
        n_ranges, n_threads,
        [&](std::size_t i) {
            std::uint8_t* start = data + i * kRangeBytes;
            const std::size_t length = std::min(kRangeBytes, nbytes - i * kRangeBytes);
            if (!populate(start, length)) touch(start, length);
            return true;
        },
        should_stop);
}

}  // namespace hpcckpt
