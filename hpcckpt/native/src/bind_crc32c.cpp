#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "bindings.h"
#include "blockio.h"
#include "byte_view.h"
#include "crc32c.h"
#include "gil.h"
#include "signal_check.h"

namespace nb = nanobind;

namespace hpcckpt {
namespace {

// Below this, giving up the GIL and taking it again costs more than the sum.
constexpr std::size_t kReleaseGilBytes = std::size_t{32} << 10;

// What is summed up between two looks at signals.
constexpr std::size_t kPartBytes = std::size_t{16} << 20;

std::uint32_t checksum(nb::handle data, std::uint32_t value) {
    const ByteView bytes(data);
    if (bytes.nbytes() < kReleaseGilBytes) return crc32c(value, bytes.data(), bytes.nbytes());
    SignalCheck signals;
    {
        const WithoutGil without_gil;
        const StopCheck should_stop = signals.stop_check();
        for (std::size_t start = 0; start < bytes.nbytes(); start += kPartBytes) {
            if (should_stop && should_stop()) break;
            value = crc32c(value, bytes.data() + start, std::min(kPartBytes, bytes.nbytes() - start));
        }
    }
    SignalCheck::raise_pending();
    return value;
}

std::vector<std::uint32_t> checksum_in_blocks(nb::handle data, std::size_t block_bytes, std::size_t threads) {
    const ByteView bytes(data);
    SignalCheck signals;
    PieceCrcs crcs;
    {
        const WithoutGil without_gil;
        crcs = checksum_blocks({{bytes.data(), bytes.nbytes(), 0}}, {block_bytes, threads, 0, signals.stop_check()});
    }
    SignalCheck::raise_pending();
    return std::move(crcs.front());
}

std::uint32_t checksum_with_kernel(const std::string& kernel, nb::handle data, std::uint32_t value) {
    const ByteView bytes(data);
    for (const Crc32cChoice& choice : crc32c_kernels()) {
        if (choice.name == kernel) return ~choice.run(~value, bytes.data(), bytes.nbytes());
    }
    throw nb::value_error(("no CRC32C kernel " + kernel + " on this processor").c_str());
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (const Crc32cChoice& choice : crc32c_kernels()) names.push_back(choice.name);
    return names;
}

}  // namespace

void bind_crc32c(nb::module_& m) {
    m.def("crc32c", &checksum, nb::arg("data"), nb::arg("value"));
    m.def("crc32c_combine", &crc32c_combine, nb::arg("first"), nb::arg("second"), nb::arg("second_nbytes"));
    m.def("crc32c_blocks", &checksum_in_blocks, nb::arg("data"), nb::arg("block_bytes"), nb::arg("threads"));
    m.def("crc32c_kernels", &kernel_names);
    m.def("crc32c_with_kernel", &checksum_with_kernel, nb::arg("kernel"), nb::arg("data"), nb::arg("value"));
}

}  // namespace hpcckpt
