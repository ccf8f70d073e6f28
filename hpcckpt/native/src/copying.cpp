#include "copying.h"

#include <algorithm>
#include <cstring>

#include "workers.h"

namespace hpcckpt {
namespace {

// What a thread takes at a time: a multiple of what the streaming kernels work on at once.
constexpr std::size_t kRangeBytes = std::size_t{1} << 20;

// Less than this may stay in the caches, where plain stores are faster and the next reader finds it.
constexpr std::size_t kStreamBytes = std::size_t{16} << 20;

void plain_kernel(std::uint8_t* to, const std::uint8_t* from, std::size_t nbytes) { std::memcpy(to, from, nbytes); }

std::vector<Copy> cut(const std::vector<Copy>& copies) {
    std::vector<Copy> ranges;
    for (const Copy& copy : copies) {
        for (std::size_t start = 0; start < copy.nbytes; start += kRangeBytes) {
            ranges.push_back({copy.to + start, copy.from + start, std::min(kRangeBytes, copy.nbytes - start)});
        }
    }
    return ranges;
}

struct Interval {
    const std::uint8_t* begin;
    const std::uint8_t* end;
    bool is_written;
};

}  // namespace

#if !defined(__x86_64__)
namespace copying {
void append_streaming_kernels(std::vector<CopyChoice>&) {}
}  // namespace copying
#endif

const std::vector<CopyChoice>& copy_kernels() {
    static const std::vector<CopyChoice> kernels = [] {
        std::vector<CopyChoice> found;
        copying::append_streaming_kernels(found);
        found.push_back({"memcpy", plain_kernel});
        return found;
    }();
    return kernels;
}

bool has_overlap(const std::vector<Copy>& copies) {
    std::vector<Interval> intervals;
    for (const Copy& copy : copies) {
        if (copy.nbytes == 0) continue;
        intervals.push_back({copy.to, copy.to + copy.nbytes, true});
        intervals.push_back({copy.from, copy.from + copy.nbytes, false});
    }
    std::sort(intervals.begin(), intervals.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    const std::uint8_t* end_of_all = nullptr;
    const std::uint8_t* end_of_written = nullptr;
    for (const Interval& interval : intervals) {
        if (interval.begin < (interval.is_written ? end_of_all : end_of_written)) return true;
        end_of_all = std::max(end_of_all, interval.end);
        if (interval.is_written) end_of_written = std::max(end_of_written, interval.end);
    }
    return false;
}

void copy_all(const std::vector<Copy>& copies, std::size_t n_threads, const StopCheck& should_stop) {
    std::size_t total = 0;
    for (const Copy& copy : copies) total += copy.nbytes;
    const CopyKernel run = total < kStreamBytes ? plain_kernel : copy_kernels().front().run;
    const std::vector<Copy> ranges = cut(copies);
    for_each_item(
        ranges.size(), n_threads,
        [&](std::size_t i) {
            run(ranges[i].to, ranges[i].from, ranges[i].nbytes);
            return true;
        },
        should_stop);
}

}  // namespace hpcckpt
