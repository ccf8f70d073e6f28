#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bindings.h"
#include "byte_view.h"
#include "copying.h"
#include "gil.h"
#include "nonfinite.h"
#include "prefault.h"
#include "python_items.h"
#include "signal_check.h"

namespace nb = nanobind;

namespace hpcckpt {
namespace {

// The pairs of one call: the buffers are held as long as this lives.
struct CopyRequest {
    std::vector<ByteView> buffers;
    std::vector<Copy> copies;

    void add(nb::handle source, nb::handle destination) {
        const ByteView& from = buffers.emplace_back(source);
        const Copy half{nullptr, from.data(), from.nbytes()};
        const ByteView& to = buffers.emplace_back(destination, Access::kWrite);
        if (half.nbytes != to.nbytes()) {
            const std::string text = "pair " + std::to_string(copies.size()) + ": a source of " +
                                     std::to_string(half.nbytes) + " bytes for a destination of " +
                                     std::to_string(to.nbytes());
            throw nb::value_error(text.c_str());
        }
        copies.push_back({to.data(), half.from, half.nbytes});
    }
};

CopyRequest request_of(nb::iterable pairs) {
    CopyRequest request;
    const nb::iterator each = iterate(pairs);
    while (const nb::object item = next_of(each)) {
        const nb::tuple fields = fields_of(item, 2, "each pair has a source and a destination");
        request.add(fields[0], fields[1]);
    }
    if (has_overlap(request.copies)) throw nb::value_error("a destination overlaps another buffer of the same copy");
    return request;
}

void copy_pieces(nb::iterable pairs, std::size_t threads) {
    const CopyRequest request = request_of(pairs);
    SignalCheck signals;
    {
        const WithoutGil without_gil;
        copy_all(request.copies, threads, signals.stop_check());
    }
    SignalCheck::raise_pending();
}

void copy_with_kernel(const std::string& kernel, nb::handle source, nb::handle destination) {
    CopyRequest request;
    request.add(source, destination);
    for (const CopyChoice& choice : copy_kernels()) {
        if (choice.name != kernel) continue;
        choice.run(request.copies[0].to, request.copies[0].from, request.copies[0].nbytes);
        return;
    }
    throw nb::value_error(("no copy kernel " + kernel + " on this processor").c_str());
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (const CopyChoice& choice : copy_kernels()) names.push_back(choice.name);
    return names;
}

std::size_t count(nb::handle data, const std::string& dtype, std::size_t threads) {
    const ByteView bytes(data);
    const NonfinitePattern* pattern = find_nonfinite_pattern(dtype);
    if (pattern == nullptr) return 0;
    if (bytes.nbytes() % (pattern->nbytes * pattern->n_words) != 0) {
        throw nb::value_error((std::to_string(bytes.nbytes()) + " bytes are no whole number of " + dtype).c_str());
    }
    SignalCheck signals;
    std::size_t n_found = 0;
    {
        const WithoutGil without_gil;
        n_found = count_nonfinite(bytes.data(), bytes.nbytes(), *pattern, threads, signals.stop_check());
    }
    SignalCheck::raise_pending();
    return n_found;
}

void prefault_buffer(nb::handle data, std::size_t threads) {
    const ByteView bytes(data, Access::kWrite);
    SignalCheck signals;
    {
        const WithoutGil without_gil;
        prefault(bytes.data(), bytes.nbytes(), threads, signals.stop_check());
    }
    SignalCheck::raise_pending();
}

}  // namespace

void bind_memory(nb::module_& m) {
    m.def("copy_pieces", &copy_pieces, nb::arg("pairs"), nb::arg("threads"));
    m.def("copy_kernels", &kernel_names);
    m.def("copy_with_kernel", &copy_with_kernel, nb::arg("kernel"), nb::arg("source"), nb::arg("destination"));
    m.def("count_nonfinite", &count, nb::arg("data"), nb::arg("dtype"), nb::arg("threads"));
    m.def("prefault", &prefault_buffer, nb::arg("data"), nb::arg("threads"));
}

}  // namespace hpcckpt
