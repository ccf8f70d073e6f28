#include <cerrno>

#include "bindings.h"
#include "byte_view.h"
#include "child_signal.h"

namespace nb = nanobind;

namespace hpcckpt {
namespace {

void install(int number, nb::handle parent_state, double wait_s) {
    // Never released: the handler reads these bytes for as long as the process lives.
    const ByteView* state = new ByteView(parent_state);
    if (state->nbytes() < sizeof(ParentState)) {
        delete state;
        throw nb::value_error("the state of the parent has two bytes");
    }
    const int error = end_unless_parent_has_signal(number, reinterpret_cast<const ParentState*>(state->data()),
                                                   static_cast<unsigned>(wait_s * 1000));
    if (error != 0) {
        delete state;
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
}

}  // namespace

void bind_child_signal(nb::module_& m) {
    m.def("end_unless_parent_has_signal", &install, nb::arg("number"), nb::arg("parent_state"), nb::arg("wait_s"));
}

}  // namespace hpcckpt
