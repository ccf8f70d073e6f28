// Giving memory its pages before it is needed: first touch can cost twenty times a warm copy on virtual machines.
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers.h"

namespace hpcckpt {

// Makes every page of the range present and writable, with `n_threads` threads; its content stays.
void prefault(std::uint8_t* data, std::size_t nbytes, std::size_t n_threads, const StopCheck& should_stop = nullptr);

}  // namespace hpcckpt
