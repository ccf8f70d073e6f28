"""Views of tensors: nothing is copied, nothing dies early, nothing lives too long."""

from __future__ import annotations

import array
import gc
import weakref
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.tensors import ITEMSIZE

pytestmark = pytest.mark.one_case

OTHER_TOKENS = ["<U5", "|S3", "<M8[ns]", "<m8[s]", "|V16"]
NARROW = [token for token in ITEMSIZE if "float8" in token or token == "bfloat16"]
TOKENS = [token for token in ITEMSIZE if token not in NARROW or hasattr(ml_dtypes, token)] + OTHER_TOKENS


@pytest.fixture(autouse=True)
def no_view_is_left(io: ModuleType) -> Any:
    gc.collect()  # views of tests before, in cycles that were not collected yet
    before = io.live_views()
    yield
    gc.collect()
    assert io.live_views() == before


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0, 4)])
def test_a_view_tells_what_the_tensor_is(io: ModuleType, token: str, shape: tuple[int, ...]) -> None:
    tensor = np.zeros(shape, numpy_dtype(token))
    view = io.view(tensor)
    assert (view.dtype, view.shape, view.nbytes) == (token, shape, tensor.nbytes)
    assert not view.readonly
    assert view.address == tensor.ctypes.data or tensor.nbytes == 0


def test_the_bytes_are_those_of_the_tensor_not_a_copy(io: ModuleType) -> None:
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3)
    flat = np.asarray(io.view(tensor))
    assert (flat.dtype.name, flat.shape, flat.ctypes.data) == ("uint8", (24,), tensor.ctypes.data)
    tensor[1, 2] = 42
    assert flat.view(np.float32)[5] == 42
    flat[:] = 0
    assert not tensor.any()


def test_readonly_memory_stays_readonly(io: ModuleType) -> None:
    tensor = np.arange(3)
    tensor.flags.writeable = False
    view = io.view(tensor)
    assert view.readonly
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(view)[0] = 1
    assert io.view(b"abc").readonly


def test_a_view_keeps_the_tensor_alive_until_it_is_released(io: ModuleType) -> None:
    before = io.live_views()
    tensor = np.arange(1000.0)
    owner = weakref.ref(tensor)
    view = io.view(tensor)
    del tensor
    assert owner() is not None
    assert io.live_views() == before + 1
    view.release()
    assert owner() is None
    assert io.live_views() == before
    assert view.released


def test_a_view_that_dies_releases(io: ModuleType) -> None:
    before = io.live_views()
    tensor = np.arange(1000.0)
    owner = weakref.ref(tensor)
    views = [io.view(tensor) for _ in range(10)]
    del tensor
    assert io.live_views() == before + 10
    views.clear()
    assert owner() is None
    assert io.live_views() == before


def test_exported_bytes_outlive_release(io: ModuleType) -> None:
    before = io.live_views()
    tensor = np.full(1000, 7, np.uint8)
    owner = weakref.ref(tensor)
    view = io.view(tensor)
    flat = np.asarray(view)
    del tensor
    view.release()
    del view
    assert io.live_views() == before + 1
    assert (flat == 7).all()
    del flat
    assert owner() is None
    assert io.live_views() == before


def test_a_released_view_gives_no_memory_away(io: ModuleType) -> None:
    view = io.view(np.arange(3))
    view.release()
    view.release()
    for name in ("address", "nbytes"):
        with pytest.raises(ValueError, match="released"):
            getattr(view, name)
    with pytest.raises(BufferError, match="released"):
        io.crc32c(view)
    assert view.shape == (3,)


@pytest.mark.parametrize(
    ("tensor", "dtype", "shape"),
    [
        (b"abc", "uint8", (3,)),
        (bytearray(b"abc"), "uint8", (3,)),
        (memoryview(b"abcd").cast("H"), "uint16", (2,)),
        (array.array("d", [1, 2]), "float64", (2,)),
        (np.float32(3), "float32", ()),
    ],
)
def test_whatever_exports_a_buffer_can_be_viewed(
    io: ModuleType, tensor: Any, dtype: str, shape: tuple[int, ...]
) -> None:
    view = io.view(tensor)
    assert (view.dtype, view.shape) == (dtype, shape)
    assert np.asarray(view).tobytes() == bytes(memoryview(tensor).cast("B") if shape else memoryview(tensor).tobytes())


@pytest.mark.parametrize(
    ("tensor", "error", "text"),
    [
        (np.zeros((3, 4)).T, BufferError, "not C-contiguous"),
        (np.zeros(8)[::2], BufferError, "not C-contiguous"),
        (memoryview(bytes(8))[::2], BufferError, "not C-contiguous"),
        (np.zeros(3, ">f4"), BufferError, "byte order"),
        (np.array([None]), TypeError, "object"),
        (np.zeros(3, "f4,i4"), TypeError, "cannot be saved"),
        ([1, 2], TypeError, "neither the buffer protocol nor DLPack"),
        (3, TypeError, "cannot view a int"),
    ],
    ids=["transposed", "gaps", "a view with gaps", "byte order", "objects", "fields", "a list", "a number"],
)
def test_what_cannot_be_viewed_is_refused_by_type(
    io: ModuleType, tensor: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        io.view(tensor)


@pytest.mark.tf
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tensorflow_tensor_is_viewed_in_place(io: ModuleType, dtype: str) -> None:
    tf = pytest.importorskip("tensorflow")
    tensor = tf.cast(tf.range(1000), dtype)
    capsule = tf.experimental.dlpack.to_dlpack(tensor)  # the buffer protocol cannot say bfloat16
    view = io.view(capsule)
    del capsule
    assert (view.dtype, view.shape) == (dtype, (1000,))
    assert np.asarray(view).tobytes() == tensor.numpy().tobytes()
    if dtype == "float32":
        assert view.address == io.view(tensor).address == np.asarray(memoryview(tensor)).ctypes.data


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_a_torch_tensor_is_viewed_in_place(io: ModuleType, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(4, 3, dtype=getattr(torch, dtype))
    view = io.view(tensor)
    assert (view.dtype, view.shape, view.address) == (dtype, (4, 3), tensor.data_ptr())
    with pytest.raises(BufferError, match="not C-contiguous"):
        io.view(tensor.T)
    with pytest.raises(BufferError, match="require"):
        io.view(torch.ones(3, requires_grad=True))
