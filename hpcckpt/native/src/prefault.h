// Giving memory its pages before it is needed: first touch can cost twenty times a warm copy on virtual machines.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hpcckpt {

// Makes every page of the range present and writable, with `n_threads` threads; what stands there stays.
void prefault(std::uint8_t* data, std::size_t nbytes, std::size_t n_threads);

}  // namespace hpcckpt
