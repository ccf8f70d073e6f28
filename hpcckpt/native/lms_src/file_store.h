// The file tier: one file of this process that has no name, in which tensors come and go.
//
// 1. It is made with O_TMPFILE, or made and unlinked at once where the file system cannot do that: nothing is left
//    however the process ends.
// 2. Room is allocated before anything is written, so that a full file system is found out when a tensor leaves, not
//    when a page is written back.
// 3. O_DIRECT keeps the page cache out: there tensors would only be in memory once more. Where the file system has
//    none, or refuses to write so, the file is used without, and `notes` says it.
// 4. What is free at the end of the file goes back to the file system by `shrink`.
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

// What addresses O_DIRECT takes, where the kernel does not say.
constexpr std::size_t kDefaultMemoryAlignment = 512;

class FileStore {
   public:
    // Null with `error` set if the directory cannot have such a file.
    static std::shared_ptr<FileStore> open(const Config& config, IoError* error);
    ~FileStore();

    // Returns the offset of room for `nbytes`, or -1 with `error` set.
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
    off_t size() const;  // with what is free in it
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
