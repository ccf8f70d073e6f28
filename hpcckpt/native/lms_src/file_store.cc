#include "file_store.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "pool.h"

namespace hpcckpt {
namespace lms {
namespace {

constexpr std::size_t kBounceBytes = std::size_t{4} << 20;
constexpr std::size_t kMostAtOnce = std::size_t{64} << 20;
constexpr long kTmpfsMagic = 0x01021994;
constexpr int kMaxIdle = 3;  // consecutive transfers that move less than one unit
constexpr int kMaxTries = 10;

// Aligned memory of an engine thread: the file is written from it if a tensor's address is not aligned.
char* bounce() {
    thread_local auto* const memory = static_cast<char*>(Pool::one().take(kBounceBytes).data);
    return memory;
}

int make_named(const std::string& directory, int flags) {
    std::string path = directory + "/.hpcckpt-lms-XXXXXX";
    const int fd = mkostemp(path.data(), O_CLOEXEC | flags);
    if (fd >= 0) unlink(path.c_str());
    return fd;
}

int make_nameless(const std::string& directory, int flags, bool is_named) {
    if (!is_named) {
        const int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
        if (fd >= 0 || errno == EACCES || errno == ENOENT || errno == ENOSPC) return fd;
    }
    return make_named(directory, flags);
}

bool is_tmpfs(int fd) {
    struct statfs told;
    return fstatfs(fd, &told) == 0 && told.f_type == kTmpfsMagic;
}

// After a short transfer the rest begins at a multiple of `unit`, as O_DIRECT requires; the cause of the short transfer
// is then reported.
template <typename Move>
int move_all(std::size_t nbytes, std::size_t unit, Move move) {
    int n_idle = 0;
    for (std::size_t done = 0; done < nbytes;) {
        const ssize_t moved = move(done, std::min(nbytes - done, kMostAtOnce));
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0) return errno;
        const std::size_t end = done + static_cast<std::size_t>(moved);
        const std::size_t next = end == nbytes ? end : end / unit * unit;
        n_idle = next > done ? 0 : n_idle + 1;
        if (moved == 0 || n_idle == kMaxIdle) return EIO;
        done = next;
    }
    return 0;
}

int write_all(int fd, const char* data, std::size_t nbytes, off_t offset, std::size_t unit) {
    return move_all(nbytes, unit, [&](std::size_t done, std::size_t part) {
        return pwrite(fd, data + done, part, offset + static_cast<off_t>(done));
    });
}

int read_all(int fd, char* data, std::size_t nbytes, off_t offset, std::size_t unit) {
    return move_all(nbytes, unit, [&](std::size_t done, std::size_t part) {
        return pread(fd, data + done, part, offset + static_cast<off_t>(done));
    });
}

// Returns 0 or errno.  A file system that cannot allocate, or is always interrupted, is not an error: then a full one
// fails the write.  Where a signal makes it begin again, one that comes often enough would keep it from ever ending.
int allocate(int fd, off_t offset, off_t nbytes) {
    int error, n_tries = kMaxTries;
    do {
        error = fallocate(fd, 0, offset, nbytes) == 0 ? 0 : errno;
    } while (error == EINTR && --n_tries > 0);
    return error == EOPNOTSUPP || error == ENOSYS || error == EINTR ? 0 : error;
}

// Some file systems take the flag and refuse to write.
bool writes_directly(int fd) {
    const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(kFilePage, kFilePage), &std::free);
    if (page == nullptr) return true;
    std::memset(page.get(), 0, kFilePage);
    const bool is_refused = pwrite(fd, page.get(), kFilePage, 0) < 0 && errno == EINVAL;
    return ftruncate(fd, 0) == 0 && !is_refused;
}

// The memory alignment for O_DIRECT, if the kernel reports it.
std::size_t alignment_of_memory(int fd, std::size_t otherwise) {
#ifdef STATX_DIOALIGN
    struct statx told{};
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &told) == 0 &&
        (told.stx_mask & STATX_DIOALIGN) != 0 && told.stx_dio_mem_align > 0) {
        return told.stx_dio_mem_align;
    }
#endif
    return otherwise;
}

}  // namespace

std::shared_ptr<FileStore> FileStore::open(const Config& config, IoError* error) {
    struct stat told;
    if (stat(config.directory.c_str(), &told) != 0) {
        *error = {errno, std::strerror(errno)};
        return nullptr;
    }
    if (!S_ISDIR(told.st_mode)) {
        *error = {ENOTDIR, std::strerror(ENOTDIR)};
        return nullptr;
    }
    bool is_direct = true;
    int fd = make_nameless(config.directory, O_DIRECT, config.is_named);
    if (fd >= 0 && (is_tmpfs(fd) || !writes_directly(fd))) {
        ::close(fd);
        fd = -1;
        errno = EINVAL;
    }
    if (fd < 0 && errno == EINVAL) {
        is_direct = false;
        fd = make_nameless(config.directory, 0, config.is_named);
    }
    if (fd >= 0) return std::shared_ptr<FileStore>(new FileStore(fd, config, is_direct));
    *error = {errno, std::strerror(errno)};
    return nullptr;
}

FileStore::FileStore(int fd, const Config& config, bool is_direct)
    : fd_(fd), directory_(config.directory), limit_(config.file_limit), is_direct_(is_direct) {
    if (is_direct) memory_alignment_ = alignment_of_memory(fd, kDefaultMemoryAlignment);
    if (is_tmpfs(fd)) {
        notes_ = "is on tmpfs, which is memory itself: what is swapped there frees nothing on this machine";
    } else if (!is_direct) {
        notes_ =
            "has no O_DIRECT: what is swapped also passes through the page cache, which counts as this job's memory";
    }
}

FileStore::~FileStore() { ::close(fd_); }

off_t FileStore::take(std::size_t nbytes, IoError* error) {
    const std::lock_guard<std::mutex> lock(lock_);
    const auto wanted = static_cast<off_t>(whole_file_pages(nbytes));
    if (limit_ > 0 && extents_.used() + wanted > limit_) {
        *error = {ENOSPC, "its limit is " + std::to_string(limit_) + " bytes"};
        return -1;
    }
    const Extents::Taken taken = extents_.take(wanted);
    const off_t end = extents_.end();
    const int code = end > taken.end_before ? allocate(fd_, taken.end_before, end - taken.end_before) : 0;
    if (code != 0) {
        *error = {code, std::strerror(code)};
        extents_.refuse(taken, wanted);
        return -1;
    }
    peak_ = std::max(peak_, extents_.used());
    return taken.offset;
}

void FileStore::give(off_t offset, std::size_t nbytes) {
    const std::lock_guard<std::mutex> lock(lock_);
    extents_.give(offset, static_cast<off_t>(whole_file_pages(nbytes)));
}

bool FileStore::shrink() {
    const std::lock_guard<std::mutex> lock(lock_);
    const off_t end = extents_.end(), used_end = extents_.used_end();
    if (end - used_end > end / 2 && ftruncate(fd_, used_end) == 0) extents_.cut_end();
    return extents_.end() > 0;
}

off_t FileStore::size() const {
    const std::lock_guard<std::mutex> lock(lock_);
    return extents_.end();
}

off_t FileStore::used() const {
    const std::lock_guard<std::mutex> lock(lock_);
    return extents_.used();
}

off_t FileStore::peak() const {
    const std::lock_guard<std::mutex> lock(lock_);
    return peak_;
}

void FileStore::reset_peak() {
    const std::lock_guard<std::mutex> lock(lock_);
    peak_ = extents_.used();
}

bool FileStore::fits(const void* data) const { return reinterpret_cast<std::uintptr_t>(data) % memory_alignment_ == 0; }

int FileStore::write(const char* data, std::size_t nbytes, off_t offset) {
    if (!is_direct_) return write_all(fd_, data, nbytes, offset, 1);
    const std::size_t straight = fits(data) ? nbytes / kFilePage * kFilePage : 0;
    const int error = write_all(fd_, data, straight, offset, kFilePage);
    if (error != 0) return error;
    return write_through(data + straight, nbytes - straight, offset + static_cast<off_t>(straight));
}

int FileStore::write_through(const char* data, std::size_t nbytes, off_t offset) {
    char* memory = bounce();
    if (memory == nullptr) return ENOMEM;
    for (std::size_t done = 0; done < nbytes; done += kBounceBytes) {
        const std::size_t part = std::min(nbytes - done, kBounceBytes);
        std::memcpy(memory, data + done, part);
        const int error = write_all(fd_, memory, whole_file_pages(part), offset + static_cast<off_t>(done), kFilePage);
        if (error != 0) return error;
    }
    return 0;
}

int FileStore::read(char* data, std::size_t nbytes, off_t offset) {
    if (!is_direct_) return read_all(fd_, data, nbytes, offset, 1);
    const std::size_t straight = fits(data) ? nbytes / kFilePage * kFilePage : 0;
    const int error = read_all(fd_, data, straight, offset, kFilePage);
    if (error != 0) return error;
    return read_through(data + straight, nbytes - straight, offset + static_cast<off_t>(straight));
}

int FileStore::read_through(char* data, std::size_t nbytes, off_t offset) {
    char* memory = bounce();
    if (memory == nullptr) return ENOMEM;
    for (std::size_t done = 0; done < nbytes; done += kBounceBytes) {
        const std::size_t part = std::min(nbytes - done, kBounceBytes);
        const int error = read_all(fd_, memory, whole_file_pages(part), offset + static_cast<off_t>(done), kFilePage);
        if (error != 0) return error;
        std::memcpy(data + done, memory, part);
    }
    return 0;
}

}  // namespace lms
}  // namespace hpcckpt
