#include "child_signal.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace hpcckpt {
namespace {

using Action = struct sigaction;
using Handler = void (*)(int, siginfo_t*, void*);

constexpr unsigned kIntervalMs = 10;

// Read by the handlers: set before they are installed.
ParentState* g_own = nullptr;
pid_t g_own_pid = 0;
const ParentState* g_parent = nullptr;
pid_t g_parent_pid = 0;
unsigned g_wait_ms = 0;
void (*g_pythons)(int) = nullptr;
Action g_marked[NSIG];  // what the handlers replaced: Python's handler
Action g_ended[NSIG];   // and in children; it may be none

bool has_handler(const Action& action) {
    return (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

// Another library's handler may call ours: ours must not call it.
bool is_pythons(const Action& action) {
    if (!has_handler(action) || (action.sa_flags & SA_SIGINFO) != 0) return false;
    if (g_pythons == nullptr) g_pythons = action.sa_handler;
    return action.sa_handler == g_pythons;
}

bool is_installed(const Action& action, Handler handler) {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handler;
}

void call(const Action& action, int number, siginfo_t* info, void* context) {
    if ((action.sa_flags & SA_SIGINFO) != 0) {
        action.sa_sigaction(number, info, context);
    } else {
        action.sa_handler(number);
    }
}

// Installs a handler in the place of `before`, with its mask; interrupted system calls are restarted.
int replace(int number, const Action& before, Handler handler) {
    Action action = before;
    action.sa_sigaction = handler;
    action.sa_flags |= SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    return sigaction(number, &action, nullptr) == 0 ? 0 : errno;
}

bool is_sent_by_parent(const siginfo_t* info) {
    const bool has_sender = info->si_code == SI_USER || info->si_code == SI_TKILL || info->si_code == SI_QUEUE;
    return has_sender && (info->si_pid == g_parent_pid || info->si_pid == getppid());
}

bool is_meant_for_all(const siginfo_t* info) {
    if (is_sent_by_parent(info)) return false;
    for (unsigned waited_ms = 0; g_parent->is_ending == 0 && kill(g_parent_pid, 0) == 0; waited_ms += kIntervalMs) {
        if (g_parent->has_signal != 0) return true;
        if (waited_ms >= g_wait_ms) return false;
        const timespec interval{0, kIntervalMs * 1'000'000L};
        nanosleep(&interval, nullptr);
    }
    return false;
}

// The handlers call only what a signal handler may call.

extern "C" void mark_and_call(int number, siginfo_t* info, void* context) {
    if (getpid() == g_own_pid) g_own->has_signal = 1;
    call(g_marked[number], number, info, context);
}

extern "C" void end_if_meant(int number, siginfo_t* info, void* context) {
    const int previous_errno = errno;
    if (!is_meant_for_all(info)) {
        if (has_handler(g_ended[number])) {
            call(g_ended[number], number, info, context);
        } else {
            std::signal(number, SIG_DFL);
            std::raise(number);  // blocked until this handler returns
        }
    }
    errno = previous_errno;
}

}  // namespace

int mark_signal(int number, ParentState* state) {
    Action before{};
    if (sigaction(number, nullptr, &before) != 0) return errno;
    g_own = state;
    g_own_pid = getpid();
    if (!is_pythons(before)) return 0;
    g_marked[number] = before;
    return replace(number, before, mark_and_call);
}

int end_unless_parent_has_signal(int number, const ParentState* parent, unsigned wait_ms) {
    Action before{};
    if (sigaction(number, nullptr, &before) != 0) return errno;
    g_parent = parent;
    g_parent_pid = getppid();
    g_wait_ms = wait_ms;
    if (is_installed(before, end_if_meant)) return 0;
    g_ended[number] = before;
    return replace(number, before, end_if_meant);
}

}  // namespace hpcckpt
