// Python's view of TensorBuffer: attributes, and the buffer protocol as flat bytes.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bindings.h"
#include "gil.h"
#include "tensor_buffer.h"

namespace nb = nanobind;

namespace hpcckpt {
namespace {

// The exported view has a separate claim, so release() never pulls memory away from under a reader.
int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    static std::uint8_t nothing = 0;  // for empty tensors, whose address may be null
    const TensorBuffer& buffer = *nb::inst_ptr<TensorBuffer>(self);
    view->obj = nullptr;
    if (buffer.is_released()) {
        PyErr_SetString(PyExc_BufferError, "this tensor buffer was released");
        return -1;
    }
    std::uint8_t* data = buffer.nbytes() != 0 ? buffer.data() : &nothing;
    const int is_readonly = buffer.is_readonly() ? 1 : 0;
    return guarded(
        [&] {
            auto claim = std::make_unique<std::shared_ptr<Claim>>(buffer.claim());
            const auto nbytes = static_cast<Py_ssize_t>(buffer.nbytes());
            if (PyBuffer_FillInfo(view, self, data, nbytes, is_readonly, flags) != 0) return -1;
            view->internal = claim.release();
            return 0;
        },
        -1);
}

void release_buffer(PyObject*, Py_buffer* view) { delete static_cast<std::shared_ptr<Claim>*>(view->internal); }

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                       {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                       {0, nullptr}};

nb::tuple shape_tuple(const TensorBuffer& buffer) {
    nb::list axes;
    for (const std::int64_t length : buffer.shape()) axes.append(length);
    return nb::tuple(axes);
}

}  // namespace

void bind_tensor_buffer(nb::module_& m) {
    nb::class_<TensorBuffer>(m, "TensorBuffer", nb::type_slots(slots))
        .def(nb::init<nb::handle, std::string, std::vector<std::int64_t>>(), nb::arg("data"), nb::arg("dtype"),
             nb::arg("shape"))
        .def_static("from_dlpack", &TensorBuffer::from_dlpack, nb::arg("capsule"))
        .def_prop_ro("address", [](const TensorBuffer& b) { return reinterpret_cast<std::uintptr_t>(b.data()); })
        .def_prop_ro("nbytes", &TensorBuffer::nbytes)
        .def_prop_ro("dtype", &TensorBuffer::dtype)
        .def_prop_ro("shape", &shape_tuple)
        .def_prop_ro("readonly", &TensorBuffer::is_readonly)
        .def_prop_ro("released", &TensorBuffer::is_released)
        .def("release", &TensorBuffer::release);
    m.def("live_views", &Claim::count);
}

}  // namespace hpcckpt
