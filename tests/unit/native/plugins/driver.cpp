// Calls everything in the plugins that it is given, well and badly, to be run with sanitizers: driver FOLDER LIBRARY...
#include <hpcckpt/backend.hpp>

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <thread>

namespace {

std::string folder;
int n_calls = 0;

#define CHECK(condition)                                                             \
    do {                                                                             \
        if (!(condition)) {                                                          \
            std::fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                            \
        }                                                                            \
    } while (false)

// Tensors of all sorts, in memory of exactly their size, so that a byte too far is seen.
struct Set {
    explicit Set(unsigned seed) {
        std::mt19937 random(seed);
        for (unsigned i = 0; i < 12; ++i) {
            const std::uint32_t ndim = i % 4;
            std::vector<std::int64_t> shape;
            for (std::uint32_t axis = 0; axis < ndim; ++axis) shape.push_back(random() % 6);
            std::uint64_t count = 1;
            for (const std::int64_t length : shape) count *= static_cast<std::uint64_t>(length);
            names.push_back("model/layer_" + std::to_string(i));
            shapes.push_back(shape);
            zeros.emplace_back(ndim, 0);
            memory.emplace_back(count == 0 ? nullptr : std::make_unique<float[]>(count));
            for (std::uint64_t n = 0; n < count; ++n) memory.back()[n] = static_cast<float>(random());
            counts.push_back(count);
        }
        for (std::size_t i = 0; i < names.size(); ++i) {
            hpcckpt_tensor tensor = {};
            tensor.struct_size = sizeof(tensor);
            tensor.dtype = HPCCKPT_DTYPE_FLOAT32;
            tensor.name = names[i].c_str();
            tensor.dtype_name = "float32";
            tensor.itemsize = sizeof(float);
            tensor.ndim = static_cast<std::uint32_t>(shapes[i].size());
            tensor.global_shape = tensor.shape = shapes[i].data();
            tensor.offset = zeros[i].data();
            tensor.n_elements = counts[i];
            tensor.data = memory[i].get();
            tensor.nbytes = counts[i] * sizeof(float);
            tensors.push_back(tensor);
        }
        for (const hpcckpt_tensor& tensor : tensors) pointers.push_back(&tensor);
    }

    void Clear() {
        for (std::size_t i = 0; i < counts.size(); ++i) std::fill_n(memory[i].get(), counts[i], 0.0F);
    }

    bool Equals(const Set& other) const {
        for (std::size_t i = 0; i < counts.size(); ++i) {
            if (!std::equal(memory[i].get(), memory[i].get() + counts[i], other.memory[i].get())) return false;
        }
        return true;
    }

    std::vector<std::string> names;
    std::vector<std::vector<std::int64_t>> shapes, zeros;
    std::vector<std::unique_ptr<float[]>> memory;
    std::vector<std::uint64_t> counts;
    std::vector<hpcckpt_tensor> tensors;
    std::vector<const hpcckpt_tensor*> pointers;
};

hpcckpt_context ContextOf(const Set& set, std::uint32_t rank) {
    hpcckpt_context context = {};
    context.struct_size = sizeof(context);
    context.directory = folder.c_str();
    context.save_id = "0123456789abcdef";
    context.step = 7;
    context.rank = rank;
    context.n_ranks = 4;
    context.n_tensors = set.pointers.size();
    context.tensors = set.pointers.data();
    return context;
}

// An error buffer of exactly the size that is told.
struct Error {
    explicit Error(std::uint64_t size) : text(size == 0 ? nullptr : std::make_unique<char[]>(size)), nbytes(size) {}
    bool is_ended() const { return nbytes == 0 || std::memchr(text.get(), 0, nbytes) != nullptr; }
    std::unique_ptr<char[]> text;
    std::uint64_t nbytes;
};

const std::vector<std::uint64_t> kSizes = {0, 1, 2, 17, 256, 4096};

void* Create(const hpcckpt_backend_table* table, const std::string& config, int expected = 0) {
    void* instance = nullptr;
    for (const std::uint64_t size : kSizes) {
        Error error(size);
        const int code = table->create(config.c_str(), &instance, error.text.get(), error.nbytes);
        CHECK((code == 0) == (expected == 0));
        CHECK(error.is_ended());
        ++n_calls;
        if (code != 0) instance = nullptr;
        if (instance != nullptr && size != kSizes.back()) table->destroy(instance);
    }
    return instance;
}

using Function = int (*)(void*, const hpcckpt_context*, char*, std::uint64_t);

int Call(Function function, void* instance, const Set& set, std::uint32_t rank = 0) {
    const hpcckpt_context context = ContextOf(set, rank);
    int code = 0;
    for (const std::uint64_t size : kSizes) {
        Error error(size);
        code = function(instance, &context, error.text.get(), error.nbytes);
        CHECK(error.is_ended());
        ++n_calls;
    }
    return code;
}

void RoundTrip(const hpcckpt_backend_table* table, const std::string& config, bool is_storing) {
    void* instance = Create(table, config);
    const Set original(1);
    Set target(1);
    CHECK(Call(table->save, instance, original) == 0);
    target.Clear();
    const int code = Call(table->load, instance, target);
    CHECK(!is_storing || (code == 0 && target.Equals(original)));
    table->destroy(instance);
}

void Together(const hpcckpt_backend_table* table) {
    void* instance = Create(table, "");
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
        threads.emplace_back([=] {
            const Set original(rank);
            Set target(rank);
            const hpcckpt_context context = ContextOf(original, rank), wanted = ContextOf(target, rank);
            char error[256];
            CHECK(table->save(instance, &context, error, sizeof(error)) == 0);
            target.Clear();
            CHECK(table->load(instance, &wanted, error, sizeof(error)) == 0);
            CHECK(target.Equals(original));
        });
    }
    for (std::thread& thread : threads) thread.join();
    table->destroy(instance);
}

// Whatever a file contains, it is an error or a tensor, and no byte is read or written that should not be.
void Forge(const hpcckpt_backend_table* table) {
    void* instance = Create(table, "");
    Set set(3);
    CHECK(Call(table->save, instance, set) == 0);
    const std::string path = folder + "/rank-00000.posix";
    std::ifstream file(path, std::ios::binary);
    const std::string good((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::mt19937 random(5);
    for (int round = 0; round < 2000; ++round) {
        std::string bad = good.substr(0, round % 3 == 0 ? random() % good.size() : good.size());
        for (int n = 0; n < 3 && !bad.empty(); ++n) {
            const std::size_t place = random() % (round % 2 == 0 ? std::min<std::size_t>(64, bad.size()) : bad.size());
            bad[place] = static_cast<char>(random());
        }
        std::ofstream(path, std::ios::binary | std::ios::trunc) << bad;
        const hpcckpt_context context = ContextOf(set, 0);
        Error error(256);
        table->load(instance, &context, error.text.get(), error.nbytes);
        ++n_calls;
    }
    table->destroy(instance);
}

void Fail(const hpcckpt_backend_table* table) {
    for (const char* how : {"throw", "throw_int", "bad_alloc"}) Create(table, std::string("create=") + how, 1);
    for (const char* config : {"nonesuch", "=", "a=b=c,,d"}) Create(table, config, 1);
    for (const char* config : {",,,", " create = , save", "load"}) table->destroy(Create(table, config));
    const Set set(2);
    for (const char* how : {"fail", "fail_0", "silent", "throw", "throw_int", "no_space", "long", "binary"}) {
        void* instance = Create(table, std::string("save=") + how);
        CHECK(Call(table->save, instance, set) != 0);
        table->destroy(instance);
    }
    for (const char* how : {"fail", "throw", "lost"}) {
        void* instance = Create(table, std::string("load=") + how);
        CHECK(Call(table->save, instance, set) == 0);
        CHECK(Call(table->load, instance, set) != 0);
        table->destroy(instance);
    }
}

void Drive(const hpcckpt_backend_table* table) {
    const std::string name = table->name;
    const bool is_storing =
        (table->features & HPCCKPT_FEATURE_STORES) != 0 && name != "echo" && name.rfind("slow", 0) != 0;
    RoundTrip(table, name == "echo" ? folder + "/echo" : "", is_storing && name != "from_second_file");
    if (name == "posix") Together(table), Forge(table);
    if (name == "faulty") Fail(table);
}

}  // namespace

int main(int argc, char** argv) {
    folder = argv[1];
    for (int i = 2; i < argc; ++i) {
        void* library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
        const auto entry = reinterpret_cast<const hpcckpt_plugin_table* (*)()>(dlsym(library, HPCCKPT_ABI_SYMBOL));
        CHECK(entry != nullptr && entry() == entry());
        for (std::uint64_t n = 0; n < entry()->n_backends; ++n) Drive(entry()->backends[n]);
    }
    std::printf("%d calls\n", n_calls);
    return 0;
}
