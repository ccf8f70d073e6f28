"""Tensors of accelerators copied to the host's memory and back.

From CUDA all parts of a snapshot are copied one after another on a separate stream, straight into the arena, which is
registered with CUDA once: so the device writes into it at the speed of the bus.  The stream waits for the work that
the program has queued so far, and the caller waits for the stream, so the snapshot is what the program has computed,
and later steps do not change it.

Other devices copy as PyTorch does it; none was tried.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import weakref
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.native.arena import Arena
from hpcckpt.state.tree import Array, StagedPart, as_bytes

_log = logging.getLogger(__name__)

_PORTABLE = 1  # cudaHostRegisterPortable: for all devices of this process
_registered: weakref.WeakSet[Arena] = weakref.WeakSet()


def stage(parts: Sequence[StagedPart], arena: Arena | None) -> None:
    """Copy parts of tensors to the host's memory: all of it in `arena`, or anywhere if there is none. Independent."""
    by_device: dict[torch.device, list[StagedPart]] = defaultdict(list)
    for part in parts:
        by_device[part.source.device].append(part)
    for device, own in by_device.items():
        if device.type == "cuda":
            _stage_from_cuda(device, own, arena)
        else:
            _copy(own)


def copy_to_host(tensor: torch.Tensor) -> Array:
    """Return a copy of a tensor in the host's memory. Independent."""
    array = np.empty(tuple(tensor.shape), numpy_dtype(str(tensor.dtype).removeprefix("torch.")))
    if tensor.numel():
        stage([StagedPart(tensor, 0, tensor.numel(), as_bytes(array))], None)
    return array


def unstage(source: torch.Tensor, tensor: torch.Tensor) -> None:
    """Give a tensor the values of one in the host's memory. Independent."""
    with torch.no_grad():
        tensor.copy_(source)


def _stage_from_cuda(device: torch.device, parts: Sequence[StagedPart], arena: Arena | None) -> None:
    if arena is not None and arena not in _registered:
        with torch.cuda.device(device):  # or a process would begin to use the first device too
            _register(arena)
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            _copy(parts)
    finally:
        stream.synchronize()  # after an error too: the memory must not be used again while a copy is under way


def _copy(parts: Sequence[StagedPart]) -> None:
    """Copy parts one after another; from CUDA, ask its current stream to."""
    for source, start, stop, into in parts:
        if stop > start:
            width = source.element_size()
            torch.from_numpy(into).copy_(_bytes_of(source)[start * width : stop * width], non_blocking=source.is_cuda)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in a row, as bytes; a copy on the device only where they do not lie so."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _register(arena: Arena) -> None:
    """Register an arena with CUDA for as long as it lives; without that, CUDA copies through buffers of its own."""
    address = arena.view(0, arena.nbytes).ctypes.data
    undo = weakref.finalize(arena, _unregister, address, os.getpid())
    undo.atexit = False
    error = int(torch.cuda.cudart().cudaHostRegister(address, arena.nbytes, _PORTABLE))
    _registered.add(arena)
    if error:
        undo.detach()
        _log.info(
            "hpcckpt: CUDA does not register %d bytes of memory (error %d): saves are slower", arena.nbytes, error
        )
        _clear_last_error()


def _unregister(address: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child cannot use CUDA
        torch.cuda.cudart().cudaHostUnregister(address)


def _clear_last_error() -> None:
    """Clear CUDA's last error, which PyTorch's next call would raise."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
