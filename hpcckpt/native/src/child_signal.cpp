#include "child_signal.h"

#include <cerrno>
#include <csignal>
#include <ctime>

namespace hpcckpt {
namespace {

constexpr unsigned kIntervalMs = 10;

// Read by the handler: set before it is installed, and the same for all signals.
const ParentState* g_parent = nullptr;
unsigned g_wait_ms = 0;

bool is_meant_for_parent() {
    for (unsigned waited_ms = 0; g_parent->is_ending == 0; waited_ms += kIntervalMs) {
        if (g_parent->has_signal != 0) return true;
        if (waited_ms >= g_wait_ms) return false;
        const timespec interval{0, kIntervalMs * 1'000'000L};
        nanosleep(&interval, nullptr);
    }
    return false;
}

// Calls only what a signal handler may call.
extern "C" void handle_in_child(int number) {
    const int previous_errno = errno;
    if (!is_meant_for_parent()) {
        std::signal(number, SIG_DFL);
        std::raise(number);  // blocked until this handler returns
    }
    errno = previous_errno;
}

}  // namespace

int end_unless_parent_has_signal(int number, const ParentState* parent, unsigned wait_ms) {
    g_parent = parent;
    g_wait_ms = wait_ms;
    struct sigaction action{};
    action.sa_handler = handle_in_child;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(number, &action, nullptr) == 0 ? 0 : errno;
}

}  // namespace hpcckpt
