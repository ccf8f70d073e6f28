"""Tensors of accelerators brought to the host's memory and back, in pieces of bounded size.

From CUDA a tensor is copied in chunks into two pinned buffers, on a separate stream: while one chunk is transferred,
the previous one is copied to its destination. The stream waits for the work that the program has queued so far, and the
caller waits for the stream, so the snapshot is what the program has computed, and later steps do not change it. The
pinned memory is allocated once per device.

Not tested on any GPU: there was none.  The tests run the same code with a CPU in the accelerator's place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.state.tree import Array, as_bytes

PIECE_BYTES = 32 << 20
"""What crosses at a time; two buffers of this size are pinned."""


def hold_elsewhere(tensors: Sequence[torch.Tensor]) -> list[Array]:
    """Return copies of tensors in the host's memory. Independent.

    Raises
    ------
    MemoryError
        If they do not fit.
    """
    return [stage(tensor) for tensor in tensors]


def stage(tensor: torch.Tensor, piece_nbytes: int = PIECE_BYTES) -> Array:
    """Return a copy of a tensor in the host's memory. Independent."""
    array = np.empty(tuple(tensor.shape), numpy_dtype(str(tensor.dtype).removeprefix("torch.")))
    if tensor.numel():
        copier = _copier(tensor.device, piece_nbytes)
        with copier.beside(tensor):
            line = _bytes_of(tensor)
            copier.fetch(line, as_bytes(array))
    return array


def unstage(source: torch.Tensor, tensor: torch.Tensor) -> None:
    """Give a tensor the values of one in the host's memory. Independent."""
    with torch.no_grad():
        tensor.copy_(source)  # one of PyTorch's own: a restore has time, and it is the order of the device's stream


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in a row, as bytes; a copy on the device only where they do not lie so."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


@functools.cache
def _copier(device: torch.device, piece_nbytes: int) -> _Copier:
    return _CudaCopier(device, piece_nbytes) if device.type == "cuda" else _Copier(device, piece_nbytes)


class _Copier:
    """How bytes come from a device to the host: two buffers, filled in turn.

    Parameters
    ----------
    device : torch.device
        Where from.
    piece_nbytes : int
        Size of each buffer.
    """

    def __init__(self, device: torch.device, piece_nbytes: int) -> None:
        self._device = device
        self._buffers = [self._buffer(piece_nbytes) for _ in range(2)]

    def _buffer(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def beside(self, _tensor: torch.Tensor) -> AbstractContextManager[Any]:
        """Do what follows beside the program's own work, and after what it has asked for so far."""
        return nullcontext()

    def begin(self, piece: torch.Tensor, buffer: torch.Tensor) -> Callable[[], None]:
        """Begin to copy a piece; return a function that waits until it has arrived."""
        buffer.copy_(piece)
        return _no_wait

    def fetch(self, line: torch.Tensor, into: Array) -> None:
        """Copy bytes, transferring one chunk while the previous one is stored. Independent."""
        under_way: tuple[slice, torch.Tensor, Callable[[], None]] | None = None
        for number, span in enumerate(_spans(line.numel(), self._buffers[0].numel())):
            buffer = self._buffers[number % 2][: span.stop - span.start]
            wait = self.begin(line[span], buffer)
            _put_down(under_way, into)
            under_way = span, buffer, wait
        _put_down(under_way, into)


class _CudaCopier(_Copier):
    """From CUDA: pinned buffers, and a separate stream."""

    def __init__(self, device: torch.device, piece_nbytes: int) -> None:
        self._stream = torch.cuda.Stream(device)
        super().__init__(device, piece_nbytes)

    def _buffer(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def beside(self, tensor: torch.Tensor) -> AbstractContextManager[Any]:
        """Do what follows on the stream, after what the program has asked for so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        tensor.record_stream(self._stream)
        context: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return context

    def begin(self, piece: torch.Tensor, buffer: torch.Tensor) -> Callable[[], None]:
        """Begin to copy a piece; return a function that waits until it has arrived."""
        buffer.copy_(piece, non_blocking=True)
        event = torch.cuda.Event()
        event.record(self._stream)
        wait: Callable[[], None] = event.synchronize
        return wait


def _spans(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def _put_down(under_way: tuple[slice, torch.Tensor, Callable[[], None]] | None, into: Array) -> None:
    if under_way is not None:
        span, buffer, wait = under_way
        wait()
        into[span] = buffer.numpy()


def _no_wait() -> None:
    """Return at once."""
