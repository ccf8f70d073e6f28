/* Preloaded before libc: transfers that are short, interrupted, empty, wait for a file, or are slow after the first one
 * has sent SIGINT to the process; a file system that cannot preallocate, or is always interrupted.  FAULTY_IO says
 * which. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int n_calls;

static int is_mode(const char* mode) {
    const char* chosen = getenv("FAULTY_IO");
    return chosen != NULL && strcmp(chosen, mode) == 0;
}

/* Returns how many of `wanted` bytes to move, or -1 with errno. */
static long decide(size_t wanted) {
    const char* gate = getenv("FAULTY_IO_GATE");
    while (is_mode("gate") && gate != NULL && access(gate, F_OK) != 0) usleep(1000);
    if (is_mode("signal")) {
        if (__atomic_fetch_add(&n_calls, 1, __ATOMIC_RELAXED) == 0) kill(getpid(), SIGINT);
        usleep(5000); /* each transfer takes long enough for the signal check between two of them */
    }
    if (is_mode("short") && __atomic_fetch_add(&n_calls, 1, __ATOMIC_RELAXED) % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    return is_mode("short") && wanted > 1000 ? 1000 : (long)wanted;
}

ssize_t pwrite64(int fd, const void* data, size_t nbytes, off64_t offset) {
    long allowed = decide(nbytes);
    if (allowed < 0) return -1;
    return is_mode("nothing") ? 0 : syscall(SYS_pwrite64, fd, data, (size_t)allowed, offset);
}

ssize_t pread64(int fd, void* data, size_t nbytes, off64_t offset) {
    long allowed = decide(nbytes);
    return allowed < 0 ? -1 : syscall(SYS_pread64, fd, data, (size_t)allowed, offset);
}

ssize_t pwrite(int fd, const void* data, size_t nbytes, off_t offset) { return pwrite64(fd, data, nbytes, offset); }
ssize_t pread(int fd, void* data, size_t nbytes, off_t offset) { return pread64(fd, data, nbytes, offset); }

ssize_t preadv64(int fd, const struct iovec* parts, int n_parts, off64_t offset) {
    return n_parts == 0 ? 0 : pread64(fd, parts[0].iov_base, parts[0].iov_len, offset);
}
ssize_t preadv(int fd, const struct iovec* parts, int n_parts, off_t offset) {
    return preadv64(fd, parts, n_parts, offset);
}

ssize_t preadv64v2(int fd, const struct iovec* parts, int n_parts, off64_t offset, int flags) {
    (void)flags;
    return preadv64(fd, parts, n_parts, offset);
}
ssize_t preadv2(int fd, const struct iovec* parts, int n_parts, off_t offset, int flags) {
    return preadv64v2(fd, parts, n_parts, offset, flags);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t nbytes) {
    if (is_mode("signal")) {
        errno = EINTR;
        return -1;
    }
    if (!is_mode("no-fallocate")) return (int)syscall(SYS_fallocate, fd, mode, offset, nbytes);
    errno = EOPNOTSUPP;
    return -1;
}
int fallocate(int fd, int mode, off_t offset, off_t nbytes) { return fallocate64(fd, mode, offset, nbytes); }

/* As glibc has it, which writes where the file system cannot preallocate: here, into the last block only. */
int posix_fallocate64(int fd, off64_t offset, off64_t nbytes) {
    if (fallocate64(fd, 0, offset, nbytes) == 0) return 0;
    if (errno != EOPNOTSUPP) return errno;
    return syscall(SYS_pwrite64, fd, "", (size_t)1, offset + nbytes - 1) == 1 ? 0 : errno;
}
int posix_fallocate(int fd, off_t offset, off_t nbytes) { return posix_fallocate64(fd, offset, nbytes); }
