// Plugins' instances that the ops may call, each by a token that means nothing in another process.
//
// A graph carries the token: one that was stored and loaded elsewhere is refused, where an address would be called.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "hpcckpt/plugin.h"

namespace hpcckpt {

struct Failure {
    int code = 0;
    std::string text;
};

class OpenPlugin {
   public:
    enum class Call { kSave, kLoad };

    OpenPlugin(const hpcckpt_backend_table* table, void* self) : table_(table), self_(self) {}

    // Calls the plugin, one caller at a time unless it allows several.  Returns in words what it failed of, or nothing.
    std::string call(Call which, const hpcckpt_context& context);

    // Returns why the last call failed, once; Python makes an exception of it.
    Failure take_failure();

    // Waits for the calls under way, and lets no more in.
    void close();

   private:
    const hpcckpt_backend_table* table_;
    void* self_;
    bool is_closed_ = false;
    std::shared_mutex open_;
    std::mutex one_at_a_time_;
    std::mutex failure_lock_;
    Failure failure_;
};

// Returns the token.  Table and instance belong to the caller, who keeps them alive until `close_plugin` returns.
std::int64_t open_plugin(const hpcckpt_backend_table* table, void* self);
std::shared_ptr<OpenPlugin> find_plugin(std::int64_t token);  // null if there is none
void close_plugin(std::int64_t token);

}  // namespace hpcckpt
