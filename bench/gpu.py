"""How long a save of tensors on a GPU blocks the training, and what it costs in all.

    python bench/gpu.py --mib 1024 --repeat 7 --directory /local/scratch

One process, PyTorch alone; ``make gpu`` runs it. Beside it stand what the device could do at best (one copy into pinned
memory), and the same tensors saved by ``torch.save`` and by PyTorch's distributed checkpoints: as they come, and staged
into pinned memory that is used again, as is possible with them too. Medians, with the least and the most.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import BlockingAsyncStager

import hpcckpt as hc
from hpcckpt import native
from hpcckpt.collective.communicator import usable_cores
from hpcckpt.native.arena import Arena
from hpcckpt.state.tree import StagedPart
from hpcckpt.torch.staging import stage

State = dict[str, torch.Tensor]


def main() -> None:
    """Measure, and print a table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--device", default="cuda")
    options.add_argument("--mib", type=int, default=1024, help="size of the state")
    options.add_argument("--tensors", type=int, default=50, help="number of tensors")
    options.add_argument("--repeat", type=int, default=7, help="rounds")
    options.add_argument("--directory", help="where to write; default: a temporary directory")
    options.add_argument("--json", metavar="FILE", help="write every measurement there too")
    asked = options.parse_args()
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("bench/gpu.py: PyTorch sees no GPU here (--device cpu tries the program, not the device)")
    n_elements = (asked.mib << 20) // asked.tensors // 4
    state = {f"layer{n:03d}": torch.randn(n_elements, device=device) for n in range(asked.tensors)}
    nbytes = sum(tensor.nbytes for tensor in state.values())
    warnings.filterwarnings("ignore", module="torch.distributed.*")
    directory = Path(tempfile.mkdtemp(prefix="hpcckpt-gpu-", dir=asked.directory))
    try:
        times = measure(state, directory, device, asked.repeat)
    finally:
        shutil.rmtree(directory)
    show(times, nbytes, device)
    if asked.json:
        facts = {"device": name_of(device), "torch": torch.__version__, "nbytes": nbytes, "seconds": times}
        Path(asked.json).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def measure(state: State, directory: Path, device: torch.device, n_rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round by what was measured; two rounds before them are not counted."""
    pinned = torch.empty(max(t.numel() for t in state.values()), pin_memory=device.type == "cuda")
    blank = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    arena = Arena(sum(t.nbytes for t in state.values()), usable_cores())
    parts = list(parts_of(state, arena))
    times: dict[str, list[float]] = {}
    stagers = {"DCP": None}
    if device.type == "cuda":
        stagers["DCP, pinned"] = BlockingAsyncStager(cache_staged_state_dict=True)

    def timed(what: str, act: Callable[[], Any]) -> Any:
        synchronize(device)
        began = time.perf_counter()
        result = act()
        synchronize(device)
        times.setdefault(what, []).append(time.perf_counter() - began)
        return result

    with hc.Checkpointer(directory / "run", max_to_keep=2) as ckpt:
        for number in range(n_rounds + 2):
            if number == 2:
                times.clear()
            timed("one copy into pinned memory", lambda: [pinned[: t.numel()].copy_(t) for t in state.values()])
            timed("snapshot (staging)", lambda: stage(parts, arena))
            began = time.perf_counter()
            pending = timed("save: blocks", lambda number=number: ckpt.save(number, state))
            pending.result()
            times.setdefault("save: until durable", []).append(time.perf_counter() - began)
            timed("restore, verified", lambda: ckpt.restore(blank))
            timed("torch.save, synced", lambda: saved_by_torch(state, directory / "state.pt"))
            timed("torch.load", lambda: torch.load(directory / "state.pt", map_location=device))
            for name, stager in stagers.items():
                began = time.perf_counter()
                done = timed(f"{name}: blocks", lambda stager=stager: begin_dcp(state, directory / "dcp", stager))
                done.result()
                times.setdefault(f"{name}: until written", []).append(time.perf_counter() - began)
    assert all(torch.equal(blank[name], tensor) for name, tensor in state.items())
    return times


def parts_of(state: State, arena: Arena) -> Iterator[StagedPart]:
    """Yield the tensors with a place in an arena for each."""
    position = 0
    for tensor in state.values():
        yield StagedPart(tensor, 0, tensor.numel(), arena.view(position, tensor.nbytes))
        position += tensor.nbytes


def saved_by_torch(state: State, file: Path) -> None:
    """Save as people do without this library, and sync."""
    with file.open("wb") as opened:
        torch.save(state, opened)
        opened.flush()
        os.fsync(opened.fileno())


def begin_dcp(state: State, path: Path, stager: BlockingAsyncStager | None) -> Any:
    """Begin to save with PyTorch's distributed checkpoints; files are synced, directories are not."""
    return dcp.async_save(state, checkpoint_id=path, async_stager=stager, no_dist=True)


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def name_of(device: torch.device) -> str:
    """Return what the device is called."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU, in place of a GPU"


def show(times: Mapping[str, list[float]], nbytes: int, device: torch.device) -> None:
    """Print the table."""
    print(f"{name_of(device)}; PyTorch {torch.__version__}; native part: {native.IMPLEMENTATION}; {nbytes >> 20} MiB")
    print(f"  {'':28}{'median':>10}{'least':>10}{'most':>10}{'GiB/s':>9}")
    for what, seconds in times.items():
        middle = statistics.median(seconds)
        rate = nbytes / middle / (1 << 30)
        print(f"  {what:28}{middle:9.4f}s{min(seconds):9.4f}s{max(seconds):9.4f}s{rate:9.2f}")


if __name__ == "__main__":
    main()
