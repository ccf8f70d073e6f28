#include "workers.h"

#if defined(__linux__)
#include <sys/resource.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace hpcckpt {

namespace {

constexpr std::chrono::milliseconds kStopInterval{20};

void give_way([[maybe_unused]] int nice) {
#if defined(__linux__)
    // 0 is the calling thread, not the process: on Linux each has a nice value. A refusal costs only speed elsewhere.
    (void)::setpriority(PRIO_PROCESS, 0, nice);
#endif
}

class Loop {
   public:
    Loop(std::size_t n_items, const std::function<bool(std::size_t)>& work) : n_items_(n_items), work_(work) {}

    void take_items(const StopCheck& should_stop) {
        while (!is_stopped_.load(std::memory_order_relaxed)) {
            if (should_stop && should_stop()) return stop();
            const std::size_t item = next_.fetch_add(1, std::memory_order_relaxed);
            if (item >= n_items_) return;
            if (!work_(item)) stop();
        }
    }

    void stop() { is_stopped_.store(true, std::memory_order_relaxed); }

   private:
    const std::size_t n_items_;
    const std::function<bool(std::size_t)>& work_;
    std::atomic<std::size_t> next_{0};
    std::atomic<bool> is_stopped_{false};
};

// Threads that work on a loop's items; destroyed when all of them have ended.
class Helpers {
   public:
    Helpers(Loop& loop, int nice) : loop_(loop), nice_(nice) {}
    ~Helpers() {
        for (std::thread& thread : threads_) thread.join();
    }
    Helpers(const Helpers&) = delete;
    Helpers& operator=(const Helpers&) = delete;

    // Starts as many threads as the system allows, at most `n_wanted`.
    void start(std::size_t n_wanted) {
        try {
            threads_.reserve(n_wanted);
            while (threads_.size() < n_wanted) threads_.emplace_back([this] { help(); });
        } catch (const std::exception&) {
            // EAGAIN or no memory: a limit was reached; the threads there are do the work.
        }
    }

    bool is_empty() const { return threads_.empty(); }

    void wait(const StopCheck& should_stop) {
        bool is_stopped = false;
        std::unique_lock<std::mutex> guard(mutex_);
        while (!changed_.wait_for(guard, kStopInterval, [this] { return n_ended_ == threads_.size(); })) {
            if (is_stopped) continue;
            guard.unlock();
            is_stopped = should_stop();
            if (is_stopped) loop_.stop();
            guard.lock();
        }
    }

   private:
    void help() {
        if (nice_ > 0) give_way(nice_);
        loop_.take_items(nullptr);
        const std::lock_guard<std::mutex> guard(mutex_);
        ++n_ended_;
        changed_.notify_one();
    }

    Loop& loop_;
    const int nice_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t n_ended_ = 0;
    std::vector<std::thread> threads_;
};

}  // namespace

void for_each_item(std::size_t n_items, std::size_t n_threads, const std::function<bool(std::size_t)>& work,
                   const StopCheck& should_stop, int nice) {
    Loop loop(n_items, work);
    Helpers helpers(loop, nice);
    const std::size_t n_wanted = std::max<std::size_t>(std::min(n_threads, n_items), 1);
    helpers.start(nice > 0 ? n_wanted : n_wanted - 1);
    if (nice <= 0 || helpers.is_empty()) {
        loop.take_items(should_stop);
    } else if (should_stop) {
        helpers.wait(should_stop);
    }
}

void for_each_item_besides(const std::function<bool()>& besides, std::size_t n_items, std::size_t n_threads,
                           const std::function<bool(std::size_t)>& work, const StopCheck& should_stop) {
    Loop loop(n_items, work);
    Helpers helpers(loop, 0);
    helpers.start(std::min(n_threads, n_items + 1) - 1);
    if (!besides()) loop.stop();
    loop.take_items(should_stop);
}

}  // namespace hpcckpt
