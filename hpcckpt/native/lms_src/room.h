// Room in a tier for a tensor that leaves, and what is said where there is none.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "config.h"
#include "file_store.h"
#include "parcel.h"

namespace hpcckpt {
namespace lms {

// Python finds the number, which is errno, in the text again, and makes an error of its own of it.
absl::Status failed(int code, const Config& config, const std::string& text);

// Sets where the parcel goes.  By reference: the host's memory is where it is already.  `take_error` is a fault for
// tests, 0 for none.
absl::Status find_room(const Config& config, std::shared_ptr<FileStore> file, bool by_reference, int take_error,
                       Parcel* parcel);

}  // namespace lms
}  // namespace hpcckpt
