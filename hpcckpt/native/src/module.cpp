// hpcckpt.native._native: see hpcckpt/native/__init__.py for what the functions promise.
#include "bindings.h"

NB_MODULE(_native, m) {
    hpcckpt::bind_crc32c(m);
    hpcckpt::bind_blockio(m);
    hpcckpt::bind_tensor_buffer(m);
}
