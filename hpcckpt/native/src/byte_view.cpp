#include "byte_view.h"

#include <nanobind/stl/string.h>

#include <string>

#include "gil.h"

namespace nb = nanobind;

namespace hpcckpt {
namespace {

std::string describe_type(nb::handle object) {
    return nb::cast<std::string>(nb::str(object.type().attr("__qualname__")));
}

// Exporters disagree on the exception (NumPy raises ValueError, memoryview BufferError): callers get one.
[[noreturn]] void raise_refusal(nb::handle object) {
    nb::python_error cause;
    if (cause.matches(PyExc_MemoryError)) throw cause;
    const std::string reason = nb::cast<std::string>(nb::str(cause.value()));
    const std::string text = describe_type(object) + " is not plain contiguous bytes: " + reason;
    nb::raise_from(cause, PyExc_BufferError, "%s", text.c_str());
    throw nb::python_error();
}

}  // namespace

ByteView::ByteView(nb::handle object, Access access) {
    if (!PyObject_CheckBuffer(object.ptr())) {
        throw nb::type_error(("expected a bytes-like object, got " + describe_type(object)).c_str());
    }
    // Python code from 3.12 on, where a class has __buffer__.
    const int status = outliving_interpreter([&] { return PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE); });
    if (status != 0) raise_refusal(object);
    if (access == Access::kWrite && is_readonly()) {
        PyBuffer_Release(&buffer_);
        throw nb::buffer_error((describe_type(object) + " is read-only: a destination must be writable").c_str());
    }
}

ByteView::~ByteView() { release(); }

ByteView::ByteView(ByteView&& other) noexcept : buffer_(other.buffer_) { other.buffer_.obj = nullptr; }

}  // namespace hpcckpt
