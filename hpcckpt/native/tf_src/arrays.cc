#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include "arrays.h"

#include <numpy/arrayobject.h>

#include <utility>
#include <vector>

#include "hold.h"

namespace hpcckpt {
namespace {

using tensorflow::Tensor;

// What an array keeps alive: one reference to one buffer.
struct Owner {
    PyObject_HEAD Tensor tensor;
};

void destroy_owner(PyObject* self) {
    reinterpret_cast<Owner*>(self)->tensor.~Tensor();
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject owner_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* new_owner(Tensor&& tensor) {
    Owner* owner = PyObject_New(Owner, &owner_type);
    if (owner == nullptr) return nullptr;
    new (&owner->tensor) Tensor(std::move(tensor));
    return reinterpret_cast<PyObject*>(owner);
}

// The dtype of a tensor's elements, borrowed, or null if NumPy has none of their size.
PyArray_Descr* dtype_of(const Tensor& tensor, PyObject* dtypes) {
    const Py_ssize_t number = tensor.dtype();
    if (number >= PyList_GET_SIZE(dtypes) || tensor.dims() > NPY_MAXDIMS) return nullptr;
    PyObject* dtype = PyList_GET_ITEM(dtypes, number);
    return PyArray_DescrCheck(dtype) ? reinterpret_cast<PyArray_Descr*>(dtype) : nullptr;
}

PyObject* new_array(Tensor&& tensor, PyArray_Descr* dtype) {
    npy_intp shape[NPY_MAXDIMS];
    for (int axis = 0; axis < tensor.dims(); ++axis) shape[axis] = tensor.dim_size(axis);
    const int n_axes = tensor.dims();
    char* data = const_cast<char*>(tensor.tensor_data().data());
    PyObject* owner = new_owner(std::move(tensor));
    if (owner == nullptr) return nullptr;
    Py_INCREF(dtype);  // stolen by the next call
    PyObject* made = PyArray_NewFromDescr(&PyArray_Type, dtype, n_axes, shape, nullptr, data, 0, nullptr);
    if (made == nullptr) {
        Py_DECREF(owner);
        return nullptr;
    }
    auto* array = reinterpret_cast<PyArrayObject*>(made);
    PyArray_CLEARFLAGS(array, NPY_ARRAY_WRITEABLE);  // others may share it
    PyArray_UpdateFlags(array, NPY_ARRAY_UPDATE_ALL);
    if (PyArray_SetBaseObject(array, owner) < 0) {  // steals the owner
        Py_DECREF(made);
        return nullptr;
    }
    return made;
}

PyObject* array_or_none(Slot& slot, PyObject* dtypes) {
    PyArray_Descr* dtype = slot.state == Slot::State::kHeld ? dtype_of(slot.tensor, dtypes) : nullptr;
    if (dtype != nullptr) return new_array(std::move(slot.tensor), dtype);
    Py_RETURN_NONE;
}

}  // namespace

bool prepare_arrays() {
    import_array1(false);
    owner_type.tp_name = "hpcckpt.native._tf_ops.Owner";
    owner_type.tp_basicsize = sizeof(Owner);
    owner_type.tp_dealloc = destroy_owner;
    owner_type.tp_flags = Py_TPFLAGS_DEFAULT;
    return PyType_Ready(&owner_type) == 0;
}

PyObject* make_arrays(PyObject*, PyObject* args) {
    unsigned long long address = 0;
    PyObject* dtypes = nullptr;
    if (!PyArg_ParseTuple(args, "KO!", &address, &PyList_Type, &dtypes)) return nullptr;
    std::vector<Slot>& slots = reinterpret_cast<Held*>(address)->slots;
    PyObject* arrays = PyList_New(static_cast<Py_ssize_t>(slots.size()));
    if (arrays == nullptr) return nullptr;
    Py_ssize_t n_elsewhere = 0, n_empty = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        PyObject* array = array_or_none(slots[i], dtypes);
        if (array == nullptr) {
            Py_DECREF(arrays);
            return nullptr;
        }
        n_elsewhere += array == Py_None;
        n_empty += slots[i].state == Slot::State::kEmpty;
        PyList_SET_ITEM(arrays, static_cast<Py_ssize_t>(i), array);
    }
    return Py_BuildValue("(Nnn)", arrays, n_elsewhere, n_empty);
}

}  // namespace hpcckpt
