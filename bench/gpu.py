"""How long a save of tensors on a GPU blocks the training, and what it costs in all.

    python bench/gpu.py --mib 1024 --repeat 7 --directory /local/scratch

One process, PyTorch alone; ``make gpu`` runs it. Beside it stand what the device could do at best (one copy into pinned
memory) and what ``torch.save`` of the same tensors takes. Medians, with the least and the most.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import hpcckpt as hc
from hpcckpt import native
from hpcckpt.torch.staging import hold_elsewhere

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
    times: dict[str, list[float]] = {}

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
            timed("snapshot (staging)", lambda: hold_elsewhere(list(state.values())))
            began = time.perf_counter()
            pending = timed("save: blocks", lambda number=number: ckpt.save(number, state))
            pending.result()
            times.setdefault("save: until durable", []).append(time.perf_counter() - began)
            timed("restore, verified", lambda: ckpt.restore(blank))
            timed("torch.save, synced", lambda: saved_by_torch(state, directory / "state.pt"))
    assert all(torch.equal(blank[name], tensor) for name, tensor in state.items())
    return times


def saved_by_torch(state: State, file: Path) -> None:
    """Save as people do without this library, and sync."""
    with file.open("wb") as opened:
        torch.save(state, opened)
        opened.flush()
        os.fsync(opened.fileno())


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
