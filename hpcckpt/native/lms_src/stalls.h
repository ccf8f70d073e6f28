// How long ops waited for their swap-ins: from when all other inputs were ready and the swap-in had begun.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hpcckpt {
namespace lms {

// `op` consumes `n_swap_ins` swap-ins; all its other inputs are ready.
void others_are_ready(const std::string& op, std::int64_t n_swap_ins, std::int64_t step);

// A swap-in for these ops that began at `began_ns` is done.
void swap_in_is_done(const std::vector<std::string>& ops, std::int64_t step, std::int64_t began_ns);

}  // namespace lms
}  // namespace hpcckpt
