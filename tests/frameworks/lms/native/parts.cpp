// The parts of LMS that need no TensorFlow: memory pool, host budget, I/O queue, extents and file store.
//
//     parts CHECK DIRECTORY          one check; the functions of the system that it needs to fail are replaced below
//     parts stress DIRECTORY SEED    many threads on all of them, for sanitizers
//
// Ends with 0, or says what did not hold.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "extents.h"
#include "file_store.h"
#include "io_queue.h"
#include "pool.h"

using namespace hpcckpt::lms;

namespace {

[[noreturn]] void fail(const char* what, int line) {
    std::fprintf(stderr, "line %d: %s\n", line, what);
    std::_Exit(1);
}
#define EXPECT(condition) \
    if (!(condition)) fail(#condition, __LINE__)

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

// What the replaced functions do and have seen.
std::atomic<long> page_bytes{0};
std::atomic<int> n_unmapped{0}, n_misplaced{0};
std::atomic<bool> is_pool_asked{false};
std::atomic<int> threads_left{-1};         // before the system has no more; -1: all there are
std::atomic<bool> refuses_direct{false};   // EINVAL for O_DIRECT
std::atomic<int> short_bytes{-1};          // a direct transfer is cut to this many bytes, and the next one fails
std::atomic<int> n_interrupts{0};          // how often `fallocate` is interrupted by a signal
std::atomic<bool> yields_unlocked{false};  // lets another thread run after each unlock
int pwrite_fd = -1;

}  // namespace

#if defined(REPLACES_SYSTEM)
extern "C" {

long sysconf(int name) {
    using Real = long (*)(int);
    static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "sysconf"));
    return name == _SC_PAGESIZE && page_bytes != 0 ? page_bytes.load() : real(name);
}

void* mmap(void* address, size_t nbytes, int access, int flags, int fd, off_t offset) {
    const auto more = static_cast<size_t>(page_bytes);
    const long made = syscall(SYS_mmap, address, nbytes + more, access, flags, fd, offset);
    if (made == -1) return MAP_FAILED;
    return reinterpret_cast<void*>(more == 0 ? made : (made + page_bytes - 1) / page_bytes * page_bytes);
}

int munmap(void* address, size_t nbytes) {
    ++n_unmapped;
    if (page_bytes != 0 && reinterpret_cast<std::uintptr_t>(address) % static_cast<std::size_t>(page_bytes) != 0) {
        ++n_misplaced;
    }
    if (is_pool_asked) Pool::one().kept_nbytes();  // waits for ever if the pool's lock is held
    return static_cast<int>(syscall(SYS_munmap, address, nbytes));
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
    using Real = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "pthread_create"));
    if (threads_left == 0) return EAGAIN;
    if (threads_left > 0) --threads_left;
    return real(thread, attributes, start, argument);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) {
    using Real = int (*)(pthread_mutex_t*);
    static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "pthread_mutex_unlock"));
    const int code = real(mutex);
    if (yields_unlocked) sched_yield();
    return code;
}

int fallocate(int fd, int mode, off_t offset, off_t nbytes) {
    if (n_interrupts > 0) return --n_interrupts, errno = EINTR, -1;
    return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, nbytes));
}
int fallocate64(int fd, int mode, off_t offset, off_t nbytes) { return fallocate(fd, mode, offset, nbytes); }

ssize_t pwrite(int fd, const void* data, size_t nbytes, off_t offset) {
    const bool is_direct = (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
    if (is_direct && refuses_direct) return errno = EINVAL, -1;
    if (is_direct && short_bytes >= 0) {
        if (offset % 4096 != 0 || nbytes % 4096 != 0) return errno = EINVAL, -1;
        if (short_bytes == 0) return errno = ENOSPC, -1;
        nbytes = static_cast<size_t>(short_bytes.exchange(0));
        return static_cast<ssize_t>(nbytes);
    }
    pwrite_fd = fd;
    return syscall(SYS_pwrite64, fd, data, nbytes, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t nbytes, off_t offset) { return pwrite(fd, data, nbytes, offset); }

}  // extern "C"
#endif

namespace {

Config config_of(const char* directory) {
    Config config;
    config.directory = directory;
    return config;
}

std::shared_ptr<FileStore> open_store(const char* directory) {
    IoError error;
    auto store = FileStore::open(config_of(directory), &error);
    if (store == nullptr) fail(error.text.c_str(), __LINE__);
    return store;
}

off_t take(FileStore& store, std::size_t nbytes) {
    IoError error;
    const off_t offset = store.take(nbytes, &error);
    if (offset < 0) fail(error.text.c_str(), __LINE__);
    return offset;
}

void check_pages() {
    page_bytes = 64 * kKiB;
    Pool& pool = Pool::one();
    for (const std::size_t nbytes : {std::size_t{1}, 68 * kKiB, 2 * kMiB + 4 * kKiB, 7 * kMiB + 1}) {
        const Pages pages = pool.take(nbytes);
        EXPECT(pages.data != nullptr && pages.nbytes >= nbytes && pages.nbytes % (64 * kKiB) == 0);
        std::memset(pages.data, 1, pages.nbytes);
        pool.give(pages);
    }
    EXPECT(n_unmapped >= 4);
    EXPECT(n_misplaced == 0);
}

void check_unlocked() {
    Pool& pool = Pool::one();
    pool.set_limit(4 * kMiB);
    std::vector<Pages> all;
    for (int i = 0; i < 8; ++i) all.push_back(pool.take(kMiB));
    is_pool_asked = true;
    n_unmapped = 0;
    for (const Pages& pages : all) pool.give(pages);
    EXPECT(n_unmapped == 4);
    pool.set_limit(0);
    EXPECT(n_unmapped == 8 && pool.kept_nbytes() == 0);
}

void check_large() {
    Pool& pool = Pool::one();
    pool.set_limit(4 * kMiB);
    std::vector<Pages> small;
    for (int i = 0; i < 4; ++i) small.push_back(pool.take(kMiB));
    const Pages large = pool.take(16 * kMiB);
    for (const Pages& pages : small) pool.give(pages);
    pool.give(large);
    EXPECT(pool.kept_nbytes() == 4 * kMiB);
}

void check_budget() {
    constexpr std::int64_t kLimit = 1000;
    yields_unlocked = true;
    HostBudget budget;
    std::atomic<int> n_taken{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 20'000; ++i) {
                if (!budget.try_take(300, kLimit)) continue;
                EXPECT(++n_taken <= 3);
                --n_taken;
                budget.give(300);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT(budget.used() == 0 && budget.peak() <= kLimit);
    EXPECT(budget.try_take(5000, 0));
}

void run_one(IoQueue& queue) {
    std::promise<int> over;
    queue.add({[] { return std::size_t{3}; }, [](std::size_t) { return 0; }, [&](int code) { over.set_value(code); }});
    EXPECT(over.get_future().get() == 0);
}

void check_queue() {
    for (int n = 0; n < 3; ++n) {
        threads_left = n;
        bool is_refused = false;
        try {
            IoQueue("short of threads", 3);
        } catch (const std::system_error& error) {
            is_refused = error.code().value() == EAGAIN;
        }
        EXPECT(is_refused);
    }
    threads_left = -1;
    IoQueue queue("all threads", 3);
    run_one(queue);
}

void check_idle() {
    std::promise<void> called;
    std::atomic<int> n_calls{0};
    IoQueue queue("idle", 2, [&] {
        if (++n_calls == 2) called.set_value();
        return n_calls < 2;
    });
    run_one(queue);
    called.get_future().wait();
    run_one(queue);
}

void check_shrink(const char* directory) {
    const auto store = open_store(directory);
    const off_t first = take(*store, kMiB), second = take(*store, kMiB), third = take(*store, 8 * kMiB);
    EXPECT(store->size() == 10 * static_cast<off_t>(kMiB) && store->shrink());
    store->give(second, kMiB);
    EXPECT(store->shrink() && store->size() == 10 * static_cast<off_t>(kMiB));  // what is used ends there
    store->give(third, 8 * kMiB);
    EXPECT(store->shrink() && store->size() == static_cast<off_t>(kMiB));
    EXPECT(take(*store, kMiB) == static_cast<off_t>(kMiB));
    std::vector<char> text(kMiB, 'x'), back(kMiB);
    EXPECT(store->write(text.data(), kMiB, static_cast<off_t>(kMiB)) == 0);
    EXPECT(store->read(back.data(), kMiB, static_cast<off_t>(kMiB)) == 0 && back == text);
    struct stat status;
    EXPECT(fstat(pwrite_fd, &status) == 0 && status.st_size == 2 * static_cast<off_t>(kMiB));
    store->give(static_cast<off_t>(kMiB), kMiB);
    store->give(first, kMiB);
    EXPECT(!store->shrink() && store->size() == 0);
    EXPECT(fstat(pwrite_fd, &status) == 0 && status.st_size == 0 && status.st_blocks == 0);
}

void check_refused(const char* directory) {
    refuses_direct = true;
    const auto store = open_store(directory);
    EXPECT(!store->is_direct());
    const off_t offset = take(*store, kMiB);
    const std::vector<char> text(kMiB, 'x');
    EXPECT(store->write(text.data(), kMiB, offset) == 0);
}

// 77: the directory has no O_DIRECT.
void check_short(const char* directory) {
    const auto store = open_store(directory);
    if (!store->is_direct()) std::_Exit(77);
    const Pages pages = Pool::one().take(kMiB);
    const off_t offset = take(*store, kMiB);
    for (const int nbytes : {512, 4096 + 512, 8192}) {
        short_bytes = nbytes;
        EXPECT(store->write(static_cast<char*>(pages.data), kMiB, offset) == ENOSPC);
    }
    short_bytes = -1;
    EXPECT(store->write(static_cast<char*>(pages.data), kMiB, offset) == 0);
}

void check_interrupted(const char* directory) {
    const auto store = open_store(directory);
    n_interrupts = 3;
    take(*store, kMiB);
    EXPECT(n_interrupts == 0);
    n_interrupts = 1000;
    const off_t offset = take(*store, kMiB);
    EXPECT(n_interrupts > 0);
    const std::vector<char> text(kMiB, 'x');
    EXPECT(store->write(text.data(), kMiB, offset) == 0);
}

// -- stress ------------------------------------------------------------------------------------------

// Takes room, writes, reads back and gives it back, again and again.
void use_store(FileStore& store, unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 60; ++i) {
        const std::size_t nbytes = 1 + random() % (300 * kKiB);
        IoError error;
        const off_t offset = store.take(nbytes, &error);
        EXPECT(offset >= 0);
        const Pages pages = Pool::one().take(nbytes);
        auto* data = static_cast<char*>(pages.data);
        std::memset(data, static_cast<int>(seed), nbytes);
        const std::size_t shift = random() % 2 == 0 ? 0 : random() % std::min<std::size_t>(nbytes, 100);
        EXPECT(store.write(data, nbytes, offset) == 0);
        if (random() % 4 == 0) store.shrink();
        std::vector<char> back(nbytes + shift);
        EXPECT(store.read(back.data() + shift, nbytes, offset) == 0);
        EXPECT(std::memcmp(back.data() + shift, data, nbytes) == 0);
        Pool::one().give(pages);
        store.give(offset, nbytes);
        (void)(store.used() + store.peak() + store.size());
        if (random() % 16 == 0) store.reset_peak();
    }
}

void use_queue(IoQueue& queue, unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 100; ++i) {
        const std::size_t n_pieces = random() % 5, failing = random() % 8;
        std::atomic<std::size_t> n_moved{0};
        std::promise<int> over;
        queue.add({[=] { return n_pieces; },
                   [&n_moved, failing](std::size_t piece) { return ++n_moved, piece == failing ? EIO : 0; },
                   [&](int code) { over.set_value(code); }});
        EXPECT(over.get_future().get() == (failing < n_pieces ? EIO : 0));
        EXPECT(n_moved <= n_pieces);
    }
}

void use_pool(unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Pages> held;
    for (int i = 0; i < 400; ++i) {
        if (random() % 32 == 0) Pool::one().set_limit(random() % (8 * kMiB));
        if (held.size() < 8 && random() % 2 == 0) {
            held.push_back(Pool::one().take(1 + random() % (3 * kMiB)));
            static_cast<char*>(held.back().data)[0] = 1;
        } else if (!held.empty()) {
            Pool::one().give(held.back());
            held.pop_back();
        }
        if (HostBudget::one().try_take(7, 20)) HostBudget::one().give(7);
    }
    for (const Pages& pages : held) Pool::one().give(pages);
}

void stress(const char* directory, unsigned seed) {
    const auto store = open_store(directory);
    IoQueue queue("stress", 3, [&] { return store->shrink(); });
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] { use_store(*store, seed * 100 + t); });
        threads.emplace_back([&, t] { use_queue(queue, seed * 100 + t); });
        threads.emplace_back([=] { use_pool(seed * 100 + t); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT(store->used() == 0 && !store->shrink());
    Pool::one().set_limit(0);
    EXPECT(Pool::one().kept_nbytes() == 0 && HostBudget::one().used() == 0);
}

}  // namespace

int main(int argc, char** argv) {
    EXPECT(argc >= 3);
    const std::string check = argv[1];
    const char* directory = argv[2];
    if (check == "pages")
        check_pages();
    else if (check == "unlocked")
        check_unlocked();
    else if (check == "large")
        check_large();
    else if (check == "budget")
        check_budget();
    else if (check == "queue")
        check_queue();
    else if (check == "idle")
        check_idle();
    else if (check == "shrink")
        check_shrink(directory);
    else if (check == "refused")
        check_refused(directory);
    else if (check == "short")
        check_short(directory);
    else if (check == "interrupted")
        check_interrupted(directory);
    else if (check == "stress")
        stress(directory, static_cast<unsigned>(std::atoi(argv[3])));
    else
        fail("no such check", __LINE__);
    return 0;
}
