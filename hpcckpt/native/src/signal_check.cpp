#include "signal_check.h"

#include <nanobind/nanobind.h>

#include "gil.h"

namespace nb = nanobind;

// From Python 3.13 on it is exported, and declared in an internal header only.
extern "C" PyAPI_FUNC(int) _PyOS_IsMainThread(void);

namespace hpcckpt {
namespace {

// Often enough for a person who waits, and seldom enough that waiting for the GIL costs nothing.
constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

// Not with threading.main_thread(), which is Python code: see gil.h.
SignalCheck::SignalCheck()
    : is_main_thread_(_PyOS_IsMainThread() != 0), next_(std::chrono::steady_clock::now() + kInterval) {}

StopCheck SignalCheck::stop_check() {
    if (!is_main_thread_) return nullptr;
    return [this] { return has_raised(); };
}

bool SignalCheck::has_raised() {
    if (std::chrono::steady_clock::now() < next_) return false;
    const WithGil gil;
    const bool is_raised = PyErr_CheckSignals() != 0;
    next_ = std::chrono::steady_clock::now() + kInterval;
    return is_raised;
}

void SignalCheck::raise_pending() {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
}

}  // namespace hpcckpt
