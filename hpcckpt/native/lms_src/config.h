// How swapped-out tensors are stored: set by Python before the first swap-out.
#pragma once

#include <cstdint>
#include <string>

namespace hpcckpt {
namespace lms {

struct Config {
    enum class Tier { kHost, kFile, kHostThenFile };

    Tier tier = Tier::kFile;
    std::string directory;
    std::int64_t window = 0;      // bytes that may still be in transit when a swap-out is reported as done
    std::int64_t host_limit = 0;  // 0: none
    std::int64_t file_limit = 0;  // 0: none
    std::int64_t min_bytes = 0;   // smaller tensors stay
    std::int64_t spare = 0;       // freed bytes that are kept for the next swap-ins
    int rank = -1;                // for error messages; -1: there is only one
    bool is_mapped = true;        // swap-ins use memory from mmap, not from TensorFlow's allocator
    bool is_named = false;        // make the file by name and remove the name, though O_TMPFILE would do
};

// True if both use the same file.
inline bool is_same_file(const Config& a, const Config& b) {
    return a.directory == b.directory && a.file_limit == b.file_limit && a.is_named == b.is_named;
}

// "[rank 3] ", or nothing.
inline std::string who(const Config& config) {
    return config.rank < 0 ? "" : "[rank " + std::to_string(config.rank) + "] ";
}

}  // namespace lms
}  // namespace hpcckpt
