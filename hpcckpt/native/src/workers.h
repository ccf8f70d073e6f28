// A loop over independent items, in order, shared by a few threads that live as long as the call.
//
// No pool outlives a call: nothing to shut down at interpreter exit, nothing lost in a forked child, and starting a
// thread (some 20 microseconds) is small beside the megabytes each call moves.
#pragma once

#include <cstddef>
#include <functional>

namespace hpcckpt {

// Asked by the calling thread between items, and while it waits for other threads: true ends the work early, and it is
// not asked again.  Must not throw.
using StopCheck = std::function<bool()>;

// Calls `work(i)` for i in [0, n_items), handed out in ascending order, on `n_threads` threads of which the caller is
// one.  `work` returns false to stop: no further item is handed out, but items already handed out are finished, so
// every item below a failed one has been worked on.  `work` must not throw.  Where the system refuses more threads,
// fewer do the work.
//
// With `nice` above 0 the caller only waits, and the threads get a lower priority than others of this process and this
// machine (on Linux, where each thread has a nice value): a thread cannot raise its priority again.
void for_each_item(std::size_t n_items, std::size_t n_threads, const std::function<bool(std::size_t)>& work,
                   const StopCheck& should_stop = nullptr, int nice = 0);

// The same while the calling thread calls `besides`, and works on items after that; where it returns false, no further
// item is handed out.  `besides` asks `should_stop` itself.
void for_each_item_besides(const std::function<bool()>& besides, std::size_t n_items, std::size_t n_threads,
                           const std::function<bool(std::size_t)>& work, const StopCheck& should_stop = nullptr);

}  // namespace hpcckpt
