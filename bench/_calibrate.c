/* What the machine can do: one process' part of a state to a new file, or back, with nothing but C around it. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "_checksum.h"

enum { PART = 256 << 10 };

static int move_all(int fd, char* data, size_t nbytes, off_t offset, int is_write) {
    while (nbytes > 0) {
        const ssize_t moved = is_write ? pwrite(fd, data, nbytes, offset) : pread(fd, data, nbytes, offset);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) return moved < 0 ? errno : EIO;
        data += moved;
        nbytes -= (size_t)moved;
        offset += moved;
    }
    return 0;
}

static int move_pieces(int fd, char* const* data, const size_t* nbytes, size_t n, off_t offset, int is_write,
                       int is_early) {
    for (size_t i = 0; i < n; offset += (off_t)nbytes[i++]) {
        const int error = move_all(fd, data[i], nbytes[i], offset, is_write);
        if (error != 0) return error;
#ifdef __linux__
        if (is_early) (void)sync_file_range(fd, offset, (off_t)nbytes[i], SYNC_FILE_RANGE_WRITE);
#endif
    }
    return 0;
}

static int reserve(int fd, const size_t* nbytes, size_t n) {
    off_t total = 0;
    for (size_t i = 0; i < n; ++i) total += (off_t)nbytes[i];
    return posix_fallocate(fd, 0, total);
}

/* pwrite the pieces to a file that does not exist yet, then fdatasync; if `is_early`, reserve the space first and
 * have the kernel begin storing each piece once it is written. Returns an errno. */
int write_new_file(const char* path, char* const* data, const size_t* nbytes, size_t n, int is_early) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    int error = is_early ? reserve(fd, nbytes, n) : 0;
    if (error == 0) error = move_pieces(fd, data, nbytes, n, 0, 1, is_early);
    if (error == 0 && fdatasync(fd) != 0) error = errno;
    if (close(fd) != 0 && error == 0) error = errno;
    return error;
}

/* pwrite the pieces over what a file holds already, then fdatasync. Returns an errno. */
int write_over_file(const char* path, char* const* data, const size_t* nbytes, size_t n) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    int error = move_pieces(fd, data, nbytes, n, 0, 1, 0);
    if (error == 0 && fdatasync(fd) != 0) error = errno;
    if (close(fd) != 0 && error == 0) error = errno;
    return error;
}

/* pread the pieces from a file, from an offset on. Returns an errno. */
int read_file(const char* path, char* const* data, const size_t* nbytes, size_t n, size_t offset) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    const int error = move_pieces(fd, data, nbytes, n, (off_t)offset, 0, 0);
    close(fd);
    return error;
}

/* The same, with the work of a CRC32C of each part while it is still in the cache. Returns an errno. */
int read_and_check_file(const char* path, char* const* data, const size_t* nbytes, size_t n, uint64_t* sum) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    int error = 0;
    off_t offset = 0;
    for (size_t i = 0; i < n && error == 0; ++i) {
        for (size_t done = 0; done < nbytes[i] && error == 0; done += PART) {
            const size_t left = nbytes[i] - done, part = left < PART ? left : PART;
            error = move_all(fd, data[i] + done, part, offset + (off_t)done, 0);
            *sum ^= checksum(data[i] + done, part);
        }
        offset += (off_t)nbytes[i];
    }
    close(fd);
    return error;
}

void copy(char* to, const char* from, size_t nbytes) { memcpy(to, from, nbytes); }
