// hpcckpt.native._native: see hpcckpt/native/__init__.py for what the functions promise.
#include "bindings.h"

NB_MODULE(_native, m) {
    // Views still held when the interpreter ends, by a saver on another thread say, are no leak worth a message to
    // users.
    nanobind::set_leak_warnings(false);
    hpcckpt::bind_child_signal(m);
    hpcckpt::bind_crc32c(m);
    hpcckpt::bind_blockio(m);
    hpcckpt::bind_memory(m);
    hpcckpt::bind_tensor_buffer(m);
}
