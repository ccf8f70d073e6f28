// Allocates space in a tier for a swapped-out tensor, or returns the error.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "config.h"
#include "file_store.h"
#include "swapped_tensor.h"

namespace hpcckpt {
namespace lms {

// Python reads errno from the message and raises the matching error.
absl::Status failed(int code, const Config& config, const std::string& text);

// Sets where `swapped` is stored. By reference: it stays in the host's memory. `take_error` is an injected fault, 0 for
// none.
absl::Status take_space(const Config& config, std::shared_ptr<FileStore> file, bool by_reference, int take_error,
                        SwappedTensor* swapped);

}  // namespace lms
}  // namespace hpcckpt
