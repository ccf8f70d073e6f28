// The native core from many threads, for sanitizers: _stress_core DIRECTORY SEED.  Ends with 0, or says what failed.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "blockio.h"
#include "copying.h"
#include "crc32c.h"
#include "file.h"
#include "nonfinite.h"
#include "prefault.h"

using namespace hpcckpt;

namespace {

[[noreturn]] void fail(const char* what, int line) {
    std::fprintf(stderr, "line %d: %s\n", line, what);
    std::_Exit(1);
}
#define EXPECT(condition) \
    if (!(condition)) fail(#condition, __LINE__)

using Bytes = std::vector<std::uint8_t>;

std::vector<Bytes> make_pieces(std::mt19937& random) {
    std::vector<Bytes> pieces(1 + random() % 8);
    for (Bytes& piece : pieces) {
        piece.resize(random() % 4 == 0 ? 0 : random() % 200'000);
        for (std::uint8_t& byte : piece) byte = static_cast<std::uint8_t>(random());
    }
    return pieces;
}

std::vector<Piece> lay_out(std::vector<Bytes>& pieces) {
    std::vector<Piece> placed;
    off_t offset = 3;
    for (Bytes& piece : pieces) {
        placed.push_back({piece.data(), piece.size(), offset});
        offset += static_cast<off_t>(piece.size());
    }
    return placed;
}

void round_trip(int fd, std::mt19937& random) {
    std::vector<Bytes> pieces = make_pieces(random);
    const std::vector<Piece> placed = lay_out(pieces);
    const BlockOptions options{1 + random() % 50'000, 1 + random() % 4, random() % 3 == 0 ? 1 : 0, [] { return false; },
                               random() % 2 == 0};
    std::vector<std::atomic<int>> n_reports(placed.size());
    EXPECT(preallocate(fd, 1 << 20) == 0);
    const WriteResult written = write_blocks(fd, placed, options, [&](std::size_t piece) { ++n_reports[piece]; });
    EXPECT(!written.failure.is_failed && written.crcs == checksum_blocks(placed, options));
    for (const auto& n : n_reports) EXPECT(n == 1);
    std::vector<Bytes> back;
    for (const Bytes& piece : pieces) back.emplace_back(piece.size());
    const std::vector<std::optional<std::vector<std::uint32_t>>> expected(written.crcs.begin(), written.crcs.end());
    const ReadResult read = read_blocks(fd, lay_out(back), expected, options);
    EXPECT(!read.failure.is_failed && read.bad.empty() && back == pieces);
    EXPECT(ftruncate(fd, 3) == 0);
    std::size_t nbytes = 0;
    for (const Bytes& piece : pieces) nbytes += piece.size();
    const ReadResult cut = read_blocks(fd, lay_out(back), expected, options);
    EXPECT(cut.failure.is_failed == (nbytes > 0));
}

void stop_early(int fd, std::mt19937& random) {
    Bytes data(400'000);
    std::atomic<int> n_asked{0};
    const int n_allowed = static_cast<int>(random() % 4);
    const BlockOptions options{1000, 1 + random() % 4, random() % 2 == 0 ? 1 : 0, [&] { return ++n_asked > n_allowed; },
                               random() % 2 == 0};
    const WriteResult written = write_blocks(fd, {{data.data(), data.size(), 0}}, options);
    EXPECT(!written.failure.is_failed);
}

void in_memory(std::mt19937& random) {
    Bytes from(random() % 3'000'000), to(from.size());
    for (std::uint8_t& byte : from) byte = static_cast<std::uint8_t>(random());
    const std::size_t n_threads = 1 + random() % 4;
    prefault(to.data(), to.size(), n_threads);
    copy_all({{to.data(), from.data(), from.size()}}, n_threads);
    EXPECT(to == from);
    const std::size_t half = from.empty() ? 0 : random() % from.size();
    const std::uint32_t whole = crc32c(0, from.data(), from.size());
    for (const Crc32cChoice& kernel : crc32c_kernels()) {
        EXPECT(~kernel.run(~0u, from.data(), from.size()) == whole);
    }
    const std::uint32_t first = crc32c(0, from.data(), half),
                        second = crc32c(0, from.data() + half, from.size() - half);
    EXPECT(crc32c_combine(first, second, from.size() - half) == whole);
    const std::size_t n_words = from.size() / 4 * 4;
    (void)count_nonfinite(from.data(), n_words, *find_nonfinite_pattern("float32"), n_threads);
}

}  // namespace

int main(int argc, char** argv) {
    EXPECT(argc == 3);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) {
        threads.emplace_back([=] {
            std::mt19937 random(static_cast<unsigned>(std::atoi(argv[2])) * 10 + t);
            const std::string path = std::string(argv[1]) + "/core-" + std::to_string(t);
            const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
            EXPECT(fd >= 0);
            for (int i = 0; i < 8; ++i) {
                round_trip(fd, random);
                stop_early(fd, random);
                in_memory(random);
            }
            close(fd);
        });
    }
    for (std::thread& thread : threads) thread.join();
    return 0;
}
