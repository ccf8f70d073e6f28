// The library of ops is also a module of Python's: what Python needs of it beside the ops.
#include "arrays.h"

#include "open_plugins.h"

namespace hpcckpt {
namespace {

// (address of a backend's table, address of its instance) -> token
PyObject* open(PyObject*, PyObject* args) {
    unsigned long long table = 0, self = 0;
    if (!PyArg_ParseTuple(args, "KK", &table, &self)) return nullptr;
    const auto* backend = reinterpret_cast<const hpcckpt_backend_table*>(table);
    return PyLong_FromLongLong(open_plugin(backend, reinterpret_cast<void*>(self)));
}

// token -> None, once no call is under way
PyObject* close(PyObject*, PyObject* token) {
    const long long number = PyLong_AsLongLong(token);
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_BEGIN_ALLOW_THREADS;
    close_plugin(number);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

// token -> (code, text) of what its last call failed of, told once; (0, "") if it did not
PyObject* take_failure(PyObject*, PyObject* token) {
    const auto plugin = find_plugin(PyLong_AsLongLong(token));
    if (PyErr_Occurred() != nullptr) return nullptr;
    const Failure failure = plugin == nullptr ? Failure{} : plugin->take_failure();
    return Py_BuildValue("(is)", failure.code, failure.text.c_str());
}

PyMethodDef methods[] = {{"arrays", make_arrays, METH_VARARGS, nullptr},
                         {"close", close, METH_O, nullptr},
                         {"open", open, METH_VARARGS, nullptr},
                         {"take_failure", take_failure, METH_O, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_tf_ops", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace hpcckpt

PyMODINIT_FUNC PyInit__tf_ops() { return hpcckpt::prepare_arrays() ? PyModule_Create(&hpcckpt::definition) : nullptr; }
