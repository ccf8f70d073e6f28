#include <cerrno>
#include <memory>

#include "bindings.h"
#include "byte_view.h"
#include "child_signal.h"

namespace nb = nanobind;

namespace hpcckpt {
namespace {

ParentState* state_in(nb::handle buffer, Access access) {
    static const ByteView* newest = nullptr;  // never released: a handler uses the bytes while the process lives
    auto view = std::make_unique<ByteView>(buffer, access);
    if (view->nbytes() < sizeof(ParentState)) throw nb::value_error("the state of the parent has two bytes");
    if (newest == nullptr || newest->data() != view->data()) newest = view.release();
    return reinterpret_cast<ParentState*>(newest->data());
}

void check(int error) {
    if (error == 0) return;
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
}

}  // namespace

void bind_child_signal(nb::module_& m) {
    m.def(
        "mark_signal",
        [](int number, nb::handle state) { check(mark_signal(number, state_in(state, Access::kWrite))); },
        nb::arg("number"), nb::arg("state"));
    m.def(
        "end_unless_parent_has_signal",
        [](int number, nb::handle parent_state, double wait_s, int parent_pid) {
            const auto wait_ms = static_cast<long>(wait_s * 1000);
            check(end_unless_parent_has_signal(number, state_in(parent_state, Access::kRead), wait_ms, parent_pid));
        },
        nb::arg("number"), nb::arg("parent_state"), nb::arg("wait_s"), nb::arg("parent_pid"));
}

}  // namespace hpcckpt
