#include "callback.h"

#include "../src/gil.h"

namespace hpcckpt {
namespace lms {
namespace {

PyObject* planner = nullptr;  // owned; the interpreter's lock guards it

std::string text_of(PyObject* object) {
    PyObject* said = object == nullptr ? nullptr : PyObject_Str(object);
    const char* bytes = said == nullptr ? nullptr : PyUnicode_AsUTF8(said);
    const std::string text = bytes == nullptr ? "" : bytes;
    Py_XDECREF(said);
    PyErr_Clear();
    return text;
}

std::string take_error() {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    const std::string text = text_of(value);
    const char* name = type == nullptr ? "error" : reinterpret_cast<PyTypeObject*>(type)->tp_name;
    const std::string whole = std::string(name) + ": " + text;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return whole;
}

Reply reply_of(PyObject* result) {
    if (result == nullptr) return {true, take_error()};
    Reply reply;
    if (result != Py_None) {
        Py_ssize_t nbytes = 0;
        const char* bytes = PyUnicode_AsUTF8AndSize(result, &nbytes);
        reply = bytes == nullptr ? Reply{true, take_error()} : Reply{false, {bytes, static_cast<std::size_t>(nbytes)}};
    }
    Py_DECREF(result);
    return reply;
}

}  // namespace

Reply ask_planner(const std::string& function, bool is_session, const std::string& graph) {
    const WithGil gil;
    if (planner == nullptr) return {};
    PyObject* called = planner;
    Py_INCREF(called);  // it may disarm the pass
    PyObject* result = outliving_interpreter([&] {
        return PyObject_CallFunction(called, "sOs#", function.c_str(), is_session ? Py_True : Py_False, graph.data(),
                                     static_cast<Py_ssize_t>(graph.size()));
    });
    Py_DECREF(called);
    return reply_of(result);
}

void set_planner(PyObject* callable) {
    Py_XINCREF(callable);
    PyObject* before = planner;
    planner = callable;
    Py_XDECREF(before);
}

}  // namespace lms
}  // namespace hpcckpt
