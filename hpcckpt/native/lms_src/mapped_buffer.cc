#include "mapped_buffer.h"

#include <sys/mman.h>

#include <cstdint>

namespace hpcckpt {
namespace lms {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kWasteAtMost = 4;  // a quarter

void* map_anonymous(std::size_t nbytes) {
    void* data = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return data == MAP_FAILED ? nullptr : data;
}

// Huge pages are filled and pinned in a five-hundredth of the calls; they must begin at a multiple of their size.
void* map_huge(std::size_t nbytes) {
    auto* whole = static_cast<char*>(map_anonymous(nbytes + kHugePage));
    if (whole == nullptr) return nullptr;
    const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(whole) % kHugePage) % kHugePage;
    if (before > 0) munmap(whole, before);
    munmap(whole + before + nbytes, kHugePage - before);
    madvise(whole + before, nbytes, MADV_HUGEPAGE);
    return whole + before;
}

}  // namespace

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
    const std::lock_guard<std::mutex> guard(lock_);
    kept_.emplace(pages.nbytes, pages.data);
    total_ += pages.nbytes;
    shrink();
}

void Pool::set_limit(std::size_t nbytes) {
    const std::lock_guard<std::mutex> guard(lock_);
    limit_ = nbytes;
    shrink();
}

void Pool::shrink() {
    while (total_ > limit_) {
        const auto smallest = kept_.begin();  // the cheapest to have anew
        munmap(smallest->second, smallest->first);
        total_ -= smallest->first;
        kept_.erase(smallest);
    }
}

MappedBuffer* MappedBuffer::make(std::size_t nbytes) {
    const Pages pages = Pool::one().take(nbytes);
    return pages.data == nullptr ? nullptr : new MappedBuffer(pages, nbytes);
}

}  // namespace lms
}  // namespace hpcckpt
