// Writing and reading pieces of memory with a CRC32C per block, in one pass over the bytes.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "workers.h"

namespace hpcckpt {

// A contiguous run of memory and its offset in the file.
struct Piece {
    std::uint8_t* data;
    std::size_t nbytes;
    off_t offset;
};

struct BlockOptions {
    std::size_t block_bytes;
    std::size_t n_threads;
    int nice = 0;  // of the threads that write; see for_each_item
    StopCheck should_stop = nullptr;
    bool is_one_writer = false;  // one thread writes; a second one, if there is one, takes checksums
};

// The first block, in the order of pieces and blocks, that could not be moved whole.
struct BlockFailure {
    int error = 0;  // errno; 0 with is_failed means that the file is too short
    bool is_failed = false;
    std::size_t piece = 0;
    std::size_t nbytes = 0;  // of that piece, counted from its start to where the transfer ended
};

// Blocks are counted within each piece; the last one is short, and an empty piece has none.
std::size_t count_blocks(std::size_t nbytes, std::size_t block_bytes);

using PieceCrcs = std::vector<std::vector<std::uint32_t>>;  // one list per piece, in block order

PieceCrcs checksum_blocks(const std::vector<Piece>& pieces, const BlockOptions& options);

struct WriteResult {
    BlockFailure failure;
    PieceCrcs crcs;
};

// Called once for each piece when all its bytes have been handed to the kernel, from whichever thread did the last of
// them; not for a piece that was not written whole.  Must not throw.
using OnPiece = std::function<void(std::size_t piece)>;

WriteResult write_blocks(int fd, const std::vector<Piece>& pieces, const BlockOptions& options,
                         const OnPiece& on_piece = nullptr);

struct ReadResult {
    BlockFailure failure;
    std::vector<std::pair<std::size_t, std::size_t>> bad;  // (piece, block), ascending
};

// Reads each piece from the file and compares its blocks with `expected`; where there are none, it only reads.
ReadResult read_blocks(int fd, const std::vector<Piece>& pieces,
                       const std::vector<std::optional<std::vector<std::uint32_t>>>& expected,
                       const BlockOptions& options);

}  // namespace hpcckpt
