"""Zero-copy views of tensors: what is accepted, and what is refused by which error."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from hpcckpt.core import dtypes

if TYPE_CHECKING:
    import numpy.typing as npt

_HOST_DEVICES = (1, 3, 11)
"""DLPack's numbers of memory the CPU reads in place: plain, pinned for CUDA, pinned for ROCm."""


class TensorBuffer(Protocol):
    """A view of a tensor's memory that keeps the memory alive until it is released or freed.

    ``numpy.asarray`` returns its bytes without a copy, and functions of this package that take a buffer do not copy
    them either. The native implementation also exports the buffer protocol; the one in pure Python does so from Python
    3.12 on.
    """

    @property
    def address(self) -> int:
        """Address of the first byte in memory."""

    @property
    def nbytes(self) -> int:
        """Number of bytes."""

    @property
    def dtype(self) -> str:
        """Dtype token, such as ``float32`` or ``bfloat16``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""

    @property
    def readonly(self) -> bool:
        """Whether the owner forbids writing."""

    @property
    def released(self) -> bool:
        """Whether :meth:`release` was called."""

    def release(self) -> None:
        """Release the memory; buffers that were exported before keep it alive."""


if TYPE_CHECKING:
    from typing_extensions import Buffer

    BytesLike = Buffer | npt.NDArray[Any] | TensorBuffer  # the types of NumPy 1 do not say that arrays are Buffers

Made_co = TypeVar("Made_co", bound=TensorBuffer, covariant=True)


class BufferType(Protocol[Made_co]):
    """What an implementation offers to make views with."""

    def __call__(self, data: BytesLike, dtype: str, shape: list[int]) -> Made_co:
        """View the bytes of `data` as a tensor."""

    def from_dlpack(self, capsule: object) -> Made_co:
        """View the tensor of a DLPack capsule, which is consumed."""


def open_view(tensor: object, buffer_type: BufferType[Made_co]) -> Made_co:
    """View `tensor` as a buffer of `buffer_type`; see :func:`hpcckpt.native.view`."""
    if isinstance(tensor, np.ndarray):
        return _view_array(tensor, buffer_type)
    if type(tensor).__name__ == "PyCapsule":
        return buffer_type.from_dlpack(tensor)
    if hasattr(tensor, "__dlpack__"):
        return buffer_type.from_dlpack(_export_dlpack(tensor))
    return _view_array(_array_of(tensor), buffer_type)


def _view_array(array: npt.NDArray[Any], buffer_type: BufferType[Made_co]) -> Made_co:
    """View an array through its bytes: NumPy's buffers cannot say bfloat16 or datetime64."""
    token = dtypes.dtype_token(array.dtype)
    if not array.dtype.isnative:
        raise BufferError(f"array of {array.dtype} is not in this machine's byte order: use array.astype({token!r})")
    if not array.flags.c_contiguous:
        raise BufferError(f"array of shape {array.shape} is not C-contiguous: use numpy.ascontiguousarray")
    has_bytes = array.nbytes > 0  # a view as bytes of a dtype without bytes, such as S0, is refused by NumPy
    flat = array.reshape(-1).view(np.uint8) if has_bytes else np.empty(0, np.uint8)
    return buffer_type(flat, token, list(array.shape))


def _array_of(tensor: object) -> npt.NDArray[Any]:
    """Return an array that shares the memory of an exporter of the buffer protocol."""
    name = type(tensor).__name__
    try:
        return np.asarray(memoryview(tensor))  # type: ignore[arg-type]  # TypeError is the answer we want
    except TypeError:
        raise TypeError(f"cannot view a {name}: it has neither the buffer protocol nor DLPack") from None
    except ValueError as error:
        raise BufferError(f"cannot view this {name}: {error}; pass its DLPack capsule") from error


def _export_dlpack(tensor: Any) -> object:
    """Return the DLPack capsule of a tensor in host memory, versioned where the exporter can."""
    device, _ = tensor.__dlpack_device__()
    if int(device) not in _HOST_DEVICES:
        raise BufferError(f"tensor is on DLPack device type {int(device)}, not in host memory: copy it there before")
    try:
        return tensor.__dlpack__(max_version=(1, 1))
    except TypeError:  # an exporter from before DLPack 1.0
        return tensor.__dlpack__()


# -- calls of Python functions from native code ---------------------------------------------------


class CallingBack:
    """Calls a function, keeps the first error it raises, and raises that when the work is done.

    As a context manager around the work; what is called never raises.

    Parameters
    ----------
    function
        Called with an integer.
    """

    def __init__(self, function: Callable[[int], object]) -> None:
        self._function = function
        self._error: BaseException | None = None

    def __call__(self, number: int) -> None:
        """Call the function; keep its error."""
        try:
            self._function(number)
        except BaseException as error:  # noqa: BLE001 - even KeyboardInterrupt must not stop a thread of the work
            if self._error is None:
                self._error = error

    def __enter__(self) -> CallingBack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._error is None:
            return
        if error is None:
            raise self._error
        error.__context__ = self._error  # the work failed too, and that is the error for its caller
