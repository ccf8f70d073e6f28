#include "byte_view.h"

#include <string>

namespace nb = nanobind;

namespace hpcckpt {
namespace {

std::string type_name(nb::handle object) { return nb::cast<std::string>(nb::str(object.type().attr("__qualname__"))); }

// Exporters disagree on the exception (NumPy raises ValueError, memoryview BufferError): callers get one.
[[noreturn]] void raise_refusal(nb::handle object) {
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) throw nb::python_error();
    nb::python_error cause;
    const std::string reason = nb::cast<std::string>(nb::str(cause.value()));
    const std::string text = type_name(object) + " is not plain contiguous bytes: " + reason;
    nb::raise_from(cause, PyExc_BufferError, "%s", text.c_str());
}

}  // namespace

ByteView::ByteView(nb::handle object, Access access) {
    if (!PyObject_CheckBuffer(object.ptr())) {
        nb::raise_type_error("expected a bytes-like object, got %s", type_name(object).c_str());
    }
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) raise_refusal(object);
    if (access == Access::kWrite && is_readonly()) {
        PyBuffer_Release(&buffer_);
        nb::raise_buffer_error("%s is read-only: a destination must be writable", type_name(object).c_str());
    }
}

ByteView::~ByteView() {
    if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

ByteView::ByteView(ByteView&& other) noexcept : buffer_(other.buffer_) { other.buffer_.obj = nullptr; }

}  // namespace hpcckpt
