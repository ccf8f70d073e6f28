#include "workers.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

namespace hpcckpt {

void for_each_item(std::size_t n_items, std::size_t n_threads, const std::function<bool(std::size_t)>& work) {
    std::atomic<std::size_t> next{0};
    std::atomic<bool> is_stopped{false};
    const auto take_items = [&] {
        while (!is_stopped.load(std::memory_order_relaxed)) {
            const std::size_t item = next.fetch_add(1, std::memory_order_relaxed);
            if (item >= n_items) return;
            if (!work(item)) is_stopped.store(true, std::memory_order_relaxed);
        }
    };
    std::vector<std::thread> helpers;
    const std::size_t n_helpers = std::min(n_threads, n_items) > 1 ? std::min(n_threads, n_items) - 1 : 0;
    helpers.reserve(n_helpers);
    try {
        while (helpers.size() < n_helpers) helpers.emplace_back(take_items);
    } catch (const std::system_error&) {
        // EAGAIN: a limit on processes was reached; the threads there are do the work.
    }
    take_items();
    for (std::thread& helper : helpers) helper.join();
}

}  // namespace hpcckpt
