// A queue of I/O jobs for a few threads: first in, first out; all pieces of a job start before those of the next.
//
// A disk is fastest with several requests at a time; one thread copies while another one waits for the disk.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hpcckpt {
namespace lms {

class IoQueue {
   public:
    struct Job {
        std::function<std::size_t()> begin;    // called once, first; returns how many pieces there are
        std::function<int(std::size_t)> move;  // one piece; 0 or errno: then the rest is skipped
        std::function<void(int)> over;         // called once, last, with the first errno or 0
    };

    // Called when nothing was added for `kIdleS`, again and again as long as it returns true; from one thread at a
    // time.
    using Idle = std::function<bool()>;
    static constexpr std::chrono::seconds kIdleS{2};

    // Throws std::system_error if a thread cannot be started; no thread is left then.
    IoQueue(const char* name, int n_threads, Idle idle = nullptr);
    ~IoQueue() { end(); }  // only when all jobs are over
    IoQueue(const IoQueue&) = delete;
    IoQueue& operator=(const IoQueue&) = delete;

    void add(Job job);

   private:
    struct Begun {
        Job job;
        bool is_begun = false;
        std::size_t n_pieces = 0, next = 0, n_over = 0;
        int code = 0;
    };

    void work();
    void end();
    bool is_startable() const { return !jobs_.empty() && !is_beginning_; }
    void wait_for_job(std::unique_lock<std::mutex>& guard);
    bool begin(const std::shared_ptr<Begun>& first, std::unique_lock<std::mutex>& guard);
    void move(Begun& job, std::unique_lock<std::mutex>& guard);

    std::mutex lock_;
    std::condition_variable is_changed_;
    std::deque<std::shared_ptr<Begun>> jobs_;
    bool is_beginning_ = false;
    const Idle idle_;
    bool is_idling_ = false;      // a thread calls `idle_`, or waits until it may
    bool is_idle_asked_ = false;  // until it returns false
    bool is_ended_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace lms
}  // namespace hpcckpt
