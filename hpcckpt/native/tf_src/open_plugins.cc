#include "open_plugins.h"

#include <array>
#include <random>
#include <unordered_map>
#include <utility>

namespace hpcckpt {
namespace {

constexpr std::size_t kErrorBytes = 4096;

struct Registry {
    std::mutex lock;
    std::unordered_map<std::int64_t, std::shared_ptr<OpenPlugin>> plugins;
    // The upper half is random, so that tokens of other processes are not found here.
    std::int64_t next = static_cast<std::int64_t>(std::random_device()() & 0x7fffffff) << 32;
};

Registry& registry() {
    static Registry* const one = new Registry;  // never destroyed: calls may be under way while the process ends
    return *one;
}

// How many bytes a character of UTF-8 at `p` has, or 0 if there is none.
std::size_t character_bytes(const unsigned char* p, std::size_t left) {
    const std::size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (n == 0 || n > left) return 0;
    for (std::size_t i = 1; i < n; ++i) {
        if ((p[i] & 0xc0) != 0x80) return 0;
    }
    const bool is_overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90);
    const bool is_beyond = (p[0] == 0xed && p[1] >= 0xa0) || (p[0] == 0xf4 && p[1] >= 0x90);
    return is_overlong || is_beyond ? 0 : n;
}

// `text` with what is no UTF-8 written as \xNN.
std::string as_utf8(const std::string& text) {
    static const char digits[] = "0123456789abcdef";
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    std::string clean;
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t n = character_bytes(bytes + i, text.size() - i);
        if (n > 0) {
            clean.append(text, i, n);
        } else {
            clean += {'\\', 'x', digits[bytes[i] >> 4], digits[bytes[i] & 15]};
        }
        i += n > 0 ? n : 1;
    }
    return clean;
}

}  // namespace

std::string OpenPlugin::call(Call which, const hpcckpt_context& context) {
    const std::shared_lock<std::shared_mutex> is_open(open_);
    if (is_closed_) return std::string(table_->name) + " is closed";
    std::unique_lock<std::mutex> alone(one_at_a_time_, std::defer_lock);
    if ((table_->features & HPCCKPT_FEATURE_CONCURRENT) == 0) alone.lock();
    std::array<char, kErrorBytes + 1> error{};  // the last byte stays zero, whatever a plugin writes
    const bool is_save = which == Call::kSave;
    const int code = (is_save ? table_->save : table_->load)(self_, &context, error.data(), kErrorBytes);
    if (code == 0) return "";
    const std::string reason = as_utf8(error.data());
    const std::string who = context.n_ranks > 1 ? "[rank " + std::to_string(context.rank) + "] " : "";
    const std::string text = who + table_->name + (is_save ? ".Save" : ".Load") + " failed (code " +
                             std::to_string(code) + "): " + (reason.empty() ? "it gave no reason" : reason);
    const std::lock_guard<std::mutex> lock(failure_lock_);
    failure_ = {code, text};
    return text;
}

Failure OpenPlugin::take_failure() {
    const std::lock_guard<std::mutex> lock(failure_lock_);
    return std::exchange(failure_, {});
}

void OpenPlugin::close() {
    const std::unique_lock<std::shared_mutex> nobody_inside(open_);
    is_closed_ = true;
}

std::int64_t open_plugin(const hpcckpt_backend_table* table, void* self) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.lock);
    all.plugins.emplace(++all.next, std::make_shared<OpenPlugin>(table, self));
    return all.next;
}

std::shared_ptr<OpenPlugin> find_plugin(std::int64_t token) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.lock);
    const auto found = all.plugins.find(token);
    return found == all.plugins.end() ? nullptr : found->second;
}

void close_plugin(std::int64_t token) {
    const std::shared_ptr<OpenPlugin> plugin = find_plugin(token);
    if (plugin == nullptr) return;
    plugin->close();
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.lock);
    all.plugins.erase(token);
}

}  // namespace hpcckpt
