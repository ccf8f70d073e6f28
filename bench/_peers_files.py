"""Peers that write one file of NumPy arrays: safetensors and h5py."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from _peers import Peer, State, at_once
from safetensors.numpy import load_file, save_file


def peers(state: State, n_ranks: int) -> list[Peer]:
    """Return them."""
    del n_ranks

    def load_safetensors(path: Path) -> None:
        for name, array in load_file(path).items():
            np.copyto(state[name], array)

    def save_h5py(path: Path) -> None:
        with h5py.File(path, "w") as file:
            for name, array in state.items():
                file.create_dataset(name, data=array)

    def load_h5py(path: Path) -> None:
        with h5py.File(path, "r") as file:
            for name, array in state.items():
                file[name].read_direct(array)

    return [
        Peer("safetensors, NumPy", at_once(lambda path: save_file(dict(state), path)), load_safetensors, "nothing"),
        Peer("h5py", at_once(save_h5py), load_h5py, "nothing"),
    ]
