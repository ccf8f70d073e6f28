#include "stalls.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "clock.h"
#include "figures.h"

namespace hpcckpt {
namespace lms {
namespace {

// An op's record for the last step that it ran in.
struct Seen {
    std::int64_t step = -1;
    std::int64_t n_wanted = -1, n_done = 0;                 // swap-ins
    std::int64_t others_ns = 0, began_ns = 0, last_ns = 0;  // of the swap-in that was done last
};

struct Table {
    std::mutex lock;
    std::unordered_map<std::string, Seen> ops;

    Seen& at(const std::string& op, std::int64_t step) {
        Seen& seen = ops[op];
        if (seen.step != step) seen = {};
        seen.step = step;
        return seen;
    }
};

Table& table() {
    static Table* const one = new Table;  // never destroyed: see Figures
    return *one;
}

void tell_if_all_is_there(const std::string& op, Seen& seen) {
    if (seen.n_done != seen.n_wanted) return;
    Figures::one().count_stall(op, std::max<std::int64_t>(seen.last_ns - std::max(seen.others_ns, seen.began_ns), 0));
    seen = {};
}

}  // namespace

void others_are_ready(const std::string& op, std::int64_t n_swap_ins, std::int64_t step) {
    Table& all = table();
    const std::lock_guard<std::mutex> guard(all.lock);
    Seen& seen = all.at(op, step);
    seen.n_wanted = n_swap_ins;
    seen.others_ns = now_ns();
    tell_if_all_is_there(op, seen);
}

void swap_in_is_done(const std::vector<std::string>& ops, std::int64_t step, std::int64_t began_ns) {
    Table& all = table();
    const std::lock_guard<std::mutex> guard(all.lock);
    for (const std::string& op : ops) {
        Seen& seen = all.at(op, step);
        seen.n_done += 1;
        seen.began_ns = began_ns;
        seen.last_ns = now_ns();
        tell_if_all_is_there(op, seen);
    }
}

}  // namespace lms
}  // namespace hpcckpt
