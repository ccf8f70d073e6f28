// Reports to Python which pieces are written, while others are still being written.
#pragma once

#include <nanobind/nanobind.h>

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

#include "byte_view.h"

namespace hpcckpt {

// Releases a piece's buffer and calls a Python function with its index, on a separate thread: a writer that waited for
// the GIL while a training loop holds it would write nothing meanwhile.
class PieceWatcher {
   public:
    // `buffers` has one view for each piece.  The function must not raise.
    PieceWatcher(nanobind::handle on_piece, std::vector<ByteView>& buffers);
    PieceWatcher(const PieceWatcher&) = delete;
    PieceWatcher& operator=(const PieceWatcher&) = delete;

    // These are called without the GIL; `push` from any thread, and never after `finish`, which waits for the last
    // call.  A call of `start` needs one of `finish`.
    void start();
    void push(std::size_t piece) noexcept;
    void finish();

   private:
    void run();
    void report(const std::vector<std::size_t>& pieces);

    nanobind::handle on_piece_;
    std::vector<ByteView>& buffers_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::size_t> waiting_;
    bool is_finished_ = false;
    std::thread thread_;
};

}  // namespace hpcckpt
