#include "blockio.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <mutex>

#include "bounce_buffer.h"
#include "crc32c.h"
#include "file.h"
#include "workers.h"

namespace hpcckpt {
namespace {

// What the kernel copies and is then checksummed before going on: small enough to be still in the second-level cache
// the second time.  Writing needs room there for the file's pages too.
constexpr std::size_t kReadPartBytes = std::size_t{256} << 10;
constexpr std::size_t kWritePartBytes = std::size_t{128} << 10;
static_assert(kReadPartBytes <= kBounceBytes && kWritePartBytes <= kBounceBytes);

// How much is written before the kernel is asked to begin storing it, so that the final fdatasync finds most of it
// done.  Linux by itself begins after five seconds, or when a tenth of the memory is dirty.
constexpr off_t kWritebackBytes = off_t{8} << 20;

struct Block {
    std::size_t piece;
    std::size_t index;  // within the piece
    Piece bytes;
};

std::vector<Block> list_blocks(const std::vector<Piece>& pieces, std::size_t block_bytes) {
    std::vector<Block> blocks;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
        const Piece& piece = pieces[p];
        for (std::size_t start = 0; start < piece.nbytes; start += block_bytes) {
            const std::size_t nbytes = std::min(block_bytes, piece.nbytes - start);
            const Piece bytes{piece.data + start, nbytes, piece.offset + static_cast<off_t>(start)};
            blocks.push_back({p, start / block_bytes, bytes});
        }
    }
    return blocks;
}

PieceCrcs room_for_crcs(const std::vector<Piece>& pieces, std::size_t block_bytes) {
    PieceCrcs crcs;
    crcs.reserve(pieces.size());
    for (const Piece& piece : pieces) crcs.emplace_back(count_blocks(piece.nbytes, block_bytes));
    return crcs;
}

// Moves a block in parts that stay in cache.  `move(bytes)` returns the transfer of one part.
template <typename Move>
Transfer move_in_parts(const Piece& block, std::size_t part_bytes, Move move) {
    Transfer total;
    for (std::size_t start = 0; start < block.nbytes; start += part_bytes) {
        const std::size_t nbytes = std::min(part_bytes, block.nbytes - start);
        const Transfer part = move(Piece{block.data + start, nbytes, block.offset + static_cast<off_t>(start)});
        total.nbytes += part.nbytes;
        total.error = part.error;
        if (part.nbytes < nbytes) break;
    }
    return total;
}

// The copy comes first: it fetches the bytes from memory faster than the checksum would.
Transfer write_block(int fd, const Piece& block, std::uint32_t& crc) {
    return move_in_parts(block, kWritePartBytes, [&](const Piece& part) {
        const std::uint8_t* const data = begin_write(part.data, part.nbytes, part.offset);
        const Transfer transfer = pwrite_all(fd, data, part.nbytes, part.offset);
        crc = crc32c(crc, data, part.nbytes);
        return transfer;
    });
}

Transfer write_block_unchecked(int fd, const Piece& block) {
    const bool is_slow = is_slow_to_write(block.data, block.nbytes, block.offset);
    return move_in_parts(block, is_slow ? kBounceBytes : block.nbytes, [&](const Piece& part) {
        return pwrite_all(fd, begin_write(part.data, part.nbytes, part.offset), part.nbytes, part.offset);
    });
}

// Begins write-back of the windows of the file that end within this block.  With several threads a neighbour's last
// block may come after and miss it: the next window or fdatasync takes that one along.
void write_back_behind(int fd, const Piece& block) {
    const off_t end = block.offset + static_cast<off_t>(block.nbytes);
    const off_t first = block.offset / kWritebackBytes * kWritebackBytes;
    const off_t last = end / kWritebackBytes * kWritebackBytes;
    if (last > first) begin_writeback(fd, first, last - first);
}

Transfer read_block(int fd, const Piece& block, bool is_checked, std::uint32_t& crc) {
    return move_in_parts(block, kReadPartBytes, [&](const Piece& part) {
        std::uint8_t* const data = begin_read(part.data, part.nbytes, part.offset);
        const Transfer transfer = pread_all(fd, data, part.nbytes, part.offset);
        if (is_checked) crc = crc32c(crc, data, transfer.nbytes);
        end_read(part.data, data, transfer.nbytes);
        return transfer;
    });
}

// Keeps the lowest failed block.  Blocks are handed out in ascending order and finished once handed out, so this is
// the same block however many threads there are.
class FirstFailure {
   public:
    // Returns whether the block was moved whole.
    bool record(std::size_t position, const Block& block, std::size_t block_bytes, const Transfer& transfer) {
        if (transfer.nbytes == block.bytes.nbytes) return true;
        const std::lock_guard<std::mutex> guard(mutex_);
        if (!failure_.is_failed || position < position_) {
            position_ = position;
            failure_ = {transfer.error, true, block.piece, block.index * block_bytes + transfer.nbytes};
        }
        return false;
    }

    BlockFailure get() const { return failure_; }

   private:
    std::mutex mutex_;
    std::size_t position_ = 0;
    BlockFailure failure_;
};

// Counts down how often the blocks of each piece are still to be used, and reports each piece once that is 0.
class PieceCountdown {
   public:
    PieceCountdown(const std::vector<Piece>& pieces, std::size_t block_bytes, std::size_t uses, const OnPiece& on_piece)
        : uses_left_(on_piece ? pieces.size() : 0), on_piece_(on_piece) {
        for (std::size_t p = 0; p < uses_left_.size(); ++p) {
            uses_left_[p] = count_blocks(pieces[p].nbytes, block_bytes) * uses;
            if (uses_left_[p] == 0) on_piece_(p);
        }
    }

    void block_was_used(std::size_t piece) {
        if (on_piece_ && --uses_left_[piece] == 0) on_piece_(piece);
    }

   private:
    std::vector<std::atomic<std::size_t>> uses_left_;
    const OnPiece& on_piece_;
};

// Writes blocks and takes their checksums.
class Writer {
   public:
    Writer(int fd, const std::vector<Piece>& pieces, const BlockOptions& options, const OnPiece& on_piece)
        : fd_(fd),
          options_(options),
          is_apart_(options.is_one_writer && options.n_threads > 1 && options.nice == 0),
          blocks_(list_blocks(pieces, options.block_bytes)),
          crcs_(room_for_crcs(pieces, options.block_bytes)),
          countdown_(pieces, options.block_bytes, is_apart_ ? 2 : 1, on_piece) {}

    WriteResult run() {
        if (is_apart_) {
            // A second thread takes checksums faster than the first one writes; a third would have nothing to do.
            for_each_item_besides([this] { return write_all(); }, blocks_.size(), 2,
                                  [this](std::size_t i) { return check(i); }, options_.should_stop);
        } else {
            for_each_item(
                blocks_.size(), options_.is_one_writer ? 1 : options_.n_threads,
                [this](std::size_t i) { return write_and_check(i); }, options_.should_stop, options_.nice);
        }
        return {failure_.get(), std::move(crcs_)};
    }

   private:
    bool write_and_check(std::size_t i) {
        return was_written(i, write_block(fd_, blocks_[i].bytes, crcs_[blocks_[i].piece][blocks_[i].index]));
    }

    bool write_all() {
        for (std::size_t i = 0; i < blocks_.size(); ++i) {
            if (options_.should_stop && options_.should_stop()) return false;
            if (!was_written(i, write_block_unchecked(fd_, blocks_[i].bytes))) return false;
        }
        return true;
    }

    bool check(std::size_t i) {
        const Block& block = blocks_[i];
        crcs_[block.piece][block.index] = crc32c(0, block.bytes.data, block.bytes.nbytes);
        countdown_.block_was_used(block.piece);
        return true;
    }

    // Returns true if the block was written whole.
    bool was_written(std::size_t i, const Transfer& transfer) {
        write_back_behind(fd_, blocks_[i].bytes);
        if (!failure_.record(i, blocks_[i], options_.block_bytes, transfer)) return false;
        countdown_.block_was_used(blocks_[i].piece);
        return true;
    }

    const int fd_;
    const BlockOptions& options_;
    const bool is_apart_;  // one thread writes while another one takes checksums
    const std::vector<Block> blocks_;
    PieceCrcs crcs_;
    PieceCountdown countdown_;
    FirstFailure failure_;
};

}  // namespace

std::size_t count_blocks(std::size_t nbytes, std::size_t block_bytes) {
    return nbytes / block_bytes + (nbytes % block_bytes != 0 ? 1 : 0);
}

PieceCrcs checksum_blocks(const std::vector<Piece>& pieces, const BlockOptions& options) {
    PieceCrcs crcs = room_for_crcs(pieces, options.block_bytes);
    const std::vector<Block> blocks = list_blocks(pieces, options.block_bytes);
    for_each_item(
        blocks.size(), options.n_threads,
        [&](std::size_t i) {
            crcs[blocks[i].piece][blocks[i].index] = crc32c(0, blocks[i].bytes.data, blocks[i].bytes.nbytes);
            return true;
        },
        options.should_stop);
    return crcs;
}

WriteResult write_blocks(int fd, const std::vector<Piece>& pieces, const BlockOptions& options,
                         const OnPiece& on_piece) {
    return Writer(fd, pieces, options, on_piece).run();
}

ReadResult read_blocks(int fd, const std::vector<Piece>& pieces,
                       const std::vector<std::optional<std::vector<std::uint32_t>>>& expected,
                       const BlockOptions& options) {
    assert(expected.size() == pieces.size());
    const std::vector<Block> blocks = list_blocks(pieces, options.block_bytes);
    std::vector<char> is_bad(blocks.size());  // not vector<bool>: threads set neighbours
    FirstFailure failure;
    for_each_item(
        blocks.size(), options.n_threads,
        [&](std::size_t i) {
            const auto& crcs = expected[blocks[i].piece];
            std::uint32_t crc = 0;
            const Transfer transfer = read_block(fd, blocks[i].bytes, crcs.has_value(), crc);
            is_bad[i] = crcs.has_value() && crc != (*crcs)[blocks[i].index];
            return failure.record(i, blocks[i], options.block_bytes, transfer);
        },
        options.should_stop);
    ReadResult result{failure.get(), {}};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (is_bad[i] != 0) result.bad.emplace_back(blocks[i].piece, blocks[i].index);
    }
    return result;
}

}  // namespace hpcckpt
