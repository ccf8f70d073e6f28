// Work in pieces, for a few threads: what is added first is begun first, and all its pieces before any of the next.
//
// Several requests under way at a time are what a disk is fast with; one thread copies while another one waits for it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace hpcckpt {
namespace lms {

class Lane {
   public:
    struct Job {
        std::function<std::size_t()> begin;    // called once, first; returns how many pieces there are
        std::function<int(std::size_t)> move;  // one piece; 0 or errno, and then the rest is left
        std::function<void(int)> over;         // called once, last, with the first errno or 0
    };

    Lane(const char* name, int n_threads);

    void add(Job job);

   private:
    struct Begun {
        Job job;
        bool is_begun = false;
        std::size_t n_pieces = 0, next = 0, n_over = 0;
        int code = 0;
    };

    void work_forever();
    bool begin(const std::shared_ptr<Begun>& first, std::unique_lock<std::mutex>& guard);
    void move(Begun& job, std::unique_lock<std::mutex>& guard);

    std::mutex lock_;
    std::condition_variable is_changed_;
    std::deque<std::shared_ptr<Begun>> jobs_;
    bool is_beginning_ = false;
};

}  // namespace lms
}  // namespace hpcckpt
