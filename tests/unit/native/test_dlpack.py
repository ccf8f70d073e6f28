"""DLPack: capsules of real exporters, and forged ones for each refusal."""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from hpcckpt.core.tensors import ITEMSIZE
from hpcckpt.native import _pure_buffer
from hpcckpt.native._pure_buffer import _DELETER, _Managed, _Tensor, _Versioned

pytestmark = pytest.mark.one_case

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
CPU, CUDA, CUDA_HOST = 1, 2, 3
FLOAT32 = (2, 32)


class Forged:
    """A DLPack tensor in memory of hpcckpt, and a capsule that points to it but does not own it."""

    kept: ClassVar[list[Forged]] = []

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        dtype: tuple[int, int] = FLOAT32,
        lanes: int = 1,
        device: int = CPU,
        byte_offset: int = 0,
        is_null: bool = False,
    ) -> None:
        self.kept.append(self)
        self.memory = (ctypes.c_uint8 * 4096)(*[i % 256 for i in range(4096)])
        self.shape = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * max(1, len(strides)))(*strides)
        self.tensor = _Tensor(
            data=None if is_null else ctypes.addressof(self.memory),
            device_type=device,
            ndim=len(shape),
            code=dtype[0],
            bits=dtype[1],
            lanes=lanes,
            shape=self.shape,
            strides=ctypes.POINTER(ctypes.c_int64)() if self.strides is None else self.strides,
            byte_offset=byte_offset,
        )

        self.deleted: list[int] = []
        self.deleter = _DELETER(self.deleted.append)

    def capsule(self, name: bytes = b"dltensor") -> object:
        self.name = name  # a capsule points to its name
        self.managed = _Managed(tensor=self.tensor, deleter=ctypes.cast(self.deleter, ctypes.c_void_p))
        return _new_capsule(ctypes.addressof(self.managed), self.name, None)

    def versioned(self, major: int = 1, flags: int = 0) -> object:
        deleter = ctypes.cast(self.deleter, ctypes.c_void_p)
        self.managed = _Versioned(major=major, minor=1, flags=flags, tensor=self.tensor, deleter=deleter)
        self.name = b"dltensor_versioned"
        return _new_capsule(ctypes.addressof(self.managed), self.name, None)


class Exporter:
    """Exports through DLPack only."""

    def __init__(self, array: Any, device: int = CPU) -> None:
        self.array = array
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, stream: None = None) -> object:
        assert self.device == CPU, "asked for a capsule of a tensor that was not in host memory"
        return self.array.__dlpack__()


def test_an_exporter_is_viewed_in_place_and_released(io: ModuleType) -> None:
    gc.collect()  # views of tests before, in cycles that are not collected yet
    before = io.live_views()
    array = np.arange(12, dtype=np.int16).reshape(3, 4)
    owner = weakref.ref(array)
    view = io.view(Exporter(array))
    assert (view.dtype, view.shape, view.nbytes, view.address) == ("int16", (3, 4), 24, array.ctypes.data)
    assert np.asarray(view).tobytes() == array.tobytes()
    del array
    gc.collect()
    assert owner() is not None
    assert io.live_views() == before + 1
    view.release()
    assert owner() is None
    assert io.live_views() == before


class Wrapper:
    """Exports the same capsule each time."""

    def __init__(self, capsule: object) -> None:
        self.capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)

    def __dlpack__(self, **_: object) -> object:
        return self.capsule


def test_a_viewed_capsule_is_consumed(io: ModuleType) -> None:
    array = np.arange(64, dtype=np.int16)
    capsule, wanted = array.__dlpack__(), array.tobytes()
    view = io.view(capsule)
    with pytest.raises(ValueError, match="PyCapsule"):
        np.from_dlpack(Wrapper(capsule))
    with pytest.raises(ValueError, match="not an unconsumed DLPack capsule"):
        io.view(capsule)
    del array, capsule
    gc.collect()
    assert np.asarray(view).tobytes() == wanted


@pytest.mark.parametrize("is_versioned", [False, True])
def test_a_consumed_tensor_is_deleted_once_with_the_last_use_of_its_memory(io: ModuleType, is_versioned: bool) -> None:
    forged = Forged((2,))
    capsule = forged.versioned() if is_versioned else forged.capsule()
    view = io.view(capsule)
    shown = np.asarray(view)
    view.release()
    del capsule, view
    gc.collect()
    assert forged.deleted == []
    del shown
    gc.collect()
    assert forged.deleted == [ctypes.addressof(forged.managed)]


def test_a_refused_capsule_is_not_consumed(io: ModuleType) -> None:
    array = np.zeros((3, 4))
    capsule = array.T.__dlpack__()
    with pytest.raises(BufferError, match="not C-contiguous"):
        io.view(capsule)
    assert np.shares_memory(np.from_dlpack(Wrapper(capsule)), array)


def test_an_exporter_of_today_is_asked_for_a_versioned_capsule(io: ModuleType) -> None:
    class Modern(Exporter):
        def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> object:  # type: ignore[override]
            assert max_version == (1, 1)
            return Forged((2,)).versioned(flags=1)

    assert io.view(Modern(None)).readonly


def test_device_memory_is_refused_before_it_is_exported(io: ModuleType) -> None:
    with pytest.raises(BufferError, match="device type 2, not in host memory"):
        io.view(Exporter(np.zeros(3), device=CUDA))


def test_a_strided_exporter_is_refused(io: ModuleType) -> None:
    with pytest.raises(BufferError, match="not C-contiguous"):
        io.view(Exporter(np.zeros((3, 4)).T))


@pytest.mark.parametrize(
    ("strides", "is_accepted"),
    [(None, True), ((20, 5, 1), True), ((20, 5, 2), False), ((5, 20, 1), False), ((40, 5, 1), False)],
)
def test_strides_say_whether_memory_is_dense(
    io: ModuleType, strides: tuple[int, ...] | None, is_accepted: bool
) -> None:
    forged = Forged((3, 4, 5), strides)
    if is_accepted:
        assert io.view(forged.capsule()).nbytes == 240
    else:
        with pytest.raises(BufferError, match="not C-contiguous"):
            io.view(forged.capsule())


@pytest.mark.parametrize(
    ("shape", "strides"), [((1, 4), (99, 1)), ((4, 1), (1, 7)), ((0, 4), (3, 9)), ((), ()), ((1, 1), (0, 0))]
)
def test_strides_that_are_never_used_do_not_matter(
    io: ModuleType, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    forged = Forged(shape, strides)
    assert io.view(forged.capsule()).shape == shape


def test_the_byte_offset_is_added(io: ModuleType) -> None:
    forged = Forged((2,), dtype=(1, 8), byte_offset=5)
    view = io.view(forged.capsule())
    assert view.address == ctypes.addressof(forged.memory) + 5
    assert np.asarray(view).tolist() == [5, 6]


def test_an_empty_tensor_may_have_no_address(io: ModuleType) -> None:
    forged = Forged((0, 3), is_null=True)
    view = io.view(forged.capsule())
    assert (view.nbytes, np.asarray(view).tobytes(), io.crc32c(view)) == (0, b"", 0)


def test_every_dtype_number_means_the_same_in_both_implementations(io: ModuleType) -> None:
    for code in range(20):
        for bits in (1, 4, 6, 8, 16, 32, 64, 128):
            forged = Forged((2,), dtype=(code, bits))
            token = _pure_buffer._TOKENS.get((code, bits))
            if token is None:
                with pytest.raises(TypeError, match=rf"DLPack dtype \({code}, {bits}\) has no dtype token"):
                    io.view(forged.capsule())
            else:
                assert io.view(forged.capsule()).dtype == token
                assert ITEMSIZE[token] * 8 == bits


def test_vector_types_are_refused(io: ModuleType) -> None:
    with pytest.raises(TypeError, match="no dtype token"):
        io.view(Forged((2,), lanes=4).capsule())


@pytest.mark.parametrize("device", [CPU, CUDA_HOST])
def test_pinned_memory_is_host_memory(io: ModuleType, device: int) -> None:
    assert io.view(Forged((2,), device=device).capsule()).nbytes == 8


def test_a_capsule_of_device_memory_is_refused(io: ModuleType) -> None:
    with pytest.raises(BufferError, match="device type 2, not in host memory"):
        io.view(Forged((2,), device=CUDA).capsule())


def test_a_versioned_capsule_can_be_readonly(io: ModuleType) -> None:
    forged = Forged((2,))
    assert not io.view(forged.versioned()).readonly
    assert io.view(forged.versioned(flags=1)).readonly


def test_an_unknown_major_version_is_refused(io: ModuleType) -> None:
    with pytest.raises(BufferError, match="DLPack version 2 is not understood"):
        io.view(Forged((2,)).versioned(major=2))


@pytest.mark.parametrize("name", [b"used_dltensor", b"something"])
def test_a_used_or_foreign_capsule_is_refused(io: ModuleType, name: bytes) -> None:
    with pytest.raises(ValueError, match="not an unconsumed DLPack capsule"):
        io.view(Forged((2,)).capsule(name))
