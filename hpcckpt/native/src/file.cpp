#include "file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace hpcckpt {
namespace {

// Linux moves at most 0x7ffff000 bytes per call, and other systems refuse more than INT_MAX.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;

[[maybe_unused]] constexpr int kMaxTries = 10;

// Calls `move(done, length)`, which is pread or pwrite, until all is moved, it fails, or it moves nothing.
template <typename Move>
Transfer move_all(std::size_t nbytes, Move move) {
    Transfer transfer;
    while (transfer.nbytes < nbytes) {
        const ssize_t moved = move(transfer.nbytes, std::min(nbytes - transfer.nbytes, kMaxTransfer));
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0) transfer.error = errno;
        if (moved <= 0) break;
        transfer.nbytes += static_cast<std::size_t>(moved);
    }
    return transfer;
}

}  // namespace

Transfer pwrite_all(int fd, const void* data, std::size_t nbytes, off_t offset) {
    const auto* bytes = static_cast<const char*>(data);
    Transfer transfer = move_all(nbytes, [=](std::size_t done, std::size_t length) {
        return ::pwrite(fd, bytes + done, length, offset + static_cast<off_t>(done));
    });
    // A write that moves nothing and gives no reason would loop for ever if it were tried again.
    if (transfer.error == 0 && transfer.nbytes < nbytes) transfer.error = EIO;
    return transfer;
}

Transfer pread_all(int fd, void* data, std::size_t nbytes, off_t offset) {
    auto* bytes = static_cast<char*>(data);
    return move_all(nbytes, [=](std::size_t done, std::size_t length) {
        return ::pread(fd, bytes + done, length, offset + static_cast<off_t>(done));
    });
}

int preallocate(int fd, off_t nbytes) {
    if (nbytes == 0) return 0;
    int error;
#if defined(__linux__)
    // Not posix_fallocate: where the file system cannot, glibc writes a byte into each block, which is slow and, with
    // several writers to one file, unsafe.
    // Where a signal makes the file system begin again, one that comes often enough would keep it from ever ending.
    int n_tries = kMaxTries;
    do {
        error = ::fallocate(fd, 0, 0, nbytes) == 0 ? 0 : errno;
    } while (error == EINTR && --n_tries > 0);
#else
    error = ::ftruncate(fd, nbytes) == 0 ? 0 : errno;
#endif
    const bool is_left = error == EOPNOTSUPP || error == ENOTSUP || error == ENOSYS || error == EINTR;
    return is_left ? 0 : error;
}

void begin_writeback([[maybe_unused]] int fd, [[maybe_unused]] off_t offset, [[maybe_unused]] off_t nbytes) {
#if defined(__linux__)
    (void)::sync_file_range(fd, offset, nbytes, SYNC_FILE_RANGE_WRITE);
#endif
}

}  // namespace hpcckpt
