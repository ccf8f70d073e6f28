#include "extents.h"

#include <iterator>

namespace hpcckpt {
namespace lms {

Extents::Taken Extents::take(off_t nbytes) {
    used_ += nbytes;
    auto best = free_.end();
    for (auto each = free_.begin(); each != free_.end(); ++each) {
        if (each->second >= nbytes && (best == free_.end() || each->second < best->second)) best = each;
    }
    Taken taken{end_, end_};
    if (best != free_.end()) {
        taken.offset = best->first;
        const off_t left = best->second - nbytes;
        free_.erase(best);
        if (left > 0) free_[taken.offset + nbytes] = left;
        return taken;
    }
    taken.offset = cut_end();
    end_ = taken.offset + nbytes;
    return taken;
}

void Extents::give(off_t offset, off_t nbytes) {
    used_ -= nbytes;
    auto next = free_.lower_bound(offset);
    if (next != free_.begin()) {
        const auto before = std::prev(next);
        if (before->first + before->second == offset) {
            offset = before->first;
            nbytes += before->second;
            free_.erase(before);
        }
    }
    if (next != free_.end() && offset + nbytes == next->first) {
        nbytes += next->second;
        free_.erase(next);
    }
    free_[offset] = nbytes;
}

off_t Extents::used_end() const {
    const bool is_free = !free_.empty() && free_.rbegin()->first + free_.rbegin()->second == end_;
    return is_free ? free_.rbegin()->first : end_;
}

off_t Extents::cut_end() {
    const off_t end = used_end();
    if (end < end_) free_.erase(std::prev(free_.end()));
    return end_ = end;
}

void Extents::refuse(const Taken& taken, off_t nbytes) {
    used_ -= nbytes;
    end_ = taken.end_before;
    if (taken.offset < end_) free_[taken.offset] = end_ - taken.offset;
}

}  // namespace lms
}  // namespace hpcckpt
