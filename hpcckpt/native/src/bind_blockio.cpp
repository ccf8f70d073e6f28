#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>
#include <string>

#include "bindings.h"
#include "blockio.h"
#include "byte_view.h"
#include "file.h"
#include "gil.h"
#include "piece_watcher.h"
#include "python_items.h"
#include "signal_check.h"

namespace nb = nanobind;

namespace hpcckpt {
namespace {

// Paths are Python's strings from end to end: those of bytes that are not UTF-8 have no other form in C++.

// Raises OSError, or the subclass Python gives this errno.
[[noreturn]] void raise_os_error(int error, const nb::str& path) {
    errno = error;
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, nb::len(path) == 0 ? nullptr : path.ptr());
    throw nb::python_error();
}

[[noreturn]] void raise_short_file(const BlockFailure& failure, const Piece& piece, const nb::str& path) {
    const nb::str shown = nb::len(path) == 0 ? nb::str("file") : path;
    PyErr_Format(PyExc_EOFError, "%U: ends early: wanted %zu bytes at offset %lld, got %zu", shown.ptr(), piece.nbytes,
                 static_cast<long long>(piece.offset), failure.nbytes);
    throw nb::python_error();
}

Piece make_piece(const ByteView& bytes, nb::handle position) {
    std::int64_t offset = 0;
    if (!nb::try_cast(position, offset)) throw nb::type_error("a file offset must be an integer of 63 bits");
    if (offset < 0) throw nb::value_error(("negative file offset " + std::to_string(offset)).c_str());
    if (static_cast<std::uint64_t>(std::numeric_limits<off_t>::max() - offset) < bytes.nbytes()) {
        throw nb::value_error(("file offset " + std::to_string(offset) + " is too large").c_str());
    }
    return {bytes.data(), bytes.nbytes(), static_cast<off_t>(offset)};
}

using Crcs = std::vector<std::uint32_t>;

// The pieces of one call, whose buffers are held as long as this exists.
struct Request {
    std::vector<ByteView> buffers;
    std::vector<Piece> pieces;
    std::vector<std::optional<Crcs>> expected;

    void add(nb::handle buffer, nb::handle offset, Access access) {
        buffers.emplace_back(buffer, access);
        pieces.push_back(make_piece(buffers.back(), offset));
    }
};

Crcs expected_crcs(nb::handle numbers, std::size_t n_blocks) {
    Crcs crcs;
    if (!nb::try_cast(numbers, crcs)) throw nb::value_error("expected CRCs must be integers of 32 bits");
    if (crcs.size() != n_blocks) {
        const std::string text = std::to_string(crcs.size()) + " expected CRCs for " + std::to_string(n_blocks);
        throw nb::value_error((text + " blocks").c_str());
    }
    return crcs;
}

// Without the GIL.
WriteResult write_watched(int fd, const Request& request, const BlockOptions& options, PieceWatcher& watcher) {
    struct Watch {
        explicit Watch(PieceWatcher& w) : watcher(w) { watcher.start(); }
        ~Watch() { watcher.finish(); }
        PieceWatcher& watcher;
    } watch(watcher);
    return write_blocks(fd, request.pieces, options, [&watcher](std::size_t piece) { watcher.push(piece); });
}

std::vector<Crcs> write(int fd, nb::iterable items, std::size_t block_bytes, std::size_t threads, const nb::str& path,
                        nb::handle on_piece, int nice, bool is_one_writer) {
    Request request;
    const nb::iterator each = iterate(items);
    while (const nb::object item = next_of(each)) {
        const nb::tuple fields = fields_of(item, 2, "each piece has 2 fields");
        request.add(fields[0], fields[1], Access::kRead);
    }
    SignalCheck signals;
    const BlockOptions options{block_bytes, threads, nice, signals.stop_check(), is_one_writer};
    PieceWatcher watcher(on_piece, request.buffers);
    WriteResult result;
    {
        const WithoutGil without_gil;
        result = on_piece.is_none() ? write_blocks(fd, request.pieces, options)
                                    : write_watched(fd, request, options, watcher);
    }
    SignalCheck::raise_pending();
    if (result.failure.is_failed) raise_os_error(result.failure.error, path);
    return std::move(result.crcs);
}

std::vector<std::pair<std::size_t, std::size_t>> read(int fd, nb::iterable items, std::size_t block_bytes,
                                                      std::size_t threads, const nb::str& path) {
    Request request;
    const nb::iterator each = iterate(items);
    while (const nb::object item = next_of(each)) {
        const nb::tuple fields = fields_of(item, 3, "each piece has 3 fields");
        request.add(fields[0], fields[1], Access::kWrite);
        const std::size_t n_blocks = count_blocks(request.pieces.back().nbytes, block_bytes);
        request.expected.emplace_back();
        if (!fields[2].is_none()) request.expected.back() = expected_crcs(fields[2], n_blocks);
    }
    SignalCheck signals;
    ReadResult result;
    {
        const WithoutGil without_gil;
        const BlockOptions options{block_bytes, threads, 0, signals.stop_check()};
        result = read_blocks(fd, request.pieces, request.expected, options);
    }
    SignalCheck::raise_pending();
    const BlockFailure& failure = result.failure;
    if (failure.is_failed && failure.error != 0) raise_os_error(failure.error, path);
    if (failure.is_failed) raise_short_file(failure, request.pieces[failure.piece], path);
    return std::move(result.bad);
}

void reserve(int fd, std::int64_t nbytes, const nb::str& path) {
    if (nbytes < 0) throw nb::value_error("cannot preallocate a negative number of bytes");
    int error;
    {
        const WithoutGil without_gil;
        error = preallocate(fd, static_cast<off_t>(nbytes));
    }
    if (error != 0) raise_os_error(error, path);
}

}  // namespace

void bind_blockio(nb::module_& m) {
    m.def("write_blocks", &write, nb::arg("fd"), nb::arg("pieces"), nb::arg("block_bytes"), nb::arg("threads"),
          nb::arg("path"), nb::arg("on_piece").none(), nb::arg("nice"), nb::arg("is_one_writer"));
    m.def("read_blocks", &read, nb::arg("fd"), nb::arg("pieces"), nb::arg("block_bytes"), nb::arg("threads"),
          nb::arg("path"));
    m.def("preallocate", &reserve, nb::arg("fd"), nb::arg("nbytes"), nb::arg("path"));
}

}  // namespace hpcckpt
