// Resource variables in the host's memory: found, and locked in an order that cannot deadlock.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace hpcckpt {

using VarRef = tensorflow::core::RefCountPtr<tensorflow::Var>;

// The processor's own memory: "/job:localhost/replica:0/task:0/device:CPU:0".
inline bool is_on_host(const tensorflow::ResourceHandle& handle) {
    return handle.device().find(":CPU:") != std::string::npos;
}

inline absl::Status find_variable(tensorflow::OpKernelContext* ctx, const tensorflow::ResourceHandle& handle,
                                  VarRef* found) {
    if (!handle.IsRefCounting()) return tensorflow::LookupResource(ctx, handle, found);
    // A handle that owns its variable needs no look at the device's table: so the device may be another one.
    auto variable = handle.GetResource<tensorflow::Var>();
    if (!variable.ok()) return variable.status();
    variable.value()->Ref();
    found->reset(variable.value());
    return absl::OkStatus();
}

// Locks of several variables, taken in the order of their addresses, as TensorFlow's own kernels do.
class VariableLocks {
   public:
    enum class Mode { kShared, kExclusive };

    VariableLocks(std::vector<tensorflow::Var*> variables, Mode mode) : locked_(std::move(variables)), mode_(mode) {
        std::sort(locked_.begin(), locked_.end(), [](auto* a, auto* b) { return a->mu() < b->mu(); });
        locked_.erase(std::unique(locked_.begin(), locked_.end()), locked_.end());
        for (tensorflow::Var* variable : locked_) {
            mode_ == Mode::kShared ? variable->mu()->lock_shared() : variable->mu()->lock();
        }
    }
    ~VariableLocks() {
        for (tensorflow::Var* variable : locked_) unlock(variable);
    }

    // Unlocks the variables that need not stay locked.
    template <typename Predicate>
    void release_unless(Predicate stays) {
        const auto going = std::partition(locked_.begin(), locked_.end(), stays);
        std::for_each(going, locked_.end(), [this](tensorflow::Var* variable) { unlock(variable); });
        locked_.erase(going, locked_.end());
    }

    VariableLocks(const VariableLocks&) = delete;
    VariableLocks& operator=(const VariableLocks&) = delete;

   private:
    void unlock(tensorflow::Var* variable) {
        mode_ == Mode::kShared ? variable->mu()->unlock_shared() : variable->mu()->unlock();
    }

    std::vector<tensorflow::Var*> locked_;
    Mode mode_;
};

}  // namespace hpcckpt
