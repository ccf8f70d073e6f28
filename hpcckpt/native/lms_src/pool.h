// Memory from mmap, returned by munmap: memory that malloc frees often stays with the process.
//
// It begins at a page, so that a file may be read into it without a copy.  New pages must be filled with zeros first,
// which may take longer than reading into them: so a limited amount of freed memory is kept for the next request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace hpcckpt {
namespace lms {

// The unit of the file's offsets and lengths, whatever the machine's pages are.
constexpr std::size_t kFilePage = 4096;

inline std::size_t whole_file_pages(std::size_t nbytes) { return (nbytes + kFilePage - 1) / kFilePage * kFilePage; }

struct Pages {
    void* data = nullptr;
    std::size_t nbytes = 0;
};

// Gives the whole pages of this memory back to the kernel; its content is lost, its address stays.
void forget_pages(const void* data, std::size_t nbytes);

class Pool {
   public:
    static Pool& one();

    // `data` is null if there is no memory. Whole pages: it may be more than requested.
    Pages take(std::size_t nbytes);
    void give(const Pages& pages);

    // How much may be kept.
    void set_limit(std::size_t nbytes);
    std::size_t kept_nbytes();

   private:
    std::vector<Pages> surplus();

    std::mutex lock_;
    std::multimap<std::size_t, void*> kept_;
    std::size_t total_ = 0, limit_ = 0;
};

// How many bytes of the host tier are in use.
class HostBudget {
   public:
    static HostBudget& one();

    // False if there would be more than `limit` bytes then; 0: no limit.
    bool try_take(std::int64_t nbytes, std::int64_t limit);
    void give(std::int64_t nbytes);

    std::int64_t used();
    std::int64_t peak();
    void reset_peak();

   private:
    std::mutex lock_;
    std::int64_t used_ = 0, peak_ = 0;
};

}  // namespace lms
}  // namespace hpcckpt
