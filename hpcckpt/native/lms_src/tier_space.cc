#include "tier_space.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "../src/utf8.h"
#include "absl/strings/str_cat.h"
#include "pool.h"

namespace hpcckpt {
namespace lms {
namespace {

bool is_full(int code) { return code == ENOSPC || code == EDQUOT || code == EFBIG || code == ENOMEM; }

bool take_host_budget(const Config& config, SwappedTensor* swapped) {
    if (!HostBudget::one().try_take(static_cast<std::int64_t>(swapped->nbytes), config.host_limit)) return false;
    swapped->place = SwappedTensor::Place::kHost;
    return true;
}

absl::Status host_is_full(const Config& config, const SwappedTensor& swapped) {
    return failed(ENOSPC, config,
                  absl::StrCat(swapped.name, ": ", swapped.nbytes, " bytes do not fit into the host tier beside the ",
                               HostBudget::one().used(), " that are there, its limit is ", config.host_limit,
                               " bytes; raise host_limit, take tier='host-then-file', or swap less"));
}

absl::Status take_file_space(const Config& config, std::shared_ptr<FileStore> file, int take_error,
                             SwappedTensor* swapped) {
    IoError error{take_error, std::strerror(take_error)};
    const off_t offset = take_error != 0 ? -1 : file->take(swapped->nbytes, &error);
    if (offset < 0) {
        return failed(error.code, config,
                      absl::StrCat(swapped->name, ": ", swapped->nbytes, " bytes do not fit into the file in ",
                                   file->directory(), " beside the ", file->used(), " that are there: ", error.text,
                                   "; free space there, name another directory, raise file_limit, or swap less"));
    }
    swapped->place = SwappedTensor::Place::kFile;
    swapped->offset = offset;
    swapped->file = std::move(file);
    return absl::OkStatus();
}

}  // namespace

absl::Status failed(int code, const Config& config, const std::string& text) {
    const std::string told = as_utf8(absl::StrCat("hpcckpt.lms (errno ", code, "): ", who(config), text));
    return is_full(code) ? absl::ResourceExhaustedError(told) : absl::UnavailableError(told);
}

absl::Status take_space(const Config& config, std::shared_ptr<FileStore> file, bool by_reference, int take_error,
                        SwappedTensor* swapped) {
    if (config.tier == Config::Tier::kFile) return take_file_space(config, std::move(file), take_error, swapped);
    if (!take_host_budget(config, swapped)) {
        if (config.tier == Config::Tier::kHost) return host_is_full(config, *swapped);
        return take_file_space(config, std::move(file), take_error, swapped);
    }
    if (by_reference) return absl::OkStatus();
    swapped->host = Pool::one().take(swapped->nbytes);
    if (swapped->host.data != nullptr) return absl::OkStatus();
    return failed(ENOMEM, config, absl::StrCat(swapped->name, ": no memory for ", swapped->nbytes, " bytes"));
}

}  // namespace lms
}  // namespace hpcckpt
