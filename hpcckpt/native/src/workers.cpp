#include "workers.h"

#if defined(__linux__)
#include <sys/resource.h>
#endif

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

namespace hpcckpt {

namespace {

void give_way([[maybe_unused]] int nice) {
#if defined(__linux__)
    // 0 is the calling thread, not the process: on Linux each has a nice value. A refusal costs only speed elsewhere.
    (void)::setpriority(PRIO_PROCESS, 0, nice);
#endif
}

}  // namespace

void for_each_item(std::size_t n_items, std::size_t n_threads, const std::function<bool(std::size_t)>& work, int nice) {
    std::atomic<std::size_t> next{0};
    std::atomic<bool> is_stopped{false};
    const auto take_items = [&] {
        while (!is_stopped.load(std::memory_order_relaxed)) {
            const std::size_t item = next.fetch_add(1, std::memory_order_relaxed);
            if (item >= n_items) return;
            if (!work(item)) is_stopped.store(true, std::memory_order_relaxed);
        }
    };
    const auto help = [&] {
        if (nice > 0) give_way(nice);
        take_items();
    };
    std::vector<std::thread> helpers;
    const std::size_t n_wanted = std::max<std::size_t>(std::min(n_threads, n_items), 1);
    const std::size_t n_helpers = nice > 0 ? n_wanted : n_wanted - 1;
    helpers.reserve(n_helpers);
    try {
        while (helpers.size() < n_helpers) helpers.emplace_back(help);
    } catch (const std::system_error&) {
        // EAGAIN: a limit on processes was reached; the threads there are do the work.
    }
    if (nice <= 0 || helpers.empty()) take_items();
    for (std::thread& helper : helpers) helper.join();
}

}  // namespace hpcckpt
