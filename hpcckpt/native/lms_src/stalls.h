// How long ops waited for their swap-ins: from when everything else that an op takes was there, and the swap-in had
// begun.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hpcckpt {
namespace lms {

// `op` takes tensors of `n_swap_ins` swap-ins; all else that it takes is there.
void others_are_ready(const std::string& op, std::int64_t n_swap_ins, std::int64_t step);

// A swap-in of these ops is done, which had begun at that time.
void swap_in_is_done(const std::vector<std::string>& ops, std::int64_t step, std::int64_t began_ns);

}  // namespace lms
}  // namespace hpcckpt
