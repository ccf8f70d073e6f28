// A forked child that ends by a signal unless its parent had a signal too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hpcckpt {

// Bytes that parent and children share, both written by the parent.
struct ParentState {
    volatile std::uint8_t has_signal;  // a signal asked the parent to stop
    volatile std::uint8_t is_ending;   // the parent ends, and ends its children
};

// Installs a handler for the signal `number` that ends this process as the system would, unless the parent has had a
// signal or receives one within `wait_ms`.  It does so wherever the process is: a handler of Python's would wait until
// a blocked call returns.  `parent` must live as long as the process.  Returns 0, or errno.
int end_unless_parent_has_signal(int number, const ParentState* parent, unsigned wait_ms);

}  // namespace hpcckpt
