// Signals that a scheduler sends to all processes of a job: a forked child must not end by them, its parent goes on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hpcckpt {

// Bytes that parent and children share, both written by the parent.
struct ParentState {
    volatile std::uint8_t has_signal;  // a signal asked the parent to stop
    volatile std::uint8_t is_ending;   // the parent ends, and ends its children; for handlers of Python's
};

// Has the signal `number` set `state->has_signal` at once, before it calls the handler that Python has installed: the
// function that Python calls then runs only when the main thread returns from its call.  Children inherit it, but set
// nothing.  Another library's handler, or none, is left as it is; so the first call must find Python's.  `state` must
// live as long as the process, and is the same for all signals.  Returns 0, or errno.
int mark_signal(int number, ParentState* state);

// Has the signal `number` do nothing in this child if it was meant for the whole job; else the handler that is
// installed is called or, if there is none, the child ends, wherever it is.  The signal is meant for the child if its
// parent sent it (the process `parent_pid`, or the one that forked the child), or has ended, or receives no signal
// within `wait_ms`. `parent` must live as long as the process, and is the same for all signals.  Returns 0, or errno.
int end_unless_parent_has_signal(int number, const ParentState* parent, long wait_ms, int parent_pid);

}  // namespace hpcckpt
