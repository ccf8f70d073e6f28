// The library is also a module of Python's: settings, figures and the pass are set and read through it.
#include "callback.h"

#include <memory>
#include <string>
#include <system_error>

#include "../src/gil.h"

#include "figures.h"
#include "graph_pass.h"
#include "swap_engine.h"
#include "op_times.h"
#include "pool.h"
#include "probe.h"

namespace hpcckpt {
namespace lms {
namespace {

// Owns a reference.
struct Unref {
    void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Unref>;

PyObject* os_error(const IoError& error, const std::string& place) {
    PyObject* path = PyUnicode_DecodeFSDefaultAndSize(place.data(), static_cast<Py_ssize_t>(place.size()));
    PyObject* args = path == nullptr ? nullptr : Py_BuildValue("(isN)", error.code, error.text.c_str(), path);
    if (args == nullptr) return nullptr;
    PyErr_SetObject(PyExc_OSError, args);
    Py_DECREF(args);
    return nullptr;
}

Config::Tier tier_of(const std::string& name) {
    if (name == "host") return Config::Tier::kHost;
    return name == "file" ? Config::Tier::kFile : Config::Tier::kHostThenFile;
}

// (tier, directory, window, host_limit, file_limit, min_bytes, spare, rank, is_mapped, is_named, is_fallback);
// raises OSError
PyObject* configure(PyObject*, PyObject* args) {
    const char* tier = nullptr;
    PyObject* path = nullptr;  // bytes: it may not be UTF-8
    long long window = 0, host_limit = 0, file_limit = 0, min_bytes = 0, spare = 0;
    int rank = -1, is_mapped = 1, is_named = 0, is_fallback = 0;
    if (!PyArg_ParseTuple(args, "sO&LLLLLippp", &tier, PyUnicode_FSConverter, &path, &window, &host_limit, &file_limit,
                          &min_bytes, &spare, &rank, &is_mapped, &is_named, &is_fallback)) {
        return nullptr;
    }
    const Owned bytes(path);
    const std::string directory(PyBytes_AS_STRING(path), static_cast<std::size_t>(PyBytes_GET_SIZE(path)));
    Config config{tier_of(tier), directory, window, host_limit,     file_limit,
                  min_bytes,     spare,     rank,   is_mapped != 0, is_named != 0};
    if (is_fallback != 0) {
        SwapEngine::one().set_fallback(config);
        Py_RETURN_NONE;
    }
    IoError error;
    bool is_set = false;
    try {
        const WithoutGil without_gil;
        is_set = SwapEngine::one().configure(config, &error);
    } catch (const std::system_error& failed) {  // the system has no thread for it
        error = {failed.code().value(), failed.what()};
    }
    if (!is_set) return os_error(error, directory);
    Py_RETURN_NONE;
}

// (match, with_sessions, with_stalls, batch_size, planner); raises ValueError
PyObject* arm_pass(PyObject*, PyObject* args) {
    const char* match = nullptr;
    int with_sessions = 0, with_stalls = 1;
    long long batch_size = 0;
    PyObject* planner = nullptr;
    if (!PyArg_ParseTuple(args, "sppLO", &match, &with_sessions, &with_stalls, &batch_size, &planner)) return nullptr;
    const std::string wrong = arm({match, with_sessions != 0, with_stalls != 0, batch_size});
    if (!wrong.empty()) {
        PyErr_Format(PyExc_ValueError, "'%s' is no regular expression: %s", match, wrong.c_str());
        return nullptr;
    }
    set_planner(planner);
    Py_RETURN_NONE;
}

PyObject* disarm_pass(PyObject*, PyObject*) {
    disarm();
    set_planner(nullptr);
    Py_RETURN_NONE;
}

std::string file_json(const FileStore& file) {
    return "{\"directory\":" + quoted(file.directory()) + ",\"notes\":" + quoted(file.notes()) +
           ",\"is_direct\":" + (file.is_direct() ? "true" : "false") + ",\"used\":" + std::to_string(file.used()) +
           ",\"size\":" + std::to_string(file.size()) + ",\"peak\":" + std::to_string(file.peak()) + "}";
}

// -> figures as JSON
PyObject* stats(PyObject*, PyObject*) {
    const auto file = SwapEngine::one().file();
    std::string text = Figures::one().json();
    text.insert(text.size() - 1, ",\"file\":" + (file == nullptr ? "null" : file_json(*file)));
    return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
}

PyObject* reset_stats(PyObject*, PyObject*) {
    Figures::one().reset();
    if (const auto file = SwapEngine::one().file()) file->reset_peak();
    Py_RETURN_NONE;
}

// (write_delay_ms, read_delay_ms, take_error, write_error, read_error), for tests
PyObject* hinder(PyObject*, PyObject* args) {
    Hindrance made;
    if (!PyArg_ParseTuple(args, "iiiii", &made.write_delay_ms, &made.read_delay_ms, &made.take_error, &made.write_error,
                          &made.read_error)) {
        return nullptr;
    }
    SwapEngine::one().hinder(made);
    Py_RETURN_NONE;
}

// (nbytes, count) -> (ns for writing, ns for reading); raises RuntimeError with the message of a failed step
PyObject* measure(PyObject*, PyObject* args) {
    long long nbytes = 0;
    int count = 0;
    if (!PyArg_ParseTuple(args, "Li", &nbytes, &count)) return nullptr;
    if (nbytes < 1 || count < 1) {
        PyErr_Format(PyExc_ValueError, "cannot measure with %d tensors of %lld bytes", count, nbytes);
        return nullptr;
    }
    Speed speed;
    absl::Status status;
    {
        const WithoutGil without_gil;
        status = probe(static_cast<std::size_t>(nbytes), count, &speed);
    }
    if (!status.ok()) {
        PyErr_SetString(PyExc_RuntimeError, std::string(status.message()).c_str());
        return nullptr;
    }
    return Py_BuildValue("(LL)", static_cast<long long>(speed.write_ns), static_cast<long long>(speed.read_ns));
}

// -> whether TensorFlow's allocator keeps what is freed
PyObject* keeps_freed(PyObject*, PyObject*) { return PyBool_FromLong(allocator_keeps_freed()); }

// -> True if it records now
PyObject* start_times(PyObject*, PyObject*) { return PyBool_FromLong(start_op_times()); }

// -> [(name, count, total_ns, first_ns)]
PyObject* stop_times(PyObject*, PyObject*) {
    const auto times = stop_op_times();
    PyObject* list = PyList_New(0);
    for (const auto& [name, time] : times) {
        PyObject* row = list == nullptr ? nullptr
                                        : Py_BuildValue("(sLLL)", name.c_str(), static_cast<long long>(time.count),
                                                        static_cast<long long>(time.total_ns),
                                                        static_cast<long long>(time.first_ns));
        if (row == nullptr || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
        if (list == nullptr) break;
    }
    return list;
}

PyMethodDef methods[] = {{"arm", guarded_method<arm_pass>, METH_VARARGS, nullptr},
                         {"configure", guarded_method<configure>, METH_VARARGS, nullptr},
                         {"disarm", guarded_method<disarm_pass>, METH_NOARGS, nullptr},
                         {"hinder", guarded_method<hinder>, METH_VARARGS, nullptr},
                         {"keeps_freed", guarded_method<keeps_freed>, METH_NOARGS, nullptr},
                         {"probe", guarded_method<measure>, METH_VARARGS, nullptr},
                         {"reset_stats", guarded_method<reset_stats>, METH_NOARGS, nullptr},
                         {"start_op_times", guarded_method<start_times>, METH_NOARGS, nullptr},
                         {"stats", guarded_method<stats>, METH_NOARGS, nullptr},
                         {"stop_op_times", guarded_method<stop_times>, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_lms_ops", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace lms
}  // namespace hpcckpt

PyMODINIT_FUNC PyInit__lms_ops() { return PyModule_Create(&hpcckpt::lms::definition); }
