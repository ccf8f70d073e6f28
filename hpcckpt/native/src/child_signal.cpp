#include "child_signal.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace hpcckpt {
namespace {

using Action = struct sigaction;
using Handler = void (*)(int, siginfo_t*, void*);

constexpr long kIntervalMs = 10;

// Read by the handlers: set before they are installed.
void (*g_pythons)(int) = nullptr;
ParentState* g_own = nullptr;
pid_t g_own_pid = 0;
Action g_marked[NSIG];  // the handlers that mark_and_call replaced

const ParentState* g_parent = nullptr;
pid_t g_sender_pid = 0;  // whose signals this child obeys, besides those of the process that forked it
pid_t g_forked_by = 0;
long g_wait_ms = 0;
Action g_first[NSIG];  // the handlers, if any, that end_if_meant replaced, at first and since
Action g_ended[NSIG];

bool has_handler(const Action& action) {
    return (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

// Another library's handler may call mark_and_call, which must not call it.
bool is_pythons(const Action& action) {
    if (!has_handler(action) || (action.sa_flags & SA_SIGINFO) != 0) return false;
    if (g_pythons == nullptr) g_pythons = action.sa_handler;
    return action.sa_handler == g_pythons;
}

bool is_installed(const Action& action, Handler handler) {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handler;
}

// Whether system calls are restarted stays as it is: handlers that raise exceptions need the interruption.
int replace(int number, const Action& before, Handler handler) {
    Action action = before;
    action.sa_sigaction = handler;
    action.sa_flags |= has_handler(before) ? SA_SIGINFO : SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    return sigaction(number, &action, nullptr) == 0 ? 0 : errno;
}

long now_ms() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

bool has_sender(const siginfo_t* info) {
    return info->si_code == SI_USER || info->si_code == SI_TKILL || info->si_code == SI_QUEUE;
}

bool is_sent_by_parent(const siginfo_t* info) {
    return has_sender(info) && (info->si_pid == g_sender_pid || info->si_pid == getppid());
}

bool is_meant_for_all(const siginfo_t* info) {
    if (is_sent_by_parent(info)) return false;
    const long deadline = now_ms() + g_wait_ms;
    while (getppid() == g_forked_by) {
        if (g_parent->has_signal != 0) return true;
        if (now_ms() >= deadline) return false;
        const timespec interval{0, kIntervalMs * 1'000'000L};
        nanosleep(&interval, nullptr);
    }
    return false;
}

// What the handlers do may be done in a signal handler.

void call(const Action& action, int number, siginfo_t* info, void* context) {
    if ((action.sa_flags & SA_SIGINFO) != 0) {
        action.sa_sigaction(number, info, context);
    } else if (has_handler(action)) {
        action.sa_handler(number);
    } else {
        std::signal(number, SIG_DFL);
        std::raise(number);  // blocked until the handler returns
    }
}

extern "C" void mark_and_call(int number, siginfo_t* info, void* context) {
    if (getpid() == g_own_pid) g_own->has_signal = 1;
    call(g_marked[number], number, info, context);
}

extern "C" void end_if_meant(int number, siginfo_t* info, void* context) {
    const int previous_errno = errno;
    if (has_sender(info) && info->si_pid == getpid()) {  // raised again by the handler that we call
        call(g_first[number], number, info, context);
    } else if (!is_meant_for_all(info)) {
        call(g_ended[number], number, info, context);
    }
    errno = previous_errno;
}

extern "C" void become_child() { g_forked_by = getppid(); }

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

int end_unless_parent_has_signal(int number, const ParentState* parent, long wait_ms, int parent_pid) {
    static const int registered = pthread_atfork(nullptr, nullptr, become_child);
    if (registered != 0) return registered;
    static bool is_replaced[NSIG];
    Action before{};
    if (sigaction(number, nullptr, &before) != 0) return errno;
    g_parent = parent;
    g_sender_pid = parent_pid;
    g_forked_by = getppid();
    g_wait_ms = wait_ms;
    if (is_installed(before, end_if_meant)) return 0;
    if (!is_replaced[number]) g_first[number] = before;
    is_replaced[number] = true;
    g_ended[number] = before;
    return replace(number, before, end_if_meant);
}

}  // namespace hpcckpt
