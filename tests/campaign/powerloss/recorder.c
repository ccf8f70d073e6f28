/* Preloaded before libc: writes every change of files and directories, with its data, to a log.
 *
 * A call and its record are one under a lock, so the log has the order in which the calls took place, over all
 * threads.  Files are named by inode number: descriptors need no following, and a rename moves nothing.  Only what
 * succeeded is recorded.  What the model does not know is recorded as UNKNOWN, which fails the campaign. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { CREATE = 1, MKDIR, LINK, UNLINK, RMDIR, RENAME, EXCHANGE, WRITE, TRUNCATE, ALLOCATE, SYNC, MARK, UNKNOWN };

/* Followed by the names and the data. */
struct record {
    uint32_t kind;
    uint32_t mode;
    uint64_t node, parent, parent2;
    uint64_t offset, nbytes;
    uint32_t name_len, name2_len;
    uint64_t data_len;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static dev_t device;

/* -- the log ------------------------------------------------------------------------------------------------- */

static void append(const void* data, size_t nbytes) {
    const char* bytes = data;
    while (nbytes > 0) {
        long done = syscall(SYS_write, log_fd, bytes, nbytes);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) abort();
        bytes += done;
        nbytes -= (size_t)done;
    }
}

static void put(struct record record, const char* name, const char* name2, const void* data) {
    int saved = errno;
    record.name_len = name != NULL ? (uint32_t)strlen(name) : 0;
    record.name2_len = name2 != NULL ? (uint32_t)strlen(name2) : 0;
    append(&record, sizeof record);
    append(name, record.name_len);
    append(name2, record.name2_len);
    append(data, record.data_len);
    errno = saved;
}

int powerloss_start(const char* root, const char* log) {
    struct stat found;
    if (stat(root, &found) != 0) return -1;
    device = found.st_dev;
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return log_fd < 0 ? -1 : 0;
}

void powerloss_stop(void) {
    pthread_mutex_lock(&guard);
    if (log_fd >= 0) syscall(SYS_close, log_fd);
    log_fd = -1;
    pthread_mutex_unlock(&guard);
}

void powerloss_mark(const char* text) {
    pthread_mutex_lock(&guard);
    if (log_fd >= 0) put((struct record){.kind = MARK}, text, NULL, NULL);
    pthread_mutex_unlock(&guard);
}

/* -- what a path or a descriptor represents ------------------------------------------------------------------- */

static int is_ours(const struct stat* found) { return log_fd >= 0 && found->st_dev == device; }

static uint64_t node_at(int dir, const char* path) {
    struct stat found;
    return fstatat(dir, path, &found, AT_SYMLINK_NOFOLLOW) == 0 && is_ours(&found) ? found.st_ino : 0;
}

/* Splits a path into its directory, by inode, and its last part, which `name` receives. */
static uint64_t split(int dir, const char* path, char name[NAME_MAX + 1]) {
    char copy[PATH_MAX];
    size_t length = strnlen(path, PATH_MAX - 1);
    while (length > 1 && path[length - 1] == '/') --length;
    memcpy(copy, path, length);
    copy[length] = 0;
    char* slash = strrchr(copy, '/');
    const char* last = slash != NULL ? slash + 1 : copy;
    memccpy(name, last, 0, NAME_MAX);
    name[NAME_MAX] = 0;
    if (slash != NULL) slash[slash == copy ? 1 : 0] = 0;
    struct stat found;
    const char* where = slash != NULL ? copy : ".";
    return fstatat(dir, where, &found, 0) == 0 && is_ours(&found) ? found.st_ino : 0;
}

static uint64_t file_of(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 && is_ours(&found) && !S_ISFIFO(found.st_mode) ? found.st_ino : 0;
}

static void begin(void) { pthread_mutex_lock(&guard); }

static long end(long result) {
    pthread_mutex_unlock(&guard);
    return result;
}

static void note_unknown(const char* what) {
    if (log_fd >= 0) put((struct record){.kind = UNKNOWN}, what, NULL, NULL);
}

/* -- names ---------------------------------------------------------------------------------------------------- */

static int open_file(int dir, const char* path, int flags, mode_t mode) {
    char name[NAME_MAX + 1];
    begin();
    struct stat old;
    int is_there = fstatat(dir, path, &old, 0) == 0;
    long fd = syscall(SYS_openat, dir, path, flags, mode);
    uint64_t node = fd >= 0 && log_fd >= 0 && (flags & O_ACCMODE) != O_RDONLY ? file_of((int)fd) : 0;
    if (node != 0 && (flags & (O_SYNC | O_DSYNC)) != 0) note_unknown("open with O_SYNC or O_DSYNC");
    if (node != 0 && (flags & O_CREAT) != 0 && !is_there)
        put((struct record){.kind = CREATE, .node = node, .parent = split(dir, path, name)}, name, NULL, NULL);
    else if (node != 0 && (flags & O_TRUNC) != 0)
        put((struct record){.kind = TRUNCATE, .node = node}, NULL, NULL, NULL);
    return (int)end(fd);
}

static mode_t mode_of(int flags, va_list rest) {
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? (mode_t)va_arg(rest, int) : 0;
}

#define OPEN(NAME)                                     \
    int NAME(const char* path, int flags, ...) {       \
        va_list rest;                                  \
        va_start(rest, flags);                         \
        mode_t mode = mode_of(flags, rest);            \
        va_end(rest);                                  \
        return open_file(AT_FDCWD, path, flags, mode); \
    }
#define OPENAT(NAME)                                      \
    int NAME(int dir, const char* path, int flags, ...) { \
        va_list rest;                                     \
        va_start(rest, flags);                            \
        mode_t mode = mode_of(flags, rest);               \
        va_end(rest);                                     \
        return open_file(dir, path, flags, mode);         \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
int creat(const char* path, mode_t mode) { return open_file(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char* path, mode_t mode) { return creat(path, mode); }

int mkdirat(int dir, const char* path, mode_t mode) {
    char name[NAME_MAX + 1];
    begin();
    long result = syscall(SYS_mkdirat, dir, path, mode);
    if (result == 0 && log_fd >= 0) {
        uint64_t parent = split(dir, path, name);
        put((struct record){.kind = MKDIR, .node = node_at(dir, path), .parent = parent}, name, NULL, NULL);
    }
    return (int)end(result);
}
int mkdir(const char* path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int linkat(int dir, const char* path, int dir2, const char* path2, int flags) {
    char name[NAME_MAX + 1];
    begin();
    long result = syscall(SYS_linkat, dir, path, dir2, path2, flags);
    if (result == 0 && log_fd >= 0) {
        uint64_t parent = split(dir2, path2, name);
        put((struct record){.kind = LINK, .node = node_at(dir2, path2), .parent = parent}, name, NULL, NULL);
    }
    return (int)end(result);
}
int link(const char* path, const char* path2) { return linkat(AT_FDCWD, path, AT_FDCWD, path2, 0); }

int unlinkat(int dir, const char* path, int flags) {
    char name[NAME_MAX + 1];
    begin();
    uint64_t node = node_at(dir, path), parent = split(dir, path, name);
    long result = syscall(SYS_unlinkat, dir, path, flags);
    if (result == 0 && parent != 0) {
        uint32_t kind = (flags & AT_REMOVEDIR) != 0 ? RMDIR : UNLINK;
        put((struct record){.kind = kind, .node = node, .parent = parent}, name, NULL, NULL);
    }
    return (int)end(result);
}
int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) {
    int result = unlink(path);
    return result != 0 && errno == EISDIR ? rmdir(path) : result;
}

int renameat2(int dir, const char* path, int dir2, const char* path2, unsigned flags) {
    char name[NAME_MAX + 1], name2[NAME_MAX + 1];
    if ((flags & RENAME_EXCHANGE) != 0 && getenv("POWERLOSS_NO_EXCHANGE") != NULL) {
        errno = EINVAL;
        return -1;
    }
    begin();
    uint64_t node = node_at(dir, path), parent = split(dir, path, name), parent2 = split(dir2, path2, name2);
    long result = syscall(SYS_renameat2, dir, path, dir2, path2, flags);
    if (result == 0 && (parent != 0 || parent2 != 0)) {
        uint32_t kind = (flags & RENAME_EXCHANGE) != 0 ? EXCHANGE : RENAME;
        put((struct record){.kind = kind, .node = node, .parent = parent, .parent2 = parent2}, name, name2, NULL);
    }
    return (int)end(result);
}
int renameat(int dir, const char* path, int dir2, const char* path2) { return renameat2(dir, path, dir2, path2, 0); }
int rename(const char* path, const char* path2) { return renameat2(AT_FDCWD, path, AT_FDCWD, path2, 0); }

int symlinkat(const char* target, int dir, const char* path) {
    begin();
    note_unknown("symlink");
    return (int)end(syscall(SYS_symlinkat, target, dir, path));
}
int symlink(const char* target, const char* path) { return symlinkat(target, AT_FDCWD, path); }

/* -- bytes ---------------------------------------------------------------------------------------------------- */

static void note_write(int fd, const void* data, long done, off64_t offset) {
    uint64_t node = done > 0 ? file_of(fd) : 0;
    if (node != 0)
        put((struct record){.kind = WRITE,
                            .node = node,
                            .offset = (uint64_t)offset,
                            .nbytes = (uint64_t)done,
                            .data_len = (uint64_t)done},
            NULL, NULL, data);
}

ssize_t pwrite64(int fd, const void* data, size_t nbytes, off64_t offset) {
    begin();
    long done = syscall(SYS_pwrite64, fd, data, nbytes, offset);
    note_write(fd, data, done, offset);
    return end(done);
}
ssize_t pwrite(int fd, const void* data, size_t nbytes, off_t offset) { return pwrite64(fd, data, nbytes, offset); }

ssize_t write(int fd, const void* data, size_t nbytes) {
    begin();
    long done = syscall(SYS_write, fd, data, nbytes);
    int saved = errno;
    note_write(fd, data, done, done > 0 ? lseek64(fd, 0, SEEK_CUR) - done : 0);
    errno = saved;
    return end(done);
}

/* A vector is written piece by piece: short writes are allowed. */
ssize_t pwritev64(int fd, const struct iovec* parts, int n_parts, off64_t offset) {
    for (int i = 0; i < n_parts; ++i)
        if (parts[i].iov_len > 0) return pwrite64(fd, parts[i].iov_base, parts[i].iov_len, offset);
    return 0;
}
ssize_t pwritev(int fd, const struct iovec* parts, int n_parts, off_t offset) {
    return pwritev64(fd, parts, n_parts, offset);
}
ssize_t writev(int fd, const struct iovec* parts, int n_parts) {
    for (int i = 0; i < n_parts; ++i)
        if (parts[i].iov_len > 0) return write(fd, parts[i].iov_base, parts[i].iov_len);
    return 0;
}
ssize_t pwritev64v2(int fd, const struct iovec* parts, int n_parts, off64_t offset, int flags) {
    if (flags != 0) note_unknown("pwritev2 with flags");
    return offset == -1 ? writev(fd, parts, n_parts) : pwritev64(fd, parts, n_parts, offset);
}
ssize_t pwritev2(int fd, const struct iovec* parts, int n_parts, off_t offset, int flags) {
    return pwritev64v2(fd, parts, n_parts, offset, flags);
}

int ftruncate64(int fd, off64_t nbytes) {
    begin();
    long result = syscall(SYS_ftruncate, fd, nbytes);
    uint64_t node = result == 0 ? file_of(fd) : 0;
    if (node != 0) put((struct record){.kind = TRUNCATE, .node = node, .nbytes = (uint64_t)nbytes}, NULL, NULL, NULL);
    return (int)end(result);
}
int ftruncate(int fd, off_t nbytes) { return ftruncate64(fd, nbytes); }

int truncate64(const char* path, off64_t nbytes) {
    begin();
    long result = syscall(SYS_truncate, path, nbytes);
    uint64_t node = result == 0 ? node_at(AT_FDCWD, path) : 0;
    if (node != 0) put((struct record){.kind = TRUNCATE, .node = node, .nbytes = (uint64_t)nbytes}, NULL, NULL, NULL);
    return (int)end(result);
}
int truncate(const char* path, off_t nbytes) { return truncate64(path, nbytes); }

int fallocate64(int fd, int mode, off64_t offset, off64_t nbytes) {
    begin();
    long result = syscall(SYS_fallocate, fd, mode, offset, nbytes);
    uint64_t node = result == 0 ? file_of(fd) : 0;
    if (node != 0)
        put((struct record){.kind = ALLOCATE,
                            .mode = (uint32_t)mode,
                            .node = node,
                            .offset = (uint64_t)offset,
                            .nbytes = (uint64_t)nbytes},
            NULL, NULL, NULL);
    return (int)end(result);
}
int fallocate(int fd, int mode, off_t offset, off_t nbytes) { return fallocate64(fd, mode, offset, nbytes); }

int posix_fallocate64(int fd, off64_t offset, off64_t nbytes) {
    return fallocate64(fd, 0, offset, nbytes) == 0 ? 0 : errno;
}
int posix_fallocate(int fd, off_t offset, off_t nbytes) { return posix_fallocate64(fd, offset, nbytes); }

void* mmap64(void* at, size_t nbytes, int protection, int flags, int fd, off64_t offset) {
    int is_writing = fd >= 0 && (flags & MAP_SHARED) != 0 && (protection & PROT_WRITE) != 0;
    begin();
    if (is_writing && file_of(fd) != 0) note_unknown("shared, writable mapping of a file");
    pthread_mutex_unlock(&guard);
    return (void*)syscall(SYS_mmap, at, nbytes, protection, flags, fd, offset);
}
void* mmap(void* at, size_t nbytes, int protection, int flags, int fd, off_t offset) {
    return mmap64(at, nbytes, protection, flags, fd, offset);
}

ssize_t copy_file_range(int in, off64_t* in_at, int out, off64_t* out_at, size_t nbytes, unsigned flags) {
    begin();
    if (file_of(out) != 0) note_unknown("copy_file_range");
    return end(syscall(SYS_copy_file_range, in, in_at, out, out_at, nbytes, flags));
}
ssize_t sendfile64(int out, int in, off64_t* offset, size_t nbytes) {
    begin();
    if (file_of(out) != 0) note_unknown("sendfile");
    return end(syscall(SYS_sendfile, out, in, offset, nbytes));
}
ssize_t sendfile(int out, int in, off_t* offset, size_t nbytes) { return sendfile64(out, in, offset, nbytes); }

/* -- durability: what sync_file_range does is none --------------------------------------------------------------- */

static int sync_file(long number, int fd) {
    begin();
    long result = syscall(number, fd);
    uint64_t node = result == 0 ? file_of(fd) : 0;
    if (node != 0) put((struct record){.kind = SYNC, .node = node}, NULL, NULL, NULL);
    return (int)end(result);
}
int fsync(int fd) { return sync_file(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_file(SYS_fdatasync, fd); }
void sync(void) {
    begin();
    note_unknown("sync");
    syscall(SYS_sync);
    end(0);
}
int syncfs(int fd) {
    begin();
    note_unknown("syncfs");
    return (int)end(syscall(SYS_syncfs, fd));
}
