#include "piece_watcher.h"

#include <system_error>
#include <utility>

namespace nb = nanobind;

namespace hpcckpt {

PieceWatcher::PieceWatcher(nb::handle on_piece, std::vector<ByteView>& buffers)
    : on_piece_(on_piece), buffers_(buffers) {
    waiting_.reserve(buffers.size());  // so that push allocates nothing
}

void PieceWatcher::start() {
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
        // EAGAIN: a limit on processes was reached; finish() does the telling, later.
    }
}

void PieceWatcher::push(std::size_t piece) noexcept {
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        waiting_.push_back(piece);
    }
    changed_.notify_one();
}

void PieceWatcher::finish() {
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        is_finished_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) {
        thread_.join();
    } else {
        run();
    }
}

void PieceWatcher::run() {
    std::vector<std::size_t> pieces;
    pieces.reserve(buffers_.size());
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return is_finished_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        pieces.clear();
        std::swap(pieces, waiting_);
        lock.unlock();
        tell_of(pieces);
        lock.lock();
    }
}

void PieceWatcher::tell_of(const std::vector<std::size_t>& pieces) {
    const nb::gil_scoped_acquire gil;
    for (const std::size_t piece : pieces) {
        buffers_[piece].release();
        try {
            on_piece_(piece);
        } catch (nb::python_error& error) {
            error.discard_as_unraisable("on_piece");
        }
    }
}

}  // namespace hpcckpt
