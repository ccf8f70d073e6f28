// Lets Python handle signals during a long native call, so that Ctrl-C ends it.
#pragma once

#include <chrono>

#include "workers.h"

namespace hpcckpt {

// Made with the GIL, in the thread that calls.
class SignalCheck {
   public:
    SignalCheck();

    // For the native work: called without the GIL, now and then, from the thread that made this.  Returns whether a
    // signal's handler raised, so that the work should end.  Empty where no handler runs: Python runs them on its main
    // thread alone.
    StopCheck stop_check();

    // With the GIL again: raises what the handler raised.
    static void raise_pending();

   private:
    bool has_raised();

    const bool is_main_thread_;
    std::chrono::steady_clock::time_point next_;
};

}  // namespace hpcckpt
