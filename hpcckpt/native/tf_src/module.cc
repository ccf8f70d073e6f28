// The library of ops is also a Python module: what Python needs of it beside the ops.
#include "arrays.h"

#include "../src/gil.h"
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

// token -> None, when no call is in progress
PyObject* close(PyObject*, PyObject* token) {
    const long long number = PyLong_AsLongLong(token);
    if (PyErr_Occurred() != nullptr) return nullptr;
    {
        const WithoutGil without_gil;
        close_plugin(number);
    }
    Py_RETURN_NONE;
}

// token -> (code, text) of the failure of its last call, returned once; (0, "") if it did not fail
PyObject* take_failure(PyObject*, PyObject* token) {
    const auto plugin = find_plugin(PyLong_AsLongLong(token));
    if (PyErr_Occurred() != nullptr) return nullptr;
    const Failure failure = plugin == nullptr ? Failure{} : plugin->take_failure();
    return Py_BuildValue("(is)", failure.code, failure.text.c_str());
}

PyMethodDef methods[] = {{"arrays", guarded_method<make_arrays>, METH_VARARGS, nullptr},
                         {"close", guarded_method<close>, METH_O, nullptr},
                         {"open", guarded_method<open>, METH_VARARGS, nullptr},
                         {"take_failure", guarded_method<take_failure>, METH_O, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_tf_ops", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace hpcckpt

PyMODINIT_FUNC PyInit__tf_ops() { return hpcckpt::prepare_arrays() ? PyModule_Create(&hpcckpt::definition) : nullptr; }
