#include "mover.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "clock.h"
#include "figures.h"
#include "mapped_buffer.h"
#include "room.h"

namespace hpcckpt {
namespace lms {
namespace {

using tensorflow::Tensor;

// A multiple of a page.  What is written goes through memory of that size mostly, what is read does not.
constexpr std::size_t kWritten = std::size_t{4} << 20;
constexpr std::size_t kRead = std::size_t{16} << 20;

std::size_t count_pieces(std::size_t nbytes, std::size_t piece) { return (nbytes + piece - 1) / piece; }

int write_piece(const Parcel& parcel, std::size_t number) {
    const std::size_t start = number * kWritten;
    const std::size_t nbytes = std::min(kWritten, parcel.nbytes - start);
    const char* data = parcel.tensor.tensor_data().data() + start;  // only the end of this takes the tensor away
    if (parcel.place == Parcel::Place::kFile) {
        return parcel.file->write(data, nbytes, parcel.offset + static_cast<off_t>(start));
    }
    std::memcpy(static_cast<char*>(parcel.host.data) + start, data, nbytes);
    return 0;
}

int read_piece(const Parcel& parcel, std::size_t number, bool is_mapped, char* data) {
    const std::size_t start = number * kRead;
    std::size_t nbytes = std::min(kRead, parcel.nbytes - start);
    if (parcel.place != Parcel::Place::kFile) {
        std::memcpy(data + start, static_cast<const char*>(parcel.host.data) + start, nbytes);
        return 0;
    }
    // Mapped memory extends to the end of its page, as the room in the file does.
    if (is_mapped && parcel.file->is_direct()) nbytes = whole_file_pages(nbytes);
    return parcel.file->read(data + start, nbytes, parcel.offset + static_cast<off_t>(start));
}

// False if there is no memory.
bool new_tensor(const Parcel& parcel, bool is_mapped, Tensor* tensor) {
    if (!is_mapped) {
        *tensor = Tensor(parcel.dtype, parcel.shape);
    } else if (MappedBuffer* buffer = MappedBuffer::make(parcel.nbytes)) {
        *tensor = Tensor(parcel.dtype, parcel.shape, buffer);
        buffer->Unref();  // the tensor has its own
    }
    return tensor->IsInitialized() && tensor->tensor_data().size() == parcel.nbytes;
}

std::string failed_text(const Parcel& parcel, const char* doing, int code) {
    return absl::StrCat(parcel.name, ": ", doing, " the file in ",
                        parcel.file == nullptr ? "memory" : parcel.file->directory(), " failed: ", std::strerror(code),
                        "; name another directory");
}

}  // namespace

Mover& Mover::one() {
    static Mover* const mover = new Mover;  // never destroyed: its threads end with the process
    return *mover;
}

// Called by the threads that write, when they have had nothing to do for a while.
bool Mover::shrink_file() {
    const std::shared_ptr<FileStore> store = file();
    return store != nullptr && store->shrink();
}

bool Mover::configure(const Config& config, IoError* error) {
    std::shared_ptr<FileStore> file;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        if (file_ != nullptr && is_same_file(config, config_))
            file = file_;  // what it has been given room is written fast
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
    file_.swap(file);  // the former one closes when its last tensor is back
    is_configured_ = true;
    return true;
}

void Mover::set_fallback(const Config& config) {
    const std::lock_guard<std::mutex> guard(lock_);
    fallback_ = config;
    has_fallback_ = true;
}

absl::Status Mover::configure_by_fallback() {
    Config config;
    {
        const std::lock_guard<std::mutex> guard(lock_);
        if (is_configured_) return absl::OkStatus();
        if (!has_fallback_) {
            return absl::FailedPreconditionError(
                "a tensor is to be swapped out and no tier is set: call hpcckpt.lms.engine.configure first");
        }
        config = fallback_;
    }
    IoError error;
    if (configure(config, &error)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("the directory for tensors that LMS swaps out, ",
                                                      config.directory, ": ", error.text,
                                                      "; name another one with HPCCKPT_LMS_DIR"));
}

Config Mover::config() {
    const std::lock_guard<std::mutex> guard(lock_);
    return config_;
}

std::shared_ptr<FileStore> Mover::file() {
    const std::lock_guard<std::mutex> guard(lock_);
    return file_;
}

void Mover::hinder(const Hindrance& hindrance) {
    {
        const std::lock_guard<std::mutex> guard(lock_);
        hindrance_ = hindrance;
    }
    is_hindered_.notify_all();
}

// Waits as long as a hindrance says, and returns the one that holds then.
Hindrance Mover::pause(int Hindrance::* delay_ms) {
    std::unique_lock<std::mutex> guard(lock_);
    if (hindrance_.*delay_ms > 0) is_hindered_.wait_for(guard, std::chrono::milliseconds(hindrance_.*delay_ms));
    is_hindered_.wait(guard, [&] { return hindrance_.*delay_ms >= 0; });
    return hindrance_;
}

// -- out --------------------------------------------------------------------------------------------

void Mover::put(const std::shared_ptr<Parcel>& parcel, bool by_reference, Done done) {
    Config config;
    std::shared_ptr<FileStore> file;
    int take_error = 0;
    absl::Status room = configure_by_fallback();
    {
        const std::lock_guard<std::mutex> guard(lock_);
        config = config_;
        file = file_;
        take_error = hindrance_.take_error;
    }
    const bool is_small = static_cast<std::int64_t>(parcel->nbytes) < config.min_bytes || parcel->nbytes == 0;
    if (room.ok() && !is_small) {
        room = find_room(config, std::move(file), by_reference, take_error, parcel.get());
    }
    const auto nbytes = static_cast<std::int64_t>(parcel->nbytes);
    const bool stays = is_small || (by_reference && parcel->place == Parcel::Place::kHost);
    if (stays || !room.ok()) {
        Figures::one().count_out(parcel->name, nbytes, is_small, 0);
        done(room);
        return;
    }
    auto leaving = std::make_shared<Leaving>();
    leaving->parcel = parcel;
    leaving->nbytes = nbytes;
    leaving->done = [done, parcel, nbytes, began = now_ns()](const absl::Status& status) {
        Figures::one().count_out(parcel->name, nbytes, false, now_ns() - began);
        done(status);
    };
    parcel->state = Parcel::State::kLeaving;
    set_out(leaving);
}

void Mover::set_out(const LeavingRef& leaving) {
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

// Those whose swap-out is now done, in order.  The caller holds the lock, and calls them without it.
std::deque<Mover::Released> Mover::released() {
    std::deque<Released> over;
    while (!waiting_.empty() && (in_flight_ <= config_.window || waiting_.front()->is_over)) {
        Leaving& first = *waiting_.front();
        over.push_back({std::exchange(first.done, nullptr), first.status});
        waiting_.pop_front();
    }
    return over;
}

std::size_t Mover::begin_writing(Leaving& leaving) {
    leaving.hindrance = pause(&Hindrance::write_delay_ms);
    // Nobody waits for it any more if its handle is gone: the step failed, or had it back already.
    leaving.writing = leaving.parcel.lock();
    leaving.began = now_ns();
    return leaving.writing == nullptr ? 0 : count_pieces(leaving.writing->nbytes, kWritten);
}

absl::Status Mover::end_writing(Leaving& leaving, int code) {
    const std::shared_ptr<Parcel> parcel = std::move(leaving.writing);
    if (parcel == nullptr) return absl::OkStatus();
    absl::Status status;
    if (code == 0) {
        Figures::one().count_written(leaving.nbytes, now_ns() - leaving.began);
    } else {
        const std::string doing = absl::StrCat("writing ", leaving.nbytes, " bytes to");
        status = failed(code, config(), failed_text(*parcel, doing.c_str(), code));
    }
    Tensor gone;
    const std::lock_guard<std::mutex> guard(parcel->lock);
    parcel->state = code == 0 ? Parcel::State::kAway : Parcel::State::kFailed;
    parcel->failure = status;
    std::swap(gone, parcel->tensor);
    return status;
}

void Mover::finish(const LeavingRef& leaving, const absl::Status& status) {
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

void Mover::wait_until_out() {
    std::unique_lock<std::mutex> guard(lock_);
    is_out_.wait(guard, [this] { return in_flight_ == 0; });
}

// -- in ---------------------------------------------------------------------------------------------

void Mover::get(const std::shared_ptr<Parcel>& parcel, Arrived arrived) {
    Tensor here;
    absl::Status failure;
    bool is_here = false;
    {
        const std::lock_guard<std::mutex> guard(parcel->lock);
        failure = parcel->failure;
        is_here = parcel->state == Parcel::State::kKept || parcel->state == Parcel::State::kLeaving;
        if (is_here) here = parcel->tensor;
    }
    if (is_here || !failure.ok()) {
        arrived(failure, std::move(here), is_here);
        return;
    }
    auto coming = std::make_shared<Coming>();
    coming->parcel = parcel;
    coming->arrived = std::move(arrived);
    in_.add({[this, coming] { return begin_reading(*coming); },
             [coming](std::size_t number) {
                 if (coming->hindrance.read_error != 0) return coming->hindrance.read_error;
                 auto* data = const_cast<char*>(coming->tensor.tensor_data().data());
                 return read_piece(*coming->parcel, number, coming->config.is_mapped, data);
             },
             [this, coming](int code) {
                 const absl::Status status = end_reading(*coming, code);
                 std::exchange(coming->arrived, nullptr)(status, std::move(coming->tensor), false);
             }});
}

// The memory is taken only now: what waits in the queue has none.
std::size_t Mover::begin_reading(Coming& coming) {
    coming.hindrance = pause(&Hindrance::read_delay_ms);
    coming.config = config();
    coming.began = now_ns();
    if (new_tensor(*coming.parcel, coming.config.is_mapped, &coming.tensor)) {
        return count_pieces(coming.parcel->nbytes, kRead);
    }
    coming.code = ENOMEM;
    return 0;
}

absl::Status Mover::end_reading(Coming& coming, int code) {
    const std::shared_ptr<Parcel> parcel = std::move(coming.parcel);
    const auto nbytes = static_cast<std::int64_t>(parcel->nbytes);
    if (coming.code != 0) {
        return failed(coming.code, coming.config,
                      absl::StrCat(parcel->name, ": no memory to bring ", nbytes, " bytes back to"));
    }
    if (code != 0) {
        const std::string doing = absl::StrCat("reading ", nbytes, " bytes back from");
        return failed(code, coming.config, failed_text(*parcel, doing.c_str(), code));
    }
    Figures::one().count_read(nbytes, now_ns() - coming.began);
    return absl::OkStatus();
}

}  // namespace lms
}  // namespace hpcckpt
