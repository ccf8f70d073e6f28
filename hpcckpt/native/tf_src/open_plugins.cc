#include "open_plugins.h"

#include "../src/utf8.h"

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
