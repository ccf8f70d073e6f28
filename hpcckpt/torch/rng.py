"""The random streams of a rank: Python's, NumPy's, PyTorch's on the CPU and on each of its GPUs.

Generators that a program made itself (``torch.Generator``) it puts into the state itself.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from hpcckpt.collective.communicator import launched_rank, launched_size
from hpcckpt.errors import StateError
from hpcckpt.state.packing import pack, unpack
from hpcckpt.state.tree import Array, PerRank
from hpcckpt.torch.tensors import as_array

_BITS = np.dtype("<u8")
_NUMPY = np.random.mtrand._rand
"""What ``np.random.rand`` and its like draw from."""

Stream = tuple[Callable[[], Array], Callable[[Array], None]]


class RngState:
    """The random streams of this process, as something with a ``state_dict``; each rank has its own.

    On another number of ranks there is no stream that would be the right one.  Then each rank gets new ones, that
    depend on the checkpoint, the rank and the number of ranks: they are good, and the same every time, but not those
    of a run that was never interrupted.

    Parameters
    ----------
    rank, size : int, optional
        This rank and the number of ranks; by default what the launcher says.
    """

    def __init__(self, rank: int | None = None, size: int | None = None) -> None:
        self._rank = launched_rank() or 0 if rank is None else rank
        self._size = launched_size() or 1 if size is None else size

    def state_dict(self) -> dict[str, Any]:
        """Return the streams as they are now. Independent."""
        states = {name: read() for name, (read, _) in _streams().items()}
        seed = _words(states["torch"].tobytes(), count=1)[0]
        return {"seed": seed, "n_ranks": self._size, "streams": PerRank(pack(states))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the streams. Independent."""
        if state["n_ranks"] != self._size:
            _derive(state["seed"], self._rank, self._size)
            return
        states, _ = unpack(state["streams"].value)
        for name, (_, write) in _streams().items():
            if name in states:
                write(states[name])


def rng_state(rank: int | None = None, size: int | None = None) -> RngState:
    """Return an object with the random streams of this rank. Independent.

    Its ``state_dict`` saves them.

    Parameters
    ----------
    rank, size : int, optional
        This rank and the number of ranks; by default those of the launcher.
    """
    return RngState(rank, size)


def _streams() -> dict[str, Stream]:
    """Return how each stream is read and set."""
    streams: dict[str, Stream] = {
        "python": (_read_python, _set_python),
        "numpy": (_read_numpy, _set_numpy),
        "torch": (_read_torch, _set_torch),
    }
    return streams | ({"cuda": (_read_cuda, _set_cuda)} if torch.cuda.is_available() else {})


def _derive(*identity: int) -> None:
    """Seed all streams from `identity` alone."""
    seeds = _words(repr(identity).encode(), count=6)
    random.seed(seeds[0])
    _NUMPY.seed(seeds[1:5])
    torch.manual_seed(seeds[5])  # the GPUs' too


def _words(identity: bytes, count: int) -> list[int]:
    digests = (hashlib.sha256(identity + bytes([number])).digest() for number in range(count))
    return [int.from_bytes(digest[:4], "little") >> 1 for digest in digests]


# -- Python ----------------------------------------------------------------------------------------


def _read_python() -> Array:
    version, words, gauss = random.getstate()
    bits = np.float64(0.0 if gauss is None else gauss).view(np.uint64)
    return np.array([version, *words, gauss is not None, bits], _BITS)


def _set_python(state: Array) -> None:
    version, *words, has_gauss, _ = state.tolist()
    random.setstate((version, tuple(words), _float_of(state[-1]) if has_gauss else None))


# -- NumPy -----------------------------------------------------------------------------------------


def _read_numpy() -> Array:
    state: Any = _NUMPY.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise StateError(f"np.random draws from a {state['bit_generator']}, which rng_state() does not know")
    bits = np.float64(state["gauss"]).view(np.uint64)
    return np.array([*state["state"]["key"], state["state"]["pos"], state["has_gauss"], bits], _BITS)


def _set_numpy(state: Array) -> None:
    *words, position, has_gauss, _ = state.tolist()
    _NUMPY.set_state(("MT19937", np.array(words, np.uint32), position, has_gauss, _float_of(state[-1])))


def _float_of(bits: Any) -> float:
    return float(np.asarray(bits, np.uint64).reshape(1).view(np.float64)[0])


# -- PyTorch ---------------------------------------------------------------------------------------


def _read_torch() -> Array:
    return as_array(torch.get_rng_state())


def _set_torch(state: Array) -> None:
    torch.set_rng_state(torch.from_numpy(state.copy()))


def _read_cuda() -> Array:  # not tested on any GPU: there was none
    return np.stack([as_array(state) for state in torch.cuda.get_rng_state_all()])


def _set_cuda(state: Array) -> None:
    torch.cuda.set_rng_state_all([torch.from_numpy(row.copy()) for row in state[: torch.cuda.device_count()]])
