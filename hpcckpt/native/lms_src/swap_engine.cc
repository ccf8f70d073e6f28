#include "swap_engine.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "clock.h"
#include "figures.h"
#include "mapped_buffer.h"
#include "tier_space.h"

namespace hpcckpt {
namespace lms {
namespace {

using tensorflow::Tensor;

// A multiple of a page.  Writes mostly go through a buffer of that size, reads do not.
constexpr std::size_t kWritten = std::size_t{4} << 20;
constexpr std::size_t kRead = std::size_t{16} << 20;

std::size_t count_pieces(std::size_t nbytes, std::size_t piece) { return (nbytes + piece - 1) / piece; }

int write_piece(const SwappedTensor& swapped, std::size_t number) {
    const std::size_t start = number * kWritten;
    const std::size_t nbytes = std::min(kWritten, swapped.nbytes - start);
    const char* data = swapped.tensor.tensor_data().data() + start;  // the tensor is kept until the job ends
    if (swapped.place == SwappedTensor::Place::kFile) {
        return swapped.file->write(data, nbytes, swapped.offset + static_cast<off_t>(start));
    }
    std::memcpy(static_cast<char*>(swapped.host.data) + start, data, nbytes);
    return 0;
}

int read_piece(const SwappedTensor& swapped, std::size_t number, bool is_mapped, char* data) {
    const std::size_t start = number * kRead;
    std::size_t nbytes = std::min(kRead, swapped.nbytes - start);
    if (swapped.place != SwappedTensor::Place::kFile) {
        std::memcpy(data + start, static_cast<const char*>(swapped.host.data) + start, nbytes);
        return 0;
    }
    // Mapped memory extends to the end of its page, as the space in the file does.
    if (is_mapped && swapped.file->is_direct()) nbytes = whole_file_pages(nbytes);
    return swapped.file->read(data + start, nbytes, swapped.offset + static_cast<off_t>(start));
}

// False if there is no memory.
bool new_tensor(const SwappedTensor& swapped, bool is_mapped, Tensor* tensor) {
    if (!is_mapped) {
        *tensor = Tensor(swapped.dtype, swapped.shape);
    } else if (MappedBuffer* buffer = MappedBuffer::make(swapped.nbytes)) {
        *tensor = Tensor(swapped.dtype, swapped.shape, buffer);
        buffer->Unref();  // the tensor has its own
    }
    return tensor->IsInitialized() && tensor->tensor_data().size() == swapped.nbytes;
}

std::string failed_text(const SwappedTensor& swapped, const char* doing, int code) {
    return absl::StrCat(swapped.name, ": ", doing, " the file in ",
                        swapped.file == nullptr ? "memory" : swapped.file->directory(),
                        " failed: ", std::strerror(code), "; name another directory");
}

}  // namespace

SwapEngine& SwapEngine::one() {
    static SwapEngine* const engine = new SwapEngine;  // never destroyed: its threads end with the process
    return *engine;
}

// Called by idle writer threads.
bool SwapEngine::shrink_file() {
    const std::shared_ptr<FileStore> store = file();
    return store != nullptr && store->shrink();
}

bool SwapEngine::configure(const Config& config, IoError* error) {
    std::shared_ptr<FileStore> file;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        if (file_ != nullptr && is_same_file(config, config_)) file = file_;  // allocated space is written fast
    }
    if (config.tier == Config::Tier::kHost) {
        file = nullptr;
    } else if (file == nullptr) {
        file = FileStore::open(config, error);
        if (file == nullptr) return false;
    }
    Pool::one().set_limit(static_cast<std::size_t>(config.spare));
    const std::lock_guard<std::mutex> guard(lock_);
    config_ = config;
    file_.swap(file);  // the old file is closed when its last tensor is released
    is_configured_ = true;
    return true;
}

void SwapEngine::set_fallback(const Config& config) {
    const std::lock_guard<std::mutex> guard(lock_);
    fallback_ = config;
    has_fallback_ = true;
}

absl::Status SwapEngine::configure_by_fallback() {
    Config config;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        if (is_configured_) return absl::OkStatus();
        if (!has_fallback_) {
            return absl::FailedPreconditionError(
                "a tensor is to be swapped out and no tier is set: call hpcckpt.lms.runtime.native_engine.configure "
                "first");
        }
        config = fallback_;
    }
    IoError error;
    if (configure(config, &error)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("the directory for tensors that LMS swaps out, ",
                                                      config.directory, ": ", error.text,
                                                      "; name another one with HPCCKPT_LMS_DIR"));
}

Config SwapEngine::config() {
    const std::lock_guard<std::mutex> guard(lock_);
    return config_;
}

std::shared_ptr<FileStore> SwapEngine::file() {
    const std::lock_guard<std::mutex> guard(lock_);
    return file_;
}

void SwapEngine::hinder(const Hindrance& hindrance) {
    {
        const std::lock_guard<std::mutex> guard(lock_);
        hindrance_ = hindrance;
    }
    is_hindered_.notify_all();
}

// Waits for the injected delay; returns the fault settings after it.
Hindrance SwapEngine::pause(int Hindrance::* delay_ms) {
    std::unique_lock<std::mutex> guard(lock_);
    if (hindrance_.*delay_ms > 0) is_hindered_.wait_for(guard, std::chrono::milliseconds(hindrance_.*delay_ms));
    is_hindered_.wait(guard, [&] { return hindrance_.*delay_ms >= 0; });
    return hindrance_;
}

// -- out --------------------------------------------------------------------------------------------

void SwapEngine::put(const std::shared_ptr<SwappedTensor>& swapped, bool by_reference, Done done) {
    Config config;
    std::shared_ptr<FileStore> file;
    int take_error = 0;
    absl::Status space = configure_by_fallback();
    {
        const std::lock_guard<std::mutex> guard(lock_);
        config = config_;
        file = file_;
        take_error = hindrance_.take_error;
    }
    const bool is_small = static_cast<std::int64_t>(swapped->nbytes) < config.min_bytes || swapped->nbytes == 0;
    if (space.ok() && !is_small) {
        space = take_space(config, std::move(file), by_reference, take_error, swapped.get());
    }
    const auto nbytes = static_cast<std::int64_t>(swapped->nbytes);
    const bool stays = is_small || (by_reference && swapped->place == SwappedTensor::Place::kHost);
    if (stays || !space.ok()) {
        Figures::one().count_out(swapped->name, nbytes, is_small, 0);
        done(space);
        return;
    }
    auto leaving = std::make_shared<Leaving>();
    leaving->swapped = swapped;
    leaving->nbytes = nbytes;
    leaving->done = [done, swapped, nbytes, began = now_ns()](const absl::Status& status) {
        Figures::one().count_out(swapped->name, nbytes, false, now_ns() - began);
        done(status);
    };
    swapped->state = SwappedTensor::State::kLeaving;
    set_out(leaving);
}

void SwapEngine::set_out(const LeavingRef& leaving) {
    Figures::one().add_in_flight(leaving->nbytes);
    std::deque<Released> over;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        in_flight_ += leaving->nbytes;
        waiting_.push_back(leaving);
        over = released();
    }
    out_.add({[this, leaving] { return begin_writing(*leaving); },
              [leaving](std::size_t number) {
                  const int code = leaving->hindrance.write_error;
                  return code != 0 ? code : write_piece(*leaving->writing, number);
              },
              [this, leaving](int code) { finish(leaving, end_writing(*leaving, code)); }});
    for (const Released& each : over) each.done(each.status);
}

// Removes and returns the finished swap-outs, in order. The caller holds the lock, and calls `done` without it.
std::deque<SwapEngine::Released> SwapEngine::released() {
    std::deque<Released> over;
    while (!waiting_.empty() && (in_flight_ <= config_.window || waiting_.front()->is_over)) {
        Leaving& first = *waiting_.front();
        over.push_back({std::exchange(first.done, nullptr), first.status});
        waiting_.pop_front();
    }
    return over;
}

std::size_t SwapEngine::begin_writing(Leaving& leaving) {
    leaving.hindrance = pause(&Hindrance::write_delay_ms);
    // If its handle is gone, no swap-in needs it: the step failed, or the tensor is back already.
    leaving.writing = leaving.swapped.lock();
    leaving.began = now_ns();
    return leaving.writing == nullptr ? 0 : count_pieces(leaving.writing->nbytes, kWritten);
}

absl::Status SwapEngine::end_writing(Leaving& leaving, int code) {
    const std::shared_ptr<SwappedTensor> swapped = std::move(leaving.writing);
    if (swapped == nullptr) return absl::OkStatus();
    absl::Status status;
    if (code == 0) {
        Figures::one().count_written(leaving.nbytes, now_ns() - leaving.began);
    } else {
        const std::string doing = absl::StrCat("writing ", leaving.nbytes, " bytes to");
        status = failed(code, config(), failed_text(*swapped, doing.c_str(), code));
    }
    Tensor gone;
    const std::lock_guard<std::mutex> guard(swapped->lock);
    swapped->state = code == 0 ? SwappedTensor::State::kAway : SwappedTensor::State::kFailed;
    swapped->failure = status;
    std::swap(gone, swapped->tensor);
    return status;
}

void SwapEngine::finish(const LeavingRef& leaving, const absl::Status& status) {
    Figures::one().add_in_flight(-leaving->nbytes);
    std::deque<Released> over;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        in_flight_ -= leaving->nbytes;
        leaving->is_over = true;
        leaving->status = status;
        over = released();
    }
    is_out_.notify_all();
    for (const Released& each : over) each.done(each.status);
}

void SwapEngine::wait_until_out() {
    std::unique_lock<std::mutex> guard(lock_);
    is_out_.wait(guard, [this] { return in_flight_ == 0; });
}

// -- in ---------------------------------------------------------------------------------------------

void SwapEngine::get(const std::shared_ptr<SwappedTensor>& swapped, Arrived arrived) {
    Tensor here;
    absl::Status failure;
    bool is_here = false;
    {
        const std::lock_guard<std::mutex> guard(swapped->lock);
        failure = swapped->failure;
        is_here = swapped->state == SwappedTensor::State::kKept || swapped->state == SwappedTensor::State::kLeaving;
        if (is_here) here = swapped->tensor;
    }
    if (is_here || !failure.ok()) {
        arrived(failure, std::move(here), is_here);
        return;
    }
    auto coming = std::make_shared<Coming>();
    coming->swapped = swapped;
    coming->arrived = std::move(arrived);
    in_.add({[this, coming] { return begin_reading(*coming); },
             [coming](std::size_t number) {
                 if (coming->hindrance.read_error != 0) return coming->hindrance.read_error;
                 auto* data = const_cast<char*>(coming->tensor.tensor_data().data());
                 return read_piece(*coming->swapped, number, coming->config.is_mapped, data);
             },
             [this, coming](int code) {
                 const absl::Status status = end_reading(*coming, code);
                 std::exchange(coming->arrived, nullptr)(status, std::move(coming->tensor), false);
             }});
}

// Memory is allocated only now: queued swap-ins have none.
std::size_t SwapEngine::begin_reading(Coming& coming) {
    coming.hindrance = pause(&Hindrance::read_delay_ms);
    coming.config = config();
    coming.began = now_ns();
    if (new_tensor(*coming.swapped, coming.config.is_mapped, &coming.tensor)) {
        return count_pieces(coming.swapped->nbytes, kRead);
    }
    coming.code = ENOMEM;
    return 0;
}

absl::Status SwapEngine::end_reading(Coming& coming, int code) {
    const std::shared_ptr<SwappedTensor> swapped = std::move(coming.swapped);
    const auto nbytes = static_cast<std::int64_t>(swapped->nbytes);
    if (coming.code != 0) {
        return failed(coming.code, coming.config,
                      absl::StrCat(swapped->name, ": no memory to bring ", nbytes, " bytes back to"));
    }
    if (code != 0) {
        const std::string doing = absl::StrCat("reading ", nbytes, " bytes back from");
        return failed(code, coming.config, failed_text(*swapped, doing.c_str(), code));
    }
    Figures::one().count_read(nbytes, now_ns() - coming.began);
    return absl::OkStatus();
}

}  // namespace lms
}  // namespace hpcckpt
