// Counters: for reports, and for tests that nothing leaks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace hpcckpt {
namespace lms {

// Of one swap-out or swap-in, over all its runs.
struct Moved {
    std::int64_t count = 0;
    std::int64_t nbytes = 0;
    std::int64_t n_hot = 0;    // swap-ins whose tensor was still in memory; swap-outs that kept it
    std::int64_t wait_ns = 0;  // from its start until it was done
};

class Figures {
   public:
    static Figures& one();

    void count_out(const std::string& name, std::int64_t nbytes, bool is_kept, std::int64_t wait_ns);
    void count_in(const std::string& name, std::int64_t nbytes, bool is_hot, std::int64_t wait_ns);
    void count_stall(const std::string& op, std::int64_t ns);
    void count_written(std::int64_t nbytes, std::int64_t ns);
    void count_read(std::int64_t nbytes, std::int64_t ns);
    void add_in_flight(std::int64_t nbytes);

    void reset();
    std::string json();

    std::atomic<std::int64_t> live_handles{0};

   private:
    std::mutex lock_;
    std::map<std::string, Moved> outs_, ins_;
    std::map<std::string, std::int64_t> stalls_;
    std::int64_t written_bytes_ = 0, written_ns_ = 0, read_bytes_ = 0, read_ns_ = 0;
    std::int64_t in_flight_ = 0, peak_in_flight_ = 0;
};

// For text in JSON.
std::string quoted(const std::string& text);

}  // namespace lms
}  // namespace hpcckpt
