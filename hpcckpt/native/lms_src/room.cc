#include "room.h"

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

bool find_host_room(const Config& config, Parcel* parcel) {
    if (!HostLedger::one().try_take(static_cast<std::int64_t>(parcel->nbytes), config.host_limit)) return false;
    parcel->place = Parcel::Place::kHost;
    return true;
}

absl::Status host_is_full(const Config& config, const Parcel& parcel) {
    return failed(ENOSPC, config,
                  absl::StrCat(parcel.name, ": ", parcel.nbytes, " bytes do not fit into the host tier beside the ",
                               HostLedger::one().used(), " that are there, its limit is ", config.host_limit,
                               " bytes; raise host_limit, take tier='host-then-file', or swap less"));
}

absl::Status find_file_room(const Config& config, std::shared_ptr<FileStore> file, int take_error, Parcel* parcel) {
    IoError error{take_error, std::strerror(take_error)};
    const off_t offset = take_error != 0 ? -1 : file->take(parcel->nbytes, &error);
    if (offset < 0) {
        return failed(error.code, config,
                      absl::StrCat(parcel->name, ": ", parcel->nbytes, " bytes do not fit into the file in ",
                                   file->directory(), " beside the ", file->used(), " that are there: ", error.text,
                                   "; free space there, name another directory, raise file_limit, or swap less"));
    }
    parcel->place = Parcel::Place::kFile;
    parcel->offset = offset;
    parcel->file = std::move(file);
    return absl::OkStatus();
}

}  // namespace

absl::Status failed(int code, const Config& config, const std::string& text) {
    const std::string told = as_utf8(absl::StrCat("hpcckpt.lms (errno ", code, "): ", who(config), text));
    return is_full(code) ? absl::ResourceExhaustedError(told) : absl::UnavailableError(told);
}

absl::Status find_room(const Config& config, std::shared_ptr<FileStore> file, bool by_reference, int take_error,
                       Parcel* parcel) {
    if (config.tier == Config::Tier::kFile) return find_file_room(config, std::move(file), take_error, parcel);
    if (!find_host_room(config, parcel)) {
        if (config.tier == Config::Tier::kHost) return host_is_full(config, *parcel);
        return find_file_room(config, std::move(file), take_error, parcel);
    }
    if (by_reference) return absl::OkStatus();
    parcel->host = Pool::one().take(parcel->nbytes);
    if (parcel->host.data != nullptr) return absl::OkStatus();
    return failed(ENOMEM, config, absl::StrCat(parcel->name, ": no memory for ", parcel->nbytes, " bytes"));
}

}  // namespace lms
}  // namespace hpcckpt
