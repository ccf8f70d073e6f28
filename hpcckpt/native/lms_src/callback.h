// The planner in Python, which the graph pass calls.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>

namespace hpcckpt {
namespace lms {

struct Reply {
    bool is_error = false;
    std::string text;  // the plan, empty if there is none; or the error
};

// Takes the interpreter's lock; the callable is called with (name of the function, whether it is a session's graph,
// the graph as JSON) and returns the plan as text, or None.
Reply ask_planner(const std::string& function, bool is_session, const std::string& graph);

// With the interpreter's lock held.  A null pointer forgets the one that is set.
void set_planner(PyObject* callable);

}  // namespace lms
}  // namespace hpcckpt
