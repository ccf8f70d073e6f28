#include "io_queue.h"

#include <pthread.h>

#include <utility>

namespace hpcckpt {
namespace lms {

IoQueue::IoQueue(const char* name, int n_threads, Idle idle) : idle_(std::move(idle)) {
    try {
        for (int i = 0; i < n_threads; ++i) {
            threads_.emplace_back(&IoQueue::work, this);
            pthread_setname_np(threads_.back().native_handle(), name);
        }
    } catch (...) {
        end();  // the threads that were started must not use freed memory
        throw;
    }
}

void IoQueue::end() {
    {
        const std::lock_guard<std::mutex> guard(lock_);
        is_ended_ = true;
    }
    is_changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void IoQueue::add(Job job) {
    auto made = std::make_shared<Begun>();
    made->job = std::move(job);
    {
        const std::lock_guard<std::mutex> guard(lock_);
        jobs_.push_back(std::move(made));
        is_idle_asked_ = idle_ != nullptr;
    }
    is_changed_.notify_one();
}

void IoQueue::work() {
    for (;;) {
        std::unique_lock<std::mutex> guard(lock_);
        wait_for_job(guard);
        if (is_ended_) return;
        const std::shared_ptr<Begun> first = jobs_.front();
        if (first->is_begun || begin(first, guard)) move(*first, guard);
    }
}

void IoQueue::wait_for_job(std::unique_lock<std::mutex>& guard) {
    const auto is_over = [this] { return is_startable() || is_ended_; };
    while (!is_over()) {
        if (!is_idle_asked_ || is_idling_) {
            is_changed_.wait(guard);
            continue;
        }
        is_idling_ = true;
        if (!is_changed_.wait_for(guard, kIdleS, is_over)) {
            guard.unlock();
            const bool is_asked_again = idle_();
            guard.lock();
            if (jobs_.empty()) is_idle_asked_ = is_asked_again;
        }
        is_idling_ = false;
    }
}

// Returns whether there is anything to move; if not, the job is over.
bool IoQueue::begin(const std::shared_ptr<Begun>& first, std::unique_lock<std::mutex>& guard) {
    is_beginning_ = true;  // the others wait: the next job must not overtake this one
    guard.unlock();
    const std::size_t n_pieces = first->job.begin();
    guard.lock();
    is_beginning_ = false;
    first->is_begun = true;
    first->n_pieces = n_pieces;
    if (n_pieces == 0) jobs_.pop_front();
    is_changed_.notify_all();
    if (n_pieces > 0) return true;
    guard.unlock();
    first->job.over(0);
    return false;
}

void IoQueue::move(Begun& job, std::unique_lock<std::mutex>& guard) {
    const std::size_t piece = job.next++;
    const bool is_failed = job.code != 0;
    if (job.next == job.n_pieces) jobs_.pop_front();
    guard.unlock();
    const int code = is_failed ? 0 : job.job.move(piece);
    guard.lock();
    if (job.code == 0) job.code = code;
    const bool is_over = ++job.n_over == job.n_pieces;
    guard.unlock();
    if (is_over) job.job.over(job.code);
}

}  // namespace lms
}  // namespace hpcckpt
