// Whole reads and writes on a file descriptor: short transfers and EINTR are dealt with here and nowhere else.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace hpcckpt {

struct Transfer {
    int error = 0;           // errno, or 0
    std::size_t nbytes = 0;  // transferred before the error or the end of the file
};

Transfer pwrite_all(int fd, const void* data, std::size_t nbytes, off_t offset);

// Fewer bytes than asked for, without an error, mean that the file ends there.
Transfer pread_all(int fd, void* data, std::size_t nbytes, off_t offset);

// Makes room for the first `nbytes` bytes and grows the file to them.  Returns errno, or 0.  A file system that
// cannot preallocate, or is always interrupted, is not an error: this is only for speed and for an early ENOSPC.
int preallocate(int fd, off_t nbytes);

// Asks the kernel to begin writing a range of the page cache to storage, without waiting for it.  Only advice: errors
// are left for fsync to report.
void begin_writeback(int fd, off_t offset, off_t nbytes);

}  // namespace hpcckpt
