"""PyTorch: ``torch.save``, distributed checkpoints, safetensors of tensors."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from _common import WORLD
from _peers import Peer, State, Wait, at_once
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
FILES = "files"


def peers(state: State, n_ranks: int) -> list[Peer]:
    """Return them. Collective."""
    warnings.filterwarnings("ignore", module="torch.distributed.*")
    tensors = {name: torch.from_numpy(array) for name, array in state.items()}
    found = [*_single_files(tensors), *_distributed(tensors, "torch DCP, one process", is_parallel=False)]
    if n_ranks > 1:
        _join_group()
        found += _distributed(tensors, f"torch DCP, gloo, {n_ranks} ranks", is_parallel=True)
    return found


def _copy_into(tensors: Tensors, loaded: Tensors) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(loaded[name])


def _single_files(tensors: Tensors) -> list[Peer]:
    return [
        Peer(
            "torch.save",
            at_once(lambda path: torch.save(tensors, path)),
            lambda path: _copy_into(tensors, torch.load(path, weights_only=True)),
            "nothing",
        ),
        Peer(
            "safetensors, torch",
            at_once(lambda path: save_file(tensors, path)),
            lambda path: _copy_into(tensors, load_file(path)),
            "nothing",
        ),
    ]


def _distributed(tensors: Tensors, name: str, *, is_parallel: bool) -> list[Peer]:
    alone = not is_parallel

    def begin(path: Path) -> Wait:
        return dcp.async_save(tensors, checkpoint_id=path, no_dist=alone).result

    def load(path: Path) -> None:
        dcp.load(tensors, checkpoint_id=path, no_dist=alone)

    return [
        Peer(
            name,
            at_once(lambda path: dcp.save(tensors, checkpoint_id=path, no_dist=alone)),
            load,
            FILES,
            is_parallel=is_parallel,
        ),
        Peer(f"{name}, async", begin, load, FILES, is_parallel=is_parallel, is_async=True),
    ]


def _join_group() -> None:
    if dist.is_initialized():
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    port = WORLD.bcast(_free_port() if WORLD.rank == 0 else None)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=WORLD.rank, world_size=WORLD.size)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
