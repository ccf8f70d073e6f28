"""Orbax, on JAX arrays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from _peers import Peer, State, Wait, at_once

SYNCED = "files, directories"
"""Its data files and their directories; not ``_METADATA``, nor the parent after the final rename."""


def peers(state: State, n_ranks: int) -> list[Peer]:
    """Return them."""
    del n_ranks
    _be_quiet()
    arrays = {name.replace("/", "_"): jnp.array(array, copy=True) for name, array in state.items()}
    jax.block_until_ready(arrays)
    return [
        *_ways(arrays, "Orbax, as it comes", use_compression=True),
        *_ways(arrays, "Orbax without compression", use_compression=False),
    ]


def _ways(arrays: dict[str, Any], name: str, *, use_compression: bool) -> list[Peer]:
    def handler() -> ocp.PyTreeCheckpointHandler:
        return ocp.PyTreeCheckpointHandler(use_compression=use_compression)

    plain, background = ocp.Checkpointer(handler()), ocp.AsyncCheckpointer(handler())
    wanted = jax.tree.map(ocp.utils.to_shape_dtype_struct, arrays)
    args = ocp.args.PyTreeSave(arrays)

    def load(path: Path) -> None:
        restore_args = ocp.checkpoint_utils.construct_restore_args(wanted)
        jax.block_until_ready(plain.restore(path, ocp.args.PyTreeRestore(wanted, restore_args=restore_args)))

    def begin(path: Path) -> Wait:
        background.save(path, args)
        return background.wait_until_finished

    return [
        Peer(name, at_once(lambda path: plain.save(path, args)), load, SYNCED),
        Peer(f"{name}, async", begin, load, SYNCED, is_async=True),
    ]


def _be_quiet() -> None:
    from absl import logging

    logging.set_verbosity(logging.ERROR)
