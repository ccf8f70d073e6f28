// posix: one file for each set of tensors, rank-NNNNN.posix, in the directory of the save.
//
// The file is a head of 64 bytes, the tensors' bytes, each beginning at a multiple of 64, and an index. Saving:
//
//     a. write the bytes and the index to rank-NNNNN.posix.part
//     b. write the head, which says where the index is, and its hash
//     c. sync the file, give it its name, and sync the directory
//
// So a file that has its name is whole, and a second save into the same directory replaces the first or leaves it.
// Only the index has a hash: tensor bytes that changed on storage are returned as they are.  A plugin for production
// stores a checksum of the data too, unless its storage has one.
//
// Config: "directory=PATH" stores there, rather than in the directory that the caller gives.
#include <hpcckpt/backend.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>

namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::size_t kMaxCall = std::size_t{1} << 30;  // Linux moves at most 2 GiB in one call

[[noreturn]] void Throw(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

class File {
   public:
    File(const std::string& path, int flags) : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
        if (fd_ < 0) Throw("open " + path);
    }
    ~File() { ::close(fd_); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    void Write(const void* data, std::uint64_t nbytes, std::uint64_t offset) const {
        const char* from = static_cast<const char*>(data);
        while (nbytes > 0) {
            const ssize_t done = ::pwrite(fd_, from, std::min<std::uint64_t>(nbytes, kMaxCall), Position(offset));
            if (done < 0 && errno == EINTR) continue;
            if (done <= 0) Throw("write " + path_);
            from += done, offset += static_cast<std::uint64_t>(done), nbytes -= static_cast<std::uint64_t>(done);
        }
    }

    void Read(void* data, std::uint64_t nbytes, std::uint64_t offset) const {
        char* into = static_cast<char*>(data);
        while (nbytes > 0) {
            const ssize_t done = ::pread(fd_, into, std::min<std::uint64_t>(nbytes, kMaxCall), Position(offset));
            if (done < 0 && errno == EINTR) continue;
            if (done < 0) Throw("read " + path_);
            if (done == 0) throw hpcckpt::Damaged(path_ + " is cut short");
            into += done, offset += static_cast<std::uint64_t>(done), nbytes -= static_cast<std::uint64_t>(done);
        }
    }

    std::uint64_t Size() const {
        struct stat found;
        if (::fstat(fd_, &found) != 0) Throw("stat " + path_);
        return static_cast<std::uint64_t>(found.st_size);
    }

    void Sync() const {
        if (::fsync(fd_) != 0) Throw("sync " + path_);
    }

    const std::string& path() const { return path_; }

   private:
    static off_t Position(std::uint64_t offset) { return static_cast<off_t>(offset); }

    std::string path_;
    int fd_;
};

struct Head {
    char magic[8];
    std::uint32_t version;
    std::uint32_t byte_order;
    std::uint64_t index_offset;
    std::uint64_t index_nbytes;
    std::uint64_t index_hash;
    std::uint64_t reserved[3];
};
static_assert(sizeof(Head) == 64, "the head has 64 bytes");
constexpr Head kHead = {{'H', 'P', 'C', 'P', 'O', 'S', 'I', 'X'}, 1, 0x01020304, 0, 0, 0, {0, 0, 0}};

// FNV-1a
std::uint64_t HashOf(const std::string& bytes) {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
    return hash;
}

template <class Value>
void Append(std::string& to, const Value& value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Elements of a box, and where their bytes are.
struct Place {
    std::uint64_t first_element;
    std::uint64_t n_elements;
    std::uint64_t offset;
    std::uint64_t nbytes;
};

// The index: for each entry the length of the key of its box, the key, and its place.
class Index {
   public:
    static std::string Encode(const std::string& key, const Place& place) {
        std::string record;
        Append(record, static_cast<std::uint64_t>(key.size()));
        record += key;
        Append(record, place);
        return record;
    }

    explicit Index(const File& file) {
        Head head;
        file.Read(&head, sizeof(head), 0);
        const std::uint64_t size = file.Size();
        Check(file, std::memcmp(&head, &kHead, offsetof(Head, index_offset)) == 0);
        Check(file, head.index_offset <= size && head.index_nbytes == size - head.index_offset);
        std::string text(head.index_nbytes, '\0');
        file.Read(text.data(), text.size(), head.index_offset);
        Check(file, HashOf(text) == head.index_hash);
        for (std::size_t at = 0; at < text.size();) {
            const auto length = Take<std::uint64_t>(file, text, at);
            Check(file, length <= text.size() - at);
            const std::string key = text.substr(at, length);
            at += length;
            const auto place = Take<Place>(file, text, at);
            Check(file, place.offset <= head.index_offset && place.nbytes <= head.index_offset - place.offset);
            places_[key].push_back(place);
        }
    }

    // Where the elements of a tensor begin in the file.
    std::uint64_t Find(const File& file, const hpcckpt::Tensor& tensor) const {
        const auto found = places_.find(tensor.box_key());
        if (found != places_.end()) {
            for (const Place& place : found->second) {
                const std::uint64_t skipped = tensor.first_element() - place.first_element;
                if (tensor.first_element() >= place.first_element && skipped <= place.n_elements &&
                    tensor.n_elements() <= place.n_elements - skipped) {
                    return place.offset + skipped * tensor.itemsize();
                }
            }
        }
        throw hpcckpt::Damaged(file.path() + " has not these elements of " + std::string(tensor.name()));
    }

   private:
    static void Check(const File& file, bool is_sound) {
        if (!is_sound) throw hpcckpt::Damaged(file.path() + " is damaged: its index cannot be read");
    }

    template <class Value>
    static Value Take(const File& file, const std::string& text, std::size_t& at) {
        Value value;
        Check(file, text.size() - at >= sizeof(value));
        std::memcpy(&value, text.data() + at, sizeof(value));
        at += sizeof(value);
        return value;
    }

    std::map<std::string, std::vector<Place>> places_;
};

class PosixBackend : public hpcckpt::Backend {
   public:
    static constexpr std::uint32_t kFeatures =
        HPCCKPT_FEATURE_STORES | HPCCKPT_FEATURE_CONCURRENT | HPCCKPT_FEATURE_DURABLE | HPCCKPT_FEATURE_PARTIAL;

    explicit PosixBackend(const char* config) {
        hpcckpt::Options options(config);
        directory_ = options.Get("directory");
        options.Finish();
    }

    int Save(const hpcckpt::Context& context) override {
        const std::string path = PathOf(context), part = path + ".part";
        try {
            WriteFile(part, context);
            if (::rename(part.c_str(), path.c_str()) != 0) Throw("rename " + part);
        } catch (...) {
            ::unlink(part.c_str());
            throw;
        }
        File(DirectoryOf(context), O_RDONLY | O_DIRECTORY).Sync();
        return 0;
    }

    int Load(const hpcckpt::Context& context) override {
        const std::string path = PathOf(context);
        if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) throw hpcckpt::Damaged(path + " is missing");
        const File file(path, O_RDONLY | O_NOFOLLOW);
        const Index index(file);
        for (const hpcckpt::Tensor& tensor : context.tensors()) {
            file.Read(tensor.data(), tensor.nbytes(), index.Find(file, tensor));
        }
        return 0;
    }

   private:
    static void WriteFile(const std::string& path, const hpcckpt::Context& context) {
        const File file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
        std::uint64_t end = sizeof(Head);
        std::string index;
        for (const hpcckpt::Tensor& tensor : context.tensors()) {
            const Place place = {tensor.first_element(), tensor.n_elements(), end, tensor.nbytes()};
            index += Index::Encode(tensor.box_key(), place);
            file.Write(tensor.data(), tensor.nbytes(), end);
            end = (end + tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
        }
        file.Write(index.data(), index.size(), end);
        Head head = kHead;
        head.index_offset = end, head.index_nbytes = index.size(), head.index_hash = HashOf(index);
        file.Write(&head, sizeof(head), 0);
        file.Sync();
    }

    std::string DirectoryOf(const hpcckpt::Context& context) const {
        const std::string directory = directory_.empty() ? std::string(context.directory()) : directory_;
        if (directory.empty()) throw std::invalid_argument("nowhere to store: give the config 'directory=PATH'");
        return directory;
    }

    std::string PathOf(const hpcckpt::Context& context) const {
        char name[32];
        std::snprintf(name, sizeof(name), "rank-%05u.posix", context.rank());
        // The directory of a save is its own; one that the config names is shared by all.
        const bool is_shared = !directory_.empty() && !std::string(context.save_id()).empty();
        const std::string prefix = is_shared ? std::string(context.save_id()) + "-" : "";
        return DirectoryOf(context) + "/" + prefix + name;
    }

    std::string directory_;
};

}  // namespace

HPCCKPT_REGISTER_BACKEND(posix, PosixBackend)
