// Python's side of HpcckptHold: NumPy arrays that show the buffers that it held.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace hpcckpt {

// (address of a Held, dtypes by number) -> (list of arrays, how many are left to others, how many have no value).
// An array of what is left to others is None; dtypes is a list of NumPy's dtypes, None where there is none.
PyObject* make_arrays(PyObject* module, PyObject* args);

// Call once, before any other; returns false with a Python error set if NumPy does not fit.
bool prepare_arrays();

}  // namespace hpcckpt
