// Plugins that do what they are told to do wrong, by their config, and otherwise store in memory.
#include <hpcckpt/backend.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <thread>

namespace {

std::atomic<int> n_alive{0}, n_inside{0}, most_inside{0}, wanted{1};
std::mutex guard;
std::map<std::string, std::string> stored;

std::string Place(const hpcckpt::Context& context, const std::string& key) {
    return std::string(context.save_id()) + "/" + std::to_string(context.rank()) + "/" + key;
}

// Counts how many threads are in Save at a time, and stays until the wanted number has been there, at most some 10 s.
struct Visit {
    Visit() {
        const int now = ++n_inside;
        for (int most = most_inside; now > most && !most_inside.compare_exchange_weak(most, now);) {
        }
        for (int i = 0; i < 10000 && (i < 30 || most_inside < wanted); ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
    ~Visit() { --n_inside; }
};

class Faulty : public hpcckpt::Backend {
   public:
    explicit Faulty(const char* config) {
        hpcckpt::Options options(config);
        create_ = options.Get("create");
        save_ = options.Get("save");
        load_ = options.Get("load");
        leave_ = options.Get("leave");
        rank_ = options.Get("rank");
        options.Finish();
        if (create_ == "throw") throw std::runtime_error("no licence for this host");
        if (create_ == "throw_int") throw 42;
        if (create_ == "bad_alloc") throw std::bad_alloc();
        ++n_alive;
    }
    ~Faulty() override { --n_alive; }

    int Save(const hpcckpt::Context& context) override {
        if (rank_.empty() || rank_ == std::to_string(context.rank())) {
            if (save_ == "fail") return context.Fail(7, "the disk is tired");
            if (save_ == "fail_0") return context.Fail(0, "a failure with code 0");
            if (save_ == "silent") return 9;
            if (save_ == "throw") throw std::runtime_error("the network is away");
            if (save_ == "throw_int") throw 42;
            if (save_ == "no_space") throw std::system_error(ENOSPC, std::generic_category(), "write");
            if (save_ == "long") return context.Fail(1, std::string(100000, 'x'));
            if (save_ == "binary") return context.Fail(1, "\xe9t\xe9 \xff\x01");
        }
        if (!leave_.empty()) Leave(std::string(context.directory()) + "/" + leave_);
        const std::lock_guard<std::mutex> lock(guard);
        for (const hpcckpt::Tensor& tensor : context.tensors()) {
            stored[Place(context, tensor.key())].assign(static_cast<const char*>(tensor.data()), tensor.nbytes());
        }
        return 0;
    }

    int Load(const hpcckpt::Context& context) override {
        if (load_ == "fail") return context.Fail(8, "the server is away");
        if (load_ == "throw") throw std::runtime_error("the network is away");
        if (load_ == "nothing") return 0;
        const std::lock_guard<std::mutex> lock(guard);
        for (const hpcckpt::Tensor& tensor : context.tensors()) {
            const auto found = stored.find(Place(context, tensor.key()));
            if (found == stored.end() || load_ == "lost") throw hpcckpt::Damaged("it is gone");
            if (tensor.nbytes() == 0) continue;
            char* data = static_cast<char*>(tensor.data());
            std::memcpy(data, found->second.data(), load_ == "short" ? tensor.nbytes() / 2 : tensor.nbytes());
            if (load_ == "wrong" && tensor.name() == "x") data[0] ^= 1;
        }
        return 0;
    }

   private:
    void Leave(const std::string& path) {
        if (leave_ == "folder") {
            ::mkdir(path.c_str(), 0777);
        } else if (leave_ == "link") {
            if (::symlink("/etc/hostname", path.c_str()) != 0) return;
        } else {
            std::ofstream(path) << "left behind";
        }
    }

    std::string create_, save_, load_, leave_, rank_;
};

class Slow : public hpcckpt::Backend {
   public:
    explicit Slow(const char*) {}
    int Save(const hpcckpt::Context&) override { return Visit(), 0; }
    int Load(const hpcckpt::Context&) override { return 0; }
};

class SlowTogether : public Slow {
   public:
    static constexpr std::uint32_t kFeatures = HPCCKPT_FEATURE_STORES | HPCCKPT_FEATURE_CONCURRENT;
    using Slow::Slow;
};

// Writes down all that it was given.
class Echo : public hpcckpt::Backend {
   public:
    explicit Echo(const char* config) : path_(config) {}

    int Save(const hpcckpt::Context& context) override {
        std::ofstream file(path_);
        file << context.directory() << '|' << context.save_id() << '|' << context.step() << '|' << context.rank() << '|'
             << context.n_ranks() << '\n';
        for (const hpcckpt::Tensor& tensor : context.tensors()) {
            file << tensor.name() << '|' << tensor.dtype_name() << '|' << tensor.dtype() << '|' << tensor.itemsize()
                 << '|' << tensor.kind() << '|' << Text(tensor.global_shape()) << '|' << Text(tensor.offset()) << '|'
                 << Text(tensor.shape()) << '|' << tensor.first_element() << '|' << tensor.n_elements() << '|'
                 << reinterpret_cast<std::uintptr_t>(tensor.data()) << '|' << tensor.nbytes() << '|'
                 << tensor.is_whole() << '\n';
        }
        return file.good() ? 0 : 1;
    }
    int Load(const hpcckpt::Context&) override { return 0; }

   private:
    static std::string Text(const hpcckpt::Dims& dims) {
        std::string text;
        for (const std::int64_t number : dims) text += std::to_string(number) + ",";
        return text;
    }

    std::string path_;
};

}  // namespace

HPCCKPT_REGISTER_BACKEND(faulty, Faulty)
HPCCKPT_REGISTER_BACKEND(echo, Echo)

extern "C" {
HPCCKPT_EXPORT int instances_alive() { return n_alive; }
HPCCKPT_EXPORT int most_inside_at_a_time() { return most_inside.exchange(0); }
HPCCKPT_EXPORT int inside() { return n_inside; }
HPCCKPT_EXPORT void want(int n_threads) { wanted = n_threads; }
}

// As in another namespace of a large program, with a semicolon.
namespace elsewhere {
HPCCKPT_REGISTER_BACKEND(slow, Slow);
HPCCKPT_REGISTER_BACKEND(slow_together, SlowTogether);
}  // namespace elsewhere
