"""The libraries that we are compared with, each used as its documentation says, all on one state.

What a peer gets is what its users hand to it: TensorFlow its variables, PyTorch tensors, Orbax JAX arrays, the others
NumPy arrays.  A load ends when the values are in the program's own variables or arrays; where a library makes new ones
that take the place of the old (Orbax, ``load_model``), with these.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

State = Mapping[str, np.ndarray]
Wait = Callable[[], Any]


@dataclass(frozen=True)
class Peer:
    """One way to save and load.

    Attributes
    ----------
    name : str
        What the tables call it.
    begin : callable
        Starts a save to a path that does not exist; returns what waits for its end.
    load : callable
        Loads from such a path.
    durability : str
        What it makes sure of before it reports success; ``syncs.py`` found it out.
    is_parallel : bool
        Whether all ranks take part; otherwise root saves, as the library's users do, and every rank loads.
    is_async : bool
        Whether `begin` returns before the checkpoint is there.
    """

    name: str
    begin: Callable[[Path], Wait]
    load: Callable[[Path], Any]
    durability: str
    is_parallel: bool = False
    is_async: bool = False


def make_peers(state: State, families: tuple[str, ...], *, n_ranks: int, asynchronous: bool) -> list[Peer]:
    """Return the peers that are installed here.

    Parameters
    ----------
    state : dict of str to array
        What is saved.
    families : tuple of str
        Which, of `FAMILIES`.
    n_ranks : int
        With more than one, ``torch`` sets up a process group of all ranks. Collective.
    asynchronous : bool
        The ways that return early, instead of the others.
    """
    found: list[Peer] = []
    for family in families:
        if all(importlib.util.find_spec(needed) for needed in FAMILIES[family]):
            module = importlib.import_module(f"_peers_{family}")
            found += module.peers(state, n_ranks)
    return [peer for peer in found if peer.is_async == asynchronous]


def at_once(save: Callable[[Path], Any]) -> Callable[[Path], Wait]:
    """Turn a save that returns at its end into one to wait for."""

    def begin(path: Path) -> Wait:
        save(path)
        return lambda: None

    return begin


FAMILIES: dict[str, tuple[str, ...]] = {
    "files": ("h5py", "safetensors"),
    "tf": ("tensorflow", "keras"),
    "torch": ("torch", "safetensors"),
    "orbax": ("orbax", "jax"),
}
