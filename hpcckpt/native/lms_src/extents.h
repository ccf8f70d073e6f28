// Which parts of a file are in use: ranges are taken, given back, and taken again.
#pragma once

#include <sys/types.h>

#include <map>

namespace hpcckpt {
namespace lms {

class Extents {
   public:
    struct Taken {
        off_t offset;
        off_t end_before;  // the end of the file before; it must now grow to `end()`
    };

    // The smallest free range that is large enough; else the file grows, after what is free at its end.
    Taken take(off_t nbytes);
    void give(off_t offset, off_t nbytes);

    // Undoes a growth that the file system refused.
    void refuse(const Taken& taken, off_t nbytes);

    // The end of the last range in use.
    off_t used_end() const;
    // Drops the free range at the end; returns the new end.
    off_t cut_end();

    off_t end() const { return end_; }
    off_t used() const { return used_; }

   private:
    std::map<off_t, off_t> free_;  // offset -> size; no two touch
    off_t end_ = 0;
    off_t used_ = 0;
};

}  // namespace lms
}  // namespace hpcckpt
