// Releasing the interpreter's lock and taking it again, also in a thread that the interpreter ends.
//
// Before 3.14 CPython ends a daemon thread that asks for the lock during shutdown with pthread_exit.  In glibc that
// unwinds the stack.  The first function on the way that is noexcept aborts the process, and nanobind's `catch (...)`
// ends it with SIGSEGV.  Such a thread waits here for the end of the process instead, as in CPython 3.14.
#pragma once

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>
#include <unistd.h>

#include <exception>
#include <new>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace hpcckpt {

// Calls `fn`, which takes the lock or runs Python code.  Nothing with a destructor that needs the lock may be between
// this call and that code.
template <typename Fn>
auto outliving_interpreter(Fn fn) -> decltype(fn()) {
#if defined(__GLIBCXX__)
    try {
        return fn();
    } catch (const abi::__forced_unwind&) {
        for (;;) ::pause();
    }
#else
    return fn();
#endif
}

class WithoutGil {
   public:
    WithoutGil() : state_(PyEval_SaveThread()) {}
    ~WithoutGil() {
        outliving_interpreter([this] { PyEval_RestoreThread(state_); });
    }
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;

   private:
    PyThreadState* const state_;
};

class WithGil {
   public:
    WithGil() : state_(outliving_interpreter([] { return PyGILState_Ensure(); })) {}
    ~WithGil() { PyGILState_Release(state_); }
    WithGil(const WithGil&) = delete;
    WithGil& operator=(const WithGil&) = delete;

   private:
    const PyGILState_STATE state_;
};

// Calls `fn` and turns a C++ exception into a Python one, for functions that C calls: returns `otherwise` then.
template <typename Fn, typename Result>
Result guarded(Fn fn, Result otherwise) {
    try {
        return fn();
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return otherwise;
}

// A method of a module in C.
template <PyObject* (*method)(PyObject*, PyObject*)>
PyObject* guarded_method(PyObject* self, PyObject* args) {
    return guarded([&] { return method(self, args); }, static_cast<PyObject*>(nullptr));
}

}  // namespace hpcckpt
