// Reading an iterable of tuples.  Python code can run here: a generator, or `__iter__` of a class.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

#include "gil.h"

namespace hpcckpt {

inline nanobind::iterator iterate(nanobind::handle items) {
    return outliving_interpreter([&] { return nanobind::iter(items); });
}

// The next item, or null when there is none.
inline nanobind::object next_of(const nanobind::iterator& items) {
    PyObject* item = outliving_interpreter([&] { return PyIter_Next(items.ptr()); });
    if (item == nullptr && PyErr_Occurred() != nullptr) throw nanobind::python_error();
    return nanobind::steal(item);
}

// A tuple of the fields of an item; raises TypeError with the text `expected` if there are more or fewer.
inline nanobind::tuple fields_of(nanobind::handle item, std::size_t n_fields, const char* expected) {
    nanobind::tuple fields = nanobind::isinstance<nanobind::tuple>(item)
                                 ? nanobind::borrow<nanobind::tuple>(item)
                                 : outliving_interpreter([&] { return nanobind::tuple(item); });
    if (fields.size() != n_fields) throw nanobind::type_error(expected);
    return fields;
}

}  // namespace hpcckpt
