// The file tier: one unnamed file of this process, in which swapped-out tensors are stored.
//
// 1. It is made with O_TMPFILE, or made and unlinked at once where the file system cannot do that: nothing is left
//    however the process ends.
// 2. Space is allocated before anything is written: a full file system fails the swap-out, not a later write-back.
// 3. O_DIRECT avoids the page cache, where tensors would only be in memory once more. Where the file system does not
//    support it, the file is used without, and `notes` reports it.
// 4. `shrink` returns free space at the end of the file to the file system.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "config.h"
#include "extents.h"

namespace hpcckpt {
namespace lms {

struct IoError {
    int code = 0;  // errno; 0: none
    std::string text;
};

// The memory alignment for O_DIRECT where the kernel does not report it.
constexpr std::size_t kDefaultMemoryAlignment = 512;

class FileStore {
   public:
    // Null, with `error` set, if such a file cannot be made in the directory.
    static std::shared_ptr<FileStore> open(const Config& config, IoError* error);
    ~FileStore();

    // Allocates `nbytes`; returns the offset, or -1 with `error` set.
    off_t take(std::size_t nbytes, IoError* error);
    void give(off_t offset, std::size_t nbytes);

    // Cuts the file where the last tensor ends, if more than half of it is free from there on. Returns whether there is
    // anything that a later call could cut.
    bool shrink();

    // Each returns 0 or errno.
    int write(const char* data, std::size_t nbytes, off_t offset);
    int read(char* data, std::size_t nbytes, off_t offset);

    const std::string& directory() const { return directory_; }
    const std::string& notes() const { return notes_; }
    bool is_direct() const { return is_direct_; }
    off_t used() const;
    off_t size() const;  // including free space
    off_t peak() const;
    void reset_peak();

   private:
    FileStore(int fd, const Config& config, bool is_direct);

    int write_through(const char* data, std::size_t nbytes, off_t offset);
    int read_through(char* data, std::size_t nbytes, off_t offset);
    bool fits(const void* data) const;

    const int fd_;
    const std::string directory_;
    const off_t limit_;
    const bool is_direct_;
    std::size_t memory_alignment_ = kDefaultMemoryAlignment;
    std::string notes_;
    mutable std::mutex lock_;
    Extents extents_;
    off_t peak_ = 0;
};

}  // namespace lms
}  // namespace hpcckpt
