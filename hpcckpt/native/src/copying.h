// Copying much memory at once: the snapshot of a state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "workers.h"

namespace hpcckpt {

struct Copy {
    std::uint8_t* to;
    const std::uint8_t* from;
    std::size_t nbytes;
};

// Returns whether a destination shares bytes with another buffer: then the result would depend on the order.
bool has_overlap(const std::vector<Copy>& copies);

// Copies all, shared evenly by `n_threads` threads however uneven the lengths.  Nothing may overlap.
void copy_all(const std::vector<Copy>& copies, std::size_t n_threads, const StopCheck& should_stop = nullptr);

using CopyKernel = void (*)(std::uint8_t* to, const std::uint8_t* from, std::size_t nbytes);

struct CopyChoice {
    std::string name;
    CopyKernel run;
};

// The kernels this processor can run, fastest for much memory first; the last is always memcpy.
const std::vector<CopyChoice>& copy_kernels();

namespace copying {

// Appends the kernels of this architecture that the processor supports, fastest first.
void append_streaming_kernels(std::vector<CopyChoice>& kernels);

}  // namespace copying
}  // namespace hpcckpt
