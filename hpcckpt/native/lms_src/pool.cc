#include "pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace hpcckpt {
namespace lms {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kWasteAtMost = 4;  // a quarter

// 4 KiB, but 16 or 64 KiB on some machines: munmap requires the start of a page.
std::size_t whole_pages(std::size_t nbytes) {
    static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return (nbytes + page - 1) / page * page;
}

void* map_anonymous(std::size_t nbytes) {
    void* data = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return data == MAP_FAILED ? nullptr : data;
}

// With huge pages, filling and pinning takes 1/500 of the calls; they must begin at a multiple of their size.
void* map_huge(std::size_t nbytes) {
    auto* whole = static_cast<char*>(map_anonymous(nbytes + kHugePage));
    if (whole == nullptr) return nullptr;
    const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(whole) % kHugePage) % kHugePage;
    if (before > 0) munmap(whole, before);
    munmap(whole + before + nbytes, kHugePage - before);
    madvise(whole + before, nbytes, MADV_HUGEPAGE);
    return whole + before;
}

// Takes milliseconds for large ones: not under a lock.
void unmap(const std::vector<Pages>& all) {
    for (const Pages& pages : all) munmap(pages.data, pages.nbytes);
}

}  // namespace

void forget_pages(const void* data, std::size_t nbytes) {
    static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto start = reinterpret_cast<std::uintptr_t>(data);
    const std::uintptr_t first = (start + page - 1) / page * page, end = (start + nbytes) / page * page;
    if (end > first) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

Pool& Pool::one() {
    static Pool* const pool = new Pool;  // never destroyed: tensors may be freed while the process ends
    return *pool;
}

Pages Pool::take(std::size_t nbytes) {
    const std::size_t wanted = whole_pages(nbytes);
    {
        const std::lock_guard<std::mutex> guard(lock_);
        const auto found = kept_.lower_bound(wanted);
        if (found != kept_.end() && found->first <= wanted + wanted / kWasteAtMost) {
            const Pages pages{found->second, found->first};
            total_ -= pages.nbytes;
            kept_.erase(found);
            return pages;
        }
    }
    void* data = wanted >= kHugePage ? map_huge(wanted) : map_anonymous(wanted);
    return {data, wanted};
}

void Pool::give(const Pages& pages) {
    std::vector<Pages> gone;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        if (pages.nbytes > limit_) {  // else all others would be dropped first
            gone.push_back(pages);
        } else {
            kept_.emplace(pages.nbytes, pages.data);
            total_ += pages.nbytes;
            gone = surplus();
        }
    }
    unmap(gone);
}

void Pool::set_limit(std::size_t nbytes) {
    std::vector<Pages> gone;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        limit_ = nbytes;
        gone = surplus();
    }
    unmap(gone);
}

std::size_t Pool::kept_nbytes() {
    const std::lock_guard<std::mutex> guard(lock_);
    return total_;
}

// Removes what exceeds the limit.  The caller has the lock, and unmaps without it.
std::vector<Pages> Pool::surplus() {
    std::vector<Pages> gone;
    while (total_ > limit_) {
        const auto smallest = kept_.begin();  // the cheapest to map again
        gone.push_back({smallest->second, smallest->first});
        total_ -= smallest->first;
        kept_.erase(smallest);
    }
    return gone;
}

HostBudget& HostBudget::one() {
    static HostBudget* const budget = new HostBudget;  // never destroyed, as the pool
    return *budget;
}

bool HostBudget::try_take(std::int64_t nbytes, std::int64_t limit) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (limit > 0 && used_ + nbytes > limit) return false;
    used_ += nbytes;
    peak_ = std::max(peak_, used_);
    return true;
}

void HostBudget::give(std::int64_t nbytes) {
    const std::lock_guard<std::mutex> guard(lock_);
    used_ -= nbytes;
}

std::int64_t HostBudget::used() {
    const std::lock_guard<std::mutex> guard(lock_);
    return used_;
}

std::int64_t HostBudget::peak() {
    const std::lock_guard<std::mutex> guard(lock_);
    return peak_;
}

void HostBudget::reset_peak() {
    const std::lock_guard<std::mutex> guard(lock_);
    peak_ = used_;
}

}  // namespace lms
}  // namespace hpcckpt
