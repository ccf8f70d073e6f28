// A storage plugin as a C++ class. Header only, C++17, free of TensorFlow; a library made with it links to nothing.
//
//     #include <hpcckpt/backend.hpp>
//
//     class MyBackend : public hpcckpt::Backend {
//       public:
//         explicit MyBackend(const char* config);
//         int Save(const hpcckpt::Context& context) override {
//             for (const hpcckpt::Tensor& tensor : context.tensors()) {
//                 if (!Write(tensor.name(), tensor.data(), tensor.nbytes())) return context.Fail(7, "no space");
//             }
//             return 0;
//         }
//         int Load(const hpcckpt::Context& context) override;
//     };
//
//     HPCCKPT_REGISTER_BACKEND(mine, MyBackend)
//
// A library may register several, from one source file or from many. What a constructor, Save or Load throws becomes
// the text of the error that the user sees. Which thread calls, and what belongs to whom: ABI.md.
#ifndef HPCCKPT_BACKEND_HPP
#define HPCCKPT_BACKEND_HPP

#if __cplusplus < 201703L
#error "hpcckpt needs C++17: compile with -std=c++17; with CMake, -DCMAKE_CXX_STANDARD=17"
#endif

#include <hpcckpt/plugin.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

// What is registered belongs to one library; two of them in a process must not see each other's list.
#if defined(__GNUC__)
#define HPCCKPT_PRIVATE __attribute__((visibility("hidden")))
#define HPCCKPT_KEEP __attribute__((used))
#else
#define HPCCKPT_PRIVATE
#define HPCCKPT_KEEP
#endif

namespace hpcckpt {
inline namespace abi1 {

// A list of numbers, one for each axis.
class Dims {
   public:
    Dims(const std::int64_t* first, std::size_t size) : first_(first), size_(size) {}
    const std::int64_t* begin() const { return first_; }
    const std::int64_t* end() const { return first_ + size_; }
    std::size_t size() const { return size_; }
    std::int64_t operator[](std::size_t axis) const { return first_[axis]; }
    friend bool operator==(const Dims& a, const Dims& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }
    friend bool operator!=(const Dims& a, const Dims& b) { return !(a == b); }

   private:
    const std::int64_t* first_;
    std::size_t size_;
};

// A tensor, or the part of one that a rank saves: a view, good until Save or Load returns.
class Tensor {
   public:
    explicit Tensor(const hpcckpt_tensor& raw) : raw_(&raw) {}

    std::string_view name() const { return raw_->name; }
    std::uint32_t dtype() const { return raw_->dtype; }  // HPCCKPT_DTYPE_...
    std::string_view dtype_name() const { return raw_->dtype_name; }
    std::size_t itemsize() const { return raw_->itemsize; }
    std::uint32_t kind() const { return raw_->kind; }  // HPCCKPT_KIND_...

    Dims global_shape() const { return {raw_->global_shape, raw_->ndim}; }
    Dims offset() const { return {raw_->offset, raw_->ndim}; }
    Dims shape() const { return {raw_->shape, raw_->ndim}; }
    std::uint64_t first_element() const { return raw_->first_element; }
    std::uint64_t n_elements() const { return raw_->n_elements; }

    // The tensor's own memory. Only Load may write to it.
    void* data() const { return raw_->data; }
    std::uint64_t nbytes() const { return raw_->nbytes; }

    // Whether it is a whole tensor, rather than a shard or a part.
    bool is_whole() const {
        return shape() == global_shape() && first_element() == 0 && nbytes() == Product(global_shape()) * itemsize();
    }

    // Bytes that tell this entry from every other one of its rank: the same when it is loaded as when it was saved.
    std::string key() const {
        std::string key = box_key();
        Append(key, first_element());
        Append(key, n_elements());
        return key;
    }

    // The same of the box of which the entry has some elements.
    std::string box_key() const {
        std::string key(name());
        (key += '\0').append(dtype_name()) += '\0';
        for (const Dims& dims : {global_shape(), offset(), shape()}) {
            for (const std::int64_t number : dims) Append(key, number);
        }
        return key;
    }

    const hpcckpt_tensor& raw() const { return *raw_; }

   private:
    template <class Number>
    static void Append(std::string& to, Number number) {
        to.append(reinterpret_cast<const char*>(&number), sizeof(number));
    }

    static std::uint64_t Product(const Dims& dims) {
        std::uint64_t product = 1;
        for (const std::int64_t length : dims) product *= static_cast<std::uint64_t>(length);
        return product;
    }

    const hpcckpt_tensor* raw_;
};

// What one call is about: the tensors, where and for whom.
class Context {
   public:
    Context(const hpcckpt_context& raw, char* error, std::uint64_t error_bytes)
        : raw_(&raw), error_(error), error_bytes_(error_bytes) {
        tensors_.reserve(raw.n_tensors);
        for (std::uint64_t i = 0; i < raw.n_tensors; ++i) tensors_.emplace_back(*raw.tensors[i]);
    }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    const std::vector<Tensor>& tensors() const { return tensors_; }
    std::string_view directory() const { return raw_->directory; }  // "" if there is none
    std::string_view save_id() const { return raw_->save_id; }      // "" if it has none
    std::int64_t step() const { return raw_->step; }                // -1 if it has none
    std::uint32_t rank() const { return raw_->rank; }
    std::uint32_t n_ranks() const { return raw_->n_ranks; }

    // Says why the call fails: `return context.Fail(7, "no space")`.
    int Fail(int code, std::string_view reason) const {
        Write(reason, error_, error_bytes_);
        return code != 0 ? code : 1;
    }

    const hpcckpt_context& raw() const { return *raw_; }

    // Cuts a text to the room there is.
    static void Write(std::string_view text, char* error, std::uint64_t error_bytes) {
        if (error == nullptr || error_bytes == 0) return;
        const std::size_t length = std::min<std::uint64_t>(text.size(), error_bytes - 1);
        std::memcpy(error, text.data(), length);
        error[length] = '\0';
    }

   private:
    const hpcckpt_context* raw_;
    char* error_;
    std::uint64_t error_bytes_;
    std::vector<Tensor> tensors_;
};

// The base class. A derived class may declare its features:
//     static constexpr std::uint32_t kFeatures = HPCCKPT_FEATURE_STORES | HPCCKPT_FEATURE_DURABLE;
class Backend {
   public:
    virtual ~Backend() = default;
    virtual int Save(const Context& context) = 0;
    virtual int Load(const Context& context) = 0;
};

// Throw it where what was stored is damaged, or not there: the user's program then goes to an older checkpoint.
struct Damaged : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Settings written as "key=value,key=value", for plugins that have no format of their own. A key without "=" has the
// value "1". What is never asked for is a mistake of the user: call Finish() after the last Get.
class Options {
   public:
    explicit Options(std::string_view text) {
        while (!text.empty()) {
            const std::string_view pair = Strip(text.substr(0, text.find(',')));
            text.remove_prefix(std::min(text.size(), text.find(',') == text.npos ? text.size() : text.find(',') + 1));
            if (!pair.empty()) Add(pair);
        }
    }

    std::string Get(std::string_view key, std::string_view otherwise = "") {
        for (Option& option : options_) {
            if (option.key == key) {
                option.is_used = true;
                return option.value;
            }
        }
        return std::string(otherwise);
    }

    bool GetFlag(std::string_view key, bool otherwise = false) {
        const std::string value = Get(key, otherwise ? "1" : "0");
        if (value == "1" || value == "true" || value == "yes" || value == "on") return true;
        if (value == "0" || value == "false" || value == "no" || value == "off") return false;
        throw std::invalid_argument("option " + std::string(key) + ": '" + value + "' is neither yes nor no");
    }

    void Finish() const {
        for (const Option& option : options_) {
            if (!option.is_used) throw std::invalid_argument("there is no option '" + option.key + "'");
        }
    }

   private:
    struct Option {
        std::string key;
        std::string value;
        bool is_used;
    };

    void Add(std::string_view pair) {
        const std::size_t equals = pair.find('=');
        const std::string_view value = equals == pair.npos ? "1" : Strip(pair.substr(equals + 1));
        options_.push_back({std::string(Strip(pair.substr(0, equals))), std::string(value), false});
    }

    static std::string_view Strip(std::string_view text) {
        const std::size_t first = text.find_first_not_of(" \t\n");
        if (first == text.npos) return {};
        return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
    }

    std::vector<Option> options_;
};

namespace detail {

// Calls `act`, and turns what it throws into a code and a text.
template <class Act>
HPCCKPT_PRIVATE int Guarded(char* error, std::uint64_t error_bytes, Act act) noexcept {
    try {
        return act();
    } catch (const std::system_error& thrown) {
        Context::Write(thrown.what(), error, error_bytes);
        const bool is_full = thrown.code() == std::errc::no_space_on_device || thrown.code().value() == EDQUOT;
        return is_full ? HPCCKPT_ERROR_NO_SPACE : HPCCKPT_ERROR_EXCEPTION;
    } catch (const Damaged& thrown) {
        Context::Write(thrown.what(), error, error_bytes);
        return HPCCKPT_ERROR_DAMAGED;
    } catch (const std::exception& thrown) {
        Context::Write(thrown.what(), error, error_bytes);
        return HPCCKPT_ERROR_EXCEPTION;
    } catch (...) {
        Context::Write("something was thrown that is not a std::exception", error, error_bytes);
        return HPCCKPT_ERROR_UNKNOWN;
    }
}

template <class Class, class = void>
struct FeaturesOf : std::integral_constant<std::uint32_t, HPCCKPT_FEATURE_STORES> {};
template <class Class>
struct FeaturesOf<Class, std::void_t<decltype(Class::kFeatures)>>
    : std::integral_constant<std::uint32_t, Class::kFeatures> {};

// The four C functions of one class.
template <class Class>
struct HPCCKPT_PRIVATE Functions {
    static_assert(std::is_base_of_v<Backend, Class>, "a backend derives from hpcckpt::Backend");
    static_assert(std::is_constructible_v<Class, const char*>, "a backend is made from a const char*");

    static int Create(const char* config, void** instance, char* error, std::uint64_t error_bytes) noexcept {
        return Guarded(error, error_bytes, [&] {
            Backend* made = new Class(config);
            *instance = made;
            return 0;
        });
    }

    static int Save(void* self, const hpcckpt_context* raw, char* error, std::uint64_t error_bytes) noexcept {
        return Guarded(error, error_bytes, [&] {
            const Context context(*raw, error, error_bytes);
            return static_cast<Backend*>(self)->Save(context);
        });
    }

    static int Load(void* self, const hpcckpt_context* raw, char* error, std::uint64_t error_bytes) noexcept {
        return Guarded(error, error_bytes, [&] {
            const Context context(*raw, error, error_bytes);
            return static_cast<Backend*>(self)->Load(context);
        });
    }

    static void Destroy(void* self) noexcept { delete static_cast<Backend*>(self); }
};

// The registered backends of this library, a list without allocation: filled before main() or within dlopen().
struct HPCCKPT_PRIVATE Registration {
    HPCCKPT_PRIVATE static inline Registration* first = nullptr;

    template <class Class>
    Registration(const char* name, Functions<Class>)
        : table{sizeof(hpcckpt_backend_table),
                FeaturesOf<Class>::value,
                name,
                &Functions<Class>::Create,
                &Functions<Class>::Save,
                &Functions<Class>::Load,
                &Functions<Class>::Destroy,
                {nullptr, nullptr, nullptr, nullptr}},
          next(first) {
        first = this;
    }

    hpcckpt_backend_table table;
    Registration* next;
};

// The table of this library, built when it is first asked for.
struct HPCCKPT_PRIVATE Library {
    Library() {
        for (const Registration* each = Registration::first; each != nullptr; each = each->next) {
            backends.push_back(&each->table);
        }
        std::sort(backends.begin(), backends.end(), [](const hpcckpt_backend_table* a, const hpcckpt_backend_table* b) {
            return std::strcmp(a->name, b->name) < 0;
        });
        table = {sizeof(hpcckpt_plugin_table),
                 HPCCKPT_PLATFORM,
                 HPCCKPT_ABI_MAGIC,
                 HPCCKPT_ABI_MAJOR,
                 HPCCKPT_ABI_MINOR,
                 backends.size(),
                 backends.data(),
                 {nullptr, nullptr, nullptr, nullptr}};
    }

    HPCCKPT_PRIVATE static const Library& Get() {
        static const Library* const library = new Library;  // never destroyed: the host reads it until the end
        return *library;
    }

    std::vector<const hpcckpt_backend_table*> backends;
    hpcckpt_plugin_table table;
};

}  // namespace detail
}  // namespace abi1
}  // namespace hpcckpt

extern "C" HPCCKPT_EXPORT HPCCKPT_KEEP inline const hpcckpt_plugin_table* hpcckpt_plugin_abi(void) {
    try {
        return &hpcckpt::detail::Library::Get().table;
    } catch (...) {
        return nullptr;
    }
}

// Makes a class known under a name, which is a C identifier without quotes. A semicolon may follow.
#define HPCCKPT_REGISTER_BACKEND(name, Class)                                                                     \
    namespace {                                                                                                   \
    ::hpcckpt::detail::Registration hpcckpt_registration_of_##name(#name, ::hpcckpt::detail::Functions<Class>{}); \
    }

#endif
