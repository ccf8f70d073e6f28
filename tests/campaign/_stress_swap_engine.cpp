// The engine of LMS from many threads, with TensorFlow's tensors and no graph, for sanitizers:
// _stress_swap_engine DIRECTORY SEED. Exits with 0, or prints what failed.
#include <cstdio>
#include <cstdlib>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "figures.h"
#include "mapped_buffer.h"
#include "swap_engine.h"
#include "pool.h"

using namespace hpcckpt::lms;
using tensorflow::Tensor;

namespace {

[[noreturn]] void fail(const std::string& what, int line) {
    std::fprintf(stderr, "line %d: %s\n", line, what.c_str());
    std::_Exit(1);
}
#define EXPECT(condition) \
    if (!(condition)) fail(#condition, __LINE__)

// ThreadSanitizer sees neither the locks of TensorFlow's allocator nor its counts of references, so there memory is
// mapped for each tensor, and no other one has it afterwards.
#if defined(__SANITIZE_THREAD__)
constexpr bool kIsMapped = true;
#else
constexpr bool kIsMapped = false;
#endif

void configure(const char* directory, std::mt19937& random) {
    Config config;
    const Config::Tier tiers[] = {Config::Tier::kHost, Config::Tier::kFile, Config::Tier::kHostThenFile};
    config.tier = tiers[random() % 3];
    config.directory = directory;
    config.window = random() % 2 == 0 ? 0 : 1 << 20;
    config.host_limit = config.tier == Config::Tier::kHostThenFile ? 1 << 20 : 0;
    config.min_bytes = 100;
    config.spare = kIsMapped ? 0 : random() % (4 << 20);
    config.is_mapped = kIsMapped || random() % 2 == 0;
    IoError error;
    if (!SwapEngine::one().configure(config, &error)) fail(error.text, __LINE__);
}

Tensor new_tensor(std::int64_t n_elements) {
    if (!kIsMapped) return Tensor(tensorflow::DT_INT32, {n_elements});
    MappedBuffer* buffer = MappedBuffer::make(static_cast<std::size_t>(n_elements) * sizeof(std::int32_t) + 1);
    EXPECT(buffer != nullptr);
    const Tensor tensor(tensorflow::DT_INT32, {n_elements}, buffer);
    buffer->Unref();  // the tensor has its own
    return tensor;
}

// Swaps a tensor out and in, with swap-ins that come early, late, several, or never.
void swap_one(std::mt19937& random, int value) {
    Tensor tensor = new_tensor(static_cast<std::int64_t>(random() % 400'000));
    tensor.flat<std::int32_t>().setConstant(value);
    auto swapped = std::make_shared<SwappedTensor>("stress", tensor);
    const bool by_reference = random() % 4 == 0;
    tensor = Tensor();
    std::promise<absl::Status> out;
    SwapEngine::one().put(swapped, by_reference, [&](const absl::Status& status) { out.set_value(status); });
    const bool is_early = random() % 3 == 0;
    auto is_out = out.get_future();
    if (!is_early) EXPECT(is_out.get().ok());
    const unsigned n_backs = random() % 3;
    for (unsigned i = 0; i < n_backs; ++i) {
        std::promise<void> back;
        SwapEngine::one().get(swapped, [&](const absl::Status& status, const Tensor& found, bool) {
            if (!status.ok()) fail(std::string(status.message()), __LINE__);
            for (std::int64_t j = 0; j < found.NumElements(); ++j) EXPECT(found.flat<std::int32_t>()(j) == value);
            back.set_value();
        });
        back.get_future().wait();
    }
    if (is_early) EXPECT(is_out.get().ok());
}

}  // namespace

int main(int argc, char** argv) {
    EXPECT(argc == 3);
    const auto seed = static_cast<unsigned>(std::atoi(argv[2]));
    std::mt19937 random(seed);
    configure(argv[1], random);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
        threads.emplace_back([=] {
            std::mt19937 own(seed * 10 + t);
            for (int i = 0; i < 25; ++i) swap_one(own, static_cast<int>(t * 1000) + i);
        });
    }
    for (int i = 0; i < 5; ++i) {
        configure(argv[1], random);
        Hindrance hindrance;
        hindrance.write_delay_ms = static_cast<int>(random() % 3);
        hindrance.read_delay_ms = static_cast<int>(random() % 3);
        SwapEngine::one().hinder(hindrance);
        EXPECT(Figures::one().json().size() > 100);
    }
    for (std::thread& thread : threads) thread.join();
    SwapEngine::one().hinder({});
    SwapEngine::one().wait_until_out();
    while (Figures::one().live_handles > 0) std::this_thread::yield();  // the queue drops the last one after its end
    EXPECT(HostBudget::one().used() == 0);
    const auto file = SwapEngine::one().file();
    EXPECT(file == nullptr || file->used() == 0);
    std::fflush(nullptr);
    std::_Exit(0);  // the engine's threads never end
}
