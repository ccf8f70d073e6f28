#include "piece_watcher.h"

#include <exception>
#include <utility>

#include "gil.h"

namespace nb = nanobind;

namespace hpcckpt {

PieceWatcher::PieceWatcher(nb::handle on_piece, std::vector<ByteView>& buffers)
    : on_piece_(on_piece), buffers_(buffers) {
    waiting_.reserve(buffers.size());  // so that push allocates nothing
}

void PieceWatcher::start() {
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::exception&) {
        // EAGAIN or no memory: a limit was reached; finish() makes the calls, later.
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
        report(pieces);
        lock.lock();
    }
}

void PieceWatcher::report(const std::vector<std::size_t>& pieces) {
    const WithGil gil;
    outliving_interpreter([&] {
        for (const std::size_t piece : pieces) {
            buffers_[piece].release();
            PyObject* result = PyObject_CallFunction(on_piece_.ptr(), "n", static_cast<Py_ssize_t>(piece));
            if (result == nullptr) PyErr_WriteUnraisable(on_piece_.ptr());
            Py_XDECREF(result);
        }
    });
}

}  // namespace hpcckpt
