// Moves tensors out and in, on threads of its own: a step computes meanwhile.
//
// A swap-out is done as soon as what is on its way out fits into the window, or when it is out itself: whatever waits
// for it by a control edge then finds no more than a window's worth of memory not yet free.  A swap-in that comes while
// its tensor is still on its way out takes it as it is.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "config.h"
#include "lane.h"
#include "parcel.h"

namespace hpcckpt {
namespace lms {

// Faults for tests: what a bad disk does.
struct Hindrance {
    int write_delay_ms = 0, read_delay_ms = 0;            // -1: until there is another hindrance
    int take_error = 0, write_error = 0, read_error = 0;  // errno
};

class Mover {
   public:
    using Done = std::function<void(const absl::Status&)>;
    using Arrived = std::function<void(const absl::Status&, tensorflow::Tensor, bool is_hot)>;

    static Mover& one();

    // False with `error` set if the file tier cannot be opened; then nothing is changed.
    bool configure(const Config& config, IoError* error);
    // What the first tensor that leaves finds where nothing was configured: in a graph that was saved with its swaps.
    void set_fallback(const Config& config);
    Config config();
    std::shared_ptr<FileStore> file();

    // Each calls back once, from this thread or from another.
    void put(const std::shared_ptr<Parcel>& parcel, bool by_reference, Done done);
    void get(const std::shared_ptr<Parcel>& parcel, Arrived arrived);

    // Waits until nothing is on its way out: within the window a swap-out is done before it is.
    void wait_until_out();

    void hinder(const Hindrance& hindrance);

   private:
    // What is on its way out.
    struct Leaving {
        std::weak_ptr<Parcel> parcel;
        std::int64_t nbytes;
        Done done;                        // until it is called
        std::shared_ptr<Parcel> writing;  // while pieces of it are written
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
    // What is on its way in.
    struct Coming {
        std::shared_ptr<Parcel> parcel;
        Arrived arrived;
        tensorflow::Tensor tensor;
        Hindrance hindrance;
        Config config;
        std::int64_t began = 0;
        int code = 0;
    };

    Mover() = default;
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

    // Last, for their threads use the rest.
    Lane out_{"hpcckpt-out", 2, [this] { return shrink_file(); }}, in_{"hpcckpt-in", 2};
};

}  // namespace lms
}  // namespace hpcckpt
