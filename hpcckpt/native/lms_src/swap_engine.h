// Swaps tensors out and in on background threads, while a step computes.
//
// A swap-out is reported as done when the bytes in transit fit into the window, or when it is written: an op that waits
// for it by a control edge then finds at most one window of memory not yet free. A swap-in whose tensor is still being
// written returns it from memory.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "config.h"
#include "io_queue.h"
#include "swapped_tensor.h"

namespace hpcckpt {
namespace lms {

// Faults for tests: what a bad disk does.
struct Hindrance {
    int write_delay_ms = 0, read_delay_ms = 0;            // -1: until the next `hinder`
    int take_error = 0, write_error = 0, read_error = 0;  // errno
};

class SwapEngine {
   public:
    using Done = std::function<void(const absl::Status&)>;
    using Arrived = std::function<void(const absl::Status&, tensorflow::Tensor, bool is_hot)>;

    static SwapEngine& one();

    // False with `error` set if the file tier cannot be opened; then nothing is changed.
    bool configure(const Config& config, IoError* error);
    // Used by the first swap-out if nothing was configured: in a graph that was saved with its swaps.
    void set_fallback(const Config& config);
    Config config();
    std::shared_ptr<FileStore> file();

    // Each calls back once, from this thread or from another.
    void put(const std::shared_ptr<SwappedTensor>& swapped, bool by_reference, Done done);
    void get(const std::shared_ptr<SwappedTensor>& swapped, Arrived arrived);

    // Waits until no bytes are in transit: a swap-out may be reported as done before it is written.
    void wait_until_out();

    void hinder(const Hindrance& hindrance);

   private:
    // A swap-out in transit.
    struct Leaving {
        std::weak_ptr<SwappedTensor> swapped;
        std::int64_t nbytes;
        Done done;                               // until it is called
        std::shared_ptr<SwappedTensor> writing;  // while pieces of it are written
        Hindrance hindrance;
        std::int64_t began = 0;
        bool is_over = false;
        absl::Status status;
    };
    using LeavingRef = std::shared_ptr<Leaving>;
    struct Released {
        Done done;
        absl::Status status;
    };
    // A swap-in in transit.
    struct Coming {
        std::shared_ptr<SwappedTensor> swapped;
        Arrived arrived;
        tensorflow::Tensor tensor;
        Hindrance hindrance;
        Config config;
        std::int64_t began = 0;
        int code = 0;
    };

    SwapEngine() = default;
    absl::Status configure_by_fallback();
    void set_out(const LeavingRef& leaving);
    std::size_t begin_writing(Leaving& leaving);
    absl::Status end_writing(Leaving& leaving, int code);
    void finish(const LeavingRef& leaving, const absl::Status& status);
    std::deque<Released> released();
    std::size_t begin_reading(Coming& coming);
    absl::Status end_reading(Coming& coming, int code);
    Hindrance pause(int Hindrance::* delay_ms);
    bool shrink_file();

    std::mutex lock_;
    Config config_;
    bool is_configured_ = false, has_fallback_ = false;
    Config fallback_;
    std::shared_ptr<FileStore> file_;
    Hindrance hindrance_;
    std::condition_variable is_hindered_, is_out_;
    std::deque<LeavingRef> waiting_;  // their `done` is not yet called
    std::int64_t in_flight_ = 0;

    // Last: their threads use the other members.
    IoQueue out_{"hpcckpt-out", 2, [this] { return shrink_file(); }}, in_{"hpcckpt-in", 2};
};

}  // namespace lms
}  // namespace hpcckpt
