#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>
#include <string>

#include "bindings.h"
#include "blockio.h"
#include "byte_view.h"
#include "file.h"
#include "piece_watcher.h"

namespace nb = nanobind;

namespace hpcckpt {
namespace {

// Raises OSError, or the subclass Python gives this errno.
[[noreturn]] void raise_os_error(int error, const std::string& path) {
    errno = error;
    if (path.empty()) {
        PyErr_SetFromErrno(PyExc_OSError);
    } else {
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
    }
    throw nb::python_error();
}

[[noreturn]] void raise_short_file(const BlockFailure& failure, const Piece& piece, const std::string& path) {
    const std::string text = (path.empty() ? "file" : path) + ": ends early: wanted " + std::to_string(piece.nbytes) +
                             " bytes at offset " + std::to_string(piece.offset) + ", got " +
                             std::to_string(failure.nbytes);
    PyErr_SetString(PyExc_EOFError, text.c_str());
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

// The pieces of one call: the buffers are held as long as this lives.
struct Request {
    std::vector<ByteView> buffers;
    std::vector<Piece> pieces;
    std::vector<std::optional<Crcs>> expected;

    void add(nb::handle buffer, nb::handle offset, Access access) {
        buffers.emplace_back(buffer, access);
        pieces.push_back(make_piece(buffers.back(), offset));
    }
};

nb::tuple fields_of(nb::handle item, std::size_t n_fields) {
    nb::tuple fields = nb::isinstance<nb::tuple>(item) ? nb::borrow<nb::tuple>(item) : nb::tuple(item);
    if (fields.size() != n_fields) {
        throw nb::type_error(("each piece has " + std::to_string(n_fields) + " fields").c_str());
    }
    return fields;
}

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

std::vector<Crcs> write(int fd, nb::iterable items, std::size_t block_bytes, std::size_t threads,
                        const std::string& path, nb::handle on_piece, int nice) {
    Request request;
    for (nb::handle item : items) {
        const nb::tuple fields = fields_of(item, 2);
        request.add(fields[0], fields[1], Access::kRead);
    }
    const BlockOptions options{block_bytes, threads, nice};
    PieceWatcher watcher(on_piece, request.buffers);
    WriteResult result;
    {
        const nb::gil_scoped_release without_gil;
        result = on_piece.is_none() ? write_blocks(fd, request.pieces, options)
                                    : write_watched(fd, request, options, watcher);
    }
    if (result.failure.is_failed) raise_os_error(result.failure.error, path);
    return std::move(result.crcs);
}

std::vector<std::pair<std::size_t, std::size_t>> read(int fd, nb::iterable items, std::size_t block_bytes,
                                                      std::size_t threads, const std::string& path) {
    Request request;
    for (nb::handle item : items) {
        const nb::tuple fields = fields_of(item, 3);
        request.add(fields[0], fields[1], Access::kWrite);
        const std::size_t n_blocks = count_blocks(request.pieces.back().nbytes, block_bytes);
        request.expected.emplace_back();
        if (!fields[2].is_none()) request.expected.back() = expected_crcs(fields[2], n_blocks);
    }
    ReadResult result;
    {
        const nb::gil_scoped_release without_gil;
        result = read_blocks(fd, request.pieces, request.expected, {block_bytes, threads});
    }
    const BlockFailure& failure = result.failure;
    if (failure.is_failed && failure.error != 0) raise_os_error(failure.error, path);
    if (failure.is_failed) raise_short_file(failure, request.pieces[failure.piece], path);
    return std::move(result.bad);
}

void reserve(int fd, std::int64_t nbytes, const std::string& path) {
    if (nbytes < 0) throw nb::value_error("cannot preallocate a negative number of bytes");
    int error;
    {
        const nb::gil_scoped_release without_gil;
        error = preallocate(fd, static_cast<off_t>(nbytes));
    }
    if (error != 0) raise_os_error(error, path);
}

}  // namespace

void bind_blockio(nb::module_& m) {
    m.def("write_blocks", &write, nb::arg("fd"), nb::arg("pieces"), nb::arg("block_bytes"), nb::arg("threads"),
          nb::arg("path"), nb::arg("on_piece").none(), nb::arg("nice"));
    m.def("read_blocks", &read, nb::arg("fd"), nb::arg("pieces"), nb::arg("block_bytes"), nb::arg("threads"),
          nb::arg("path"));
    m.def("preallocate", &reserve, nb::arg("fd"), nb::arg("nbytes"), nb::arg("path"));
}

}  // namespace hpcckpt
