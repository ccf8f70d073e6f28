/* Preloaded before libc: file operations below one directory fail, are cut short or are slow, at a chosen position.
 *
 * Calls on paths below the watched directory that have `selected` in them (any of their names, as /proc sees it) are
 * counted; those at positions first <= n < last fail.  With `wanted` = 0 each kind of call fails in a separate one
 * ways, chosen by `variant`; else only the calls that can fail with the error `wanted` count.  All of it is armed, and
 * asked afterwards what it did, through ctypes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SHORT = 100000, FULL, LOST, MAX_ERRORS = 8, MAX_POISONED = 64, LOG_BYTES = 1 << 20 };

struct kind {
    const char* name;
    int errors[MAX_ERRORS]; /* ends with 0 */
};

static const struct kind OPEN = {"open", {EMFILE, EACCES, EIO, EINTR, 0}};
static const struct kind CREATE = {"create", {ENOSPC, EDQUOT, EROFS, EMFILE, EACCES, EIO, EINTR, 0}};
static const struct kind READ = {"read", {EIO, SHORT, EINTR, 0}};
static const struct kind WRITE = {"write", {ENOSPC, EDQUOT, EIO, SHORT, EINTR, EROFS, 0}};
static const struct kind SYNC = {"fsync", {EIO, ENOSPC, EDQUOT, 0}};
static const struct kind CLOSE = {"close", {EIO, ENOSPC, EDQUOT, 0}};
static const struct kind RENAME = {"rename", {EIO, ENOSPC, EDQUOT, EROFS, EACCES, LOST, 0}};
static const struct kind MAKE = {"mkdir", {ENOSPC, EDQUOT, EROFS, EACCES, EMLINK, EIO, 0}};
static const struct kind LINK = {"link", {EMLINK, ENOSPC, EDQUOT, EROFS, EPERM, EIO, LOST, 0}};
static const struct kind UNLINK = {"unlink", {EIO, EROFS, EACCES, LOST, 0}};
static const struct kind ALLOCATE = {"fallocate", {ENOSPC, EDQUOT, EIO, EROFS, EOPNOTSUPP, EINTR, 0}};
static const struct kind TRUNCATE = {"ftruncate", {EIO, EROFS, 0}};
static const struct kind STAT = {"stat", {EIO, EACCES, 0}};
static const struct kind SPACE = {"statvfs", {EIO, FULL, 0}};
static const struct kind LIST = {"list", {EMFILE, EIO, EACCES, 0}};
static const struct kind TOUCH = {"utime", {EIO, EROFS, EACCES, 0}};
static const struct kind THREAD = {"pthread_create", {EAGAIN, 0}};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static char watched[PATH_MAX], selected[256], notes[LOG_BYTES];
static size_t n_noted;
static long first, last, n_seen, delay_us;
static int wanted, variant, is_armed;
static int poisoned[MAX_POISONED];
static int n_poisoned;

#define NEXT(type, name, ...) ((type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

/* -- arming, and asking ------------------------------------------------------------------------- */

void shim_arm(const char* below, const char* part, long from, long to, int error, int choice, long slow_us) {
    pthread_mutex_lock(&guard);
    snprintf(watched, sizeof watched, "%s", below);
    snprintf(selected, sizeof selected, "%s", part);
    first = from, last = to, wanted = error, variant = choice, delay_us = slow_us;
    n_seen = 0, n_noted = 0, notes[0] = 0, is_armed = 1;
    pthread_mutex_unlock(&guard);
}

void shim_disarm(void) { __atomic_store_n(&is_armed, 0, __ATOMIC_SEQ_CST); }
const char* shim_notes(void) { return notes; }

/* Files whose fsync failed; they are kept open, so that no other file gets their number. */
int shim_poisoned(unsigned long long* numbers) {
    struct stat found;
    for (int i = 0; i < n_poisoned; ++i) numbers[i] = fstat(poisoned[i], &found) == 0 ? found.st_ino : 0;
    return n_poisoned;
}

/* -- deciding ------------------------------------------------------------------------------------ */

static int can_fail_with(const struct kind* kind, int error) {
    for (int i = 0; kind->errors[i] != 0; ++i) {
        if (kind->errors[i] == error) return 1;
    }
    return 0;
}

static int choose(const struct kind* kind) {
    int count = 0;
    while (kind->errors[count] != 0) ++count;
    return wanted != 0 ? wanted : kind->errors[variant % count];
}

static void note(const struct kind* kind, int error, const char* path) {
    int n = snprintf(notes + n_noted, LOG_BYTES - n_noted, "%d %s %s\n", error, kind->name, path);
    if (n > 0 && n_noted + (size_t)n < LOG_BYTES) n_noted += (size_t)n;
}

static void resolve(int directory, const char* name, char* path) {
    char link[64];
    path[0] = 0;
    if (name != NULL && (name[0] == '/' || directory == AT_FDCWD)) {
        snprintf(path, PATH_MAX, "%s", name);
        return;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t n = readlink(link, path, PATH_MAX - 2);
    if (n < 0) n = 0;
    path[n] = 0;
    if (name != NULL && n > 0) snprintf(path + n, (size_t)(PATH_MAX - n), "/%s", name);
}

/* Returns the error that the call is to fail with, or 0. */
static int decide(const struct kind* kind, int directory, const char* name) {
    char path[PATH_MAX];
    if (!__atomic_load_n(&is_armed, __ATOMIC_SEQ_CST)) return 0;
    int saved = errno;
    if (kind == &THREAD) {
        snprintf(path, sizeof path, "%.4000s/pthread", watched);
    } else {
        resolve(directory, name, path);
    }
    int error = 0;
    long pause_us = 0;
    pthread_mutex_lock(&guard);
    int is_watched = is_armed && strncmp(path, watched, strlen(watched)) == 0;
    int is_kind = wanted == 0 ? kind != &THREAD : can_fail_with(kind, wanted);
    if (is_watched && is_kind && strstr(path, selected) != NULL) {
        int is_hit = n_seen >= first && n_seen < last;
        ++n_seen;
        pause_us = is_hit ? delay_us : 0;
        if (is_hit && delay_us == 0) error = choose(kind);
    }
    if (is_watched && (is_kind || kind != &THREAD)) note(kind, error, path);
    pthread_mutex_unlock(&guard);
    if (pause_us > 0) usleep((useconds_t)pause_us);
    errno = saved;
    return error;
}

static int fails(const struct kind* kind, int directory, const char* name) {
    int error = decide(kind, directory, name);
    if (error == 0) return 0;
    errno = error;
    return 1;
}

/* -- names: those that CPython and our native part call, all for large files ------------------------ */

static int open_any(int directory, const char* name, int flags, mode_t mode) {
    if (fails((flags & O_CREAT) != 0 ? &CREATE : &OPEN, directory, name)) return -1;
    return NEXT(int, "openat64", int, const char*, int, ...)(directory, name, flags, mode);
}

int open64(const char* name, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_any(AT_FDCWD, name, flags, mode);
}

int openat64(int directory, const char* name, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_any(directory, name, flags, mode);
}

DIR* opendir(const char* name) {
    if (fails(&LIST, AT_FDCWD, name)) return NULL;
    return NEXT(DIR*, "opendir", const char*)(name);
}

DIR* fdopendir(int fd) {
    if (fails(&LIST, fd, NULL)) return NULL;
    return NEXT(DIR*, "fdopendir", int)(fd);
}

int mkdir(const char* name, mode_t mode) {
    if (fails(&MAKE, AT_FDCWD, name)) return -1;
    return NEXT(int, "mkdir", const char*, mode_t)(name, mode);
}

/* Fails a call, or has it made and its answer lost, as NFS may: the caller is told EIO. */
#define ANSWER(kind, directory, name, call)                  \
    int error = decide(&kind, directory, name), result = -1; \
    if (error == 0 || error == LOST) result = (call);        \
    if (error != 0) errno = error == LOST ? EIO : error;     \
    return error != 0 ? -1 : result

int rename(const char* from, const char* to) {
    ANSWER(RENAME, AT_FDCWD, to, NEXT(int, "rename", const char*, const char*)(from, to));
}

int renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) {
    ANSWER(RENAME, to_dir, to,
           NEXT(int, "renameat2", int, const char*, int, const char*, unsigned)(from_dir, from, to_dir, to, flags));
}

int link(const char* from, const char* to) {
    ANSWER(LINK, AT_FDCWD, to, NEXT(int, "link", const char*, const char*)(from, to));
}

int linkat(int from_dir, const char* from, int to_dir, const char* to, int flags) {
    ANSWER(LINK, to_dir, to,
           NEXT(int, "linkat", int, const char*, int, const char*, int)(from_dir, from, to_dir, to, flags));
}

int unlink(const char* name) { ANSWER(UNLINK, AT_FDCWD, name, NEXT(int, "unlink", const char*)(name)); }

int unlinkat(int directory, const char* name, int flags) {
    ANSWER(UNLINK, directory, name, NEXT(int, "unlinkat", int, const char*, int)(directory, name, flags));
}

int rmdir(const char* name) { ANSWER(UNLINK, AT_FDCWD, name, NEXT(int, "rmdir", const char*)(name)); }

int stat64(const char* name, struct stat64* found) {
    if (fails(&STAT, AT_FDCWD, name)) return -1;
    return NEXT(int, "stat64", const char*, struct stat64*)(name, found);
}

int lstat64(const char* name, struct stat64* found) {
    if (fails(&STAT, AT_FDCWD, name)) return -1;
    return NEXT(int, "lstat64", const char*, struct stat64*)(name, found);
}

int fstatat64(int directory, const char* name, struct stat64* found, int flags) {
    if (fails(&STAT, directory, name)) return -1;
    return NEXT(int, "fstatat64", int, const char*, struct stat64*, int)(directory, name, found, flags);
}

int utimensat(int directory, const char* name, const struct timespec times[2], int flags) {
    if (fails(&TOUCH, directory, name)) return -1;
    return NEXT(int, "utimensat", int, const char*, const struct timespec*, int)(directory, name, times, flags);
}

int statvfs64(const char* name, struct statvfs64* found) {
    int error = decide(&SPACE, AT_FDCWD, name);
    if (error != 0 && error != FULL) {
        errno = error;
        return -1;
    }
    int done = NEXT(int, "statvfs64", const char*, struct statvfs64*)(name, found);
    if (error == FULL) found->f_bavail = 0;
    return done;
}

/* -- open files ------------------------------------------------------------------------------------ */

int fstat64(int fd, struct stat64* found) {
    if (fails(&STAT, fd, NULL)) return -1;
    return NEXT(int, "fstat64", int, struct stat64*)(fd, found);
}

/* The file is closed all the same, as Linux does. */
int close(int fd) {
    int error = decide(&CLOSE, fd, NULL);
    int done = NEXT(int, "close", int)(fd);
    if (error == 0) return done;
    errno = error;
    return -1;
}

static int fails_to_sync(int fd) {
    int error = decide(&SYNC, fd, NULL);
    if (error == 0) return 0;
    int kept = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    pthread_mutex_lock(&guard);
    if (kept >= 0 && n_poisoned < MAX_POISONED) poisoned[n_poisoned++] = kept;
    pthread_mutex_unlock(&guard);
    errno = error;
    return 1;
}

int fsync(int fd) { return fails_to_sync(fd) ? -1 : NEXT(int, "fsync", int)(fd); }
int fdatasync(int fd) { return fails_to_sync(fd) ? -1 : NEXT(int, "fdatasync", int)(fd); }

int ftruncate64(int fd, off64_t nbytes) {
    if (fails(&TRUNCATE, fd, NULL)) return -1;
    return NEXT(int, "ftruncate64", int, off64_t)(fd, nbytes);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t nbytes) {
    if (fails(&ALLOCATE, fd, NULL)) return -1;
    return NEXT(int, "fallocate64", int, int, off64_t, off64_t)(fd, mode, offset, nbytes);
}

/* Returns how many bytes to move, or -1 with errno. */
static ssize_t allowed(const struct kind* kind, int fd, size_t nbytes) {
    int error = decide(kind, fd, NULL);
    if (error == 0) return (ssize_t)nbytes;
    if (error == SHORT) return (ssize_t)(nbytes > 1 ? nbytes / 2 : nbytes);
    errno = error;
    return -1;
}

ssize_t pwrite64(int fd, const void* data, size_t nbytes, off64_t offset) {
    ssize_t n = allowed(&WRITE, fd, nbytes);
    return n < 0 ? n : NEXT(ssize_t, "pwrite64", int, const void*, size_t, off64_t)(fd, data, (size_t)n, offset);
}

ssize_t pread64(int fd, void* data, size_t nbytes, off64_t offset) {
    ssize_t n = allowed(&READ, fd, nbytes);
    return n < 0 ? n : NEXT(ssize_t, "pread64", int, void*, size_t, off64_t)(fd, data, (size_t)n, offset);
}

ssize_t write(int fd, const void* data, size_t nbytes) {
    ssize_t n = allowed(&WRITE, fd, nbytes);
    return n < 0 ? n : NEXT(ssize_t, "write", int, const void*, size_t)(fd, data, (size_t)n);
}

ssize_t read(int fd, void* data, size_t nbytes) {
    ssize_t n = allowed(&READ, fd, nbytes);
    return n < 0 ? n : NEXT(ssize_t, "read", int, void*, size_t)(fd, data, (size_t)n);
}

int pthread_create(pthread_t* id, const pthread_attr_t* how, void* (*body)(void*), void* argument) {
    int error = decide(&THREAD, AT_FDCWD, NULL);
    if (error != 0) return error;
    return NEXT(int, "pthread_create", pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)(id, how, body,
                                                                                                   argument);
}
