"""What a save costs the training, above all of TensorFlow variables: ``python bench/blocking.py --repeat 11``.

In one process, in turns: a warm memcpy of the same bytes by one thread; holding the variables; holding them over the
next three steps of a training; and a save into a directory, during which the training goes on.  A step is one
tf.function that updates all variables.  What counts is *blocking + excess*: how long the call took, and by how much the
three steps after it took longer than three usual ones, for the copies that holding defers are made there.  What is
usual is measured before and afterwards: a machine's memory is fast at one time and slow at another.  Beside it, how
long a save of NumPy arrays of the same sizes blocks, which have to be copied.  See README.md.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from _calibrate import Machine
from _common import parser, scratch
from _report import Table, condition, figure, machine_facts, publish
from _rounds import Figures, Rounds, interleave, spread

import hpcckpt as hc
from hpcckpt.state.tf_hold import copied, hold, warm
from hpcckpt.state.tree import flatten

N_STEPS = 3
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, whatever its size, for the next allocation instead of giving it back."""
    libc = ctypes.CDLL(None)
    if not (libc.mallopt(M_MMAP_THRESHOLD, 1 << 30) and libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)):
        raise OSError("this C library does not take these settings")


class Training:
    """Variables, and a step that updates all of them."""

    def __init__(self, n_tensors: int, nbytes: int) -> None:
        each = nbytes // n_tensors // 4
        self.variables = [tf.Variable(tf.fill([each], float(n))) for n in range(n_tensors)]
        self.state = {f"layer{n:03d}/kernel": variable for n, variable in enumerate(self.variables)}
        self.nbytes = each * 4 * n_tensors
        delta = tf.fill([each], 1e-3)

        @tf.function
        def step() -> None:
            for variable in self.variables:
                variable.assign_sub(delta)

        self._step = step

    def steps(self) -> list[float]:
        """Train on, and return the seconds of each step."""
        return [seconds(self._step) for _ in range(N_STEPS)]


def seconds(fn: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    fn()
    return time.perf_counter() - began


class Memory:
    """How much memory this process came to use at most since the last `forget`."""

    def __init__(self) -> None:
        self._before = 0

    def forget(self) -> None:
        """Reset the peak."""
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._before = self._field("VmRSS")

    def extra(self) -> int:
        """Return the bytes beyond what was in use at the beginning."""
        return max(0, self._field("VmHWM") - self._before)

    @staticmethod
    def _field(name: str) -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


class Bench:
    """What is measured."""

    def __init__(self, args: argparse.Namespace, place: Path) -> None:
        self.machine, self.memory = Machine(), Memory()
        self.training = Training(args.tensors, args.mib << 20)
        self.ckpt, self.ckpt_of_arrays = (
            hc.Checkpointer(place / kind, max_to_keep=1, check_replicas=0, threads=args.threads)
            for kind in ("variables", "arrays")
        )
        each = self.training.nbytes // args.tensors // 4
        self.arrays = {name: np.full(each, 1.0, np.float32) for name in self.training.state}
        self.step = 0
        self._from, self._to = (np.full(self.training.nbytes, n, np.uint8) for n in (1, 2))

    def memcpy(self) -> Figures:
        """Copy the same bytes between warm buffers, with one thread."""
        return {"blocking": seconds(lambda: np.copyto(self._to, self._from))}

    def first(self) -> Figures:
        """Hold over the next steps as the first save of a process does: what is copied goes into fresh memory."""
        return self.hold_over_steps()

    def leaves(self) -> Figures:
        """Walk the state."""
        return {"blocking": seconds(lambda: flatten(self.training.state))}

    def hold(self) -> Figures:
        """Take references to the variables and release them at once."""
        return {"blocking": seconds(lambda: hold(self.training.variables))}

    def hold_over_steps(self) -> Figures:
        """Hold the variables all through the next steps: all of them are copied by the first one."""
        kept: list[Any] = []
        return self._beside_training(lambda: kept.extend(hold(self.training.variables)), kept.clear)

    def save(self) -> Figures:
        """Save in the background."""
        self.step += 1
        return self._beside_training(lambda: self.ckpt.save(self.step, self.training.state), self.ckpt.wait)

    def save_arrays(self) -> Figures:
        """Save NumPy arrays in the background."""
        self.step += 1
        blocking = seconds(lambda: self.ckpt_of_arrays.save(self.step, self.arrays))
        self.ckpt_of_arrays.wait()
        return {"blocking": blocking}

    def close(self) -> None:
        """End."""
        self.ckpt.close()
        self.ckpt_of_arrays.close()

    def _beside_training(self, begin: Callable[[], Any], end: Callable[[], Any]) -> Figures:
        before = self.training.steps()
        self.memory.forget()
        blocking = seconds(begin)
        steps = self.training.steps()
        after, extra_nbytes = seconds(end), self.memory.extra()
        usual = statistics.median([*before, *self.training.steps()])
        excess = sum(steps) - N_STEPS * usual
        return {
            "blocking": blocking,
            "excess": excess,
            "sum": blocking + excess,
            "step": usual,
            "after": after,
            "extra_nbytes": extra_nbytes,
        }


def table_of(found: Rounds, facts: dict[str, Any]) -> Table:
    """Return the table for people."""
    shown = ["variant", "blocking, ms", "least to most", "over memcpy", "+ excess, ms", "over memcpy", "least to most"]
    table = Table(f"{facts['nbytes'] >> 20} MiB in {facts['tensors']} variables", [*shown, "step, ms", "extra MiB"])
    memcpy = statistics.median(found.of("memcpy", "blocking") or [float("nan")])
    for name in found.figures:
        total = [value / memcpy for value in found.of(name, "sum")]
        table.rows.append([
            name,
            *figure(spread(found.of(name, "blocking")), 1e-3),
            figure(spread([value / memcpy for value in found.of(name, "blocking")]), digits=3)[0],
            figure(spread(found.of(name, "sum")), 1e-3, 1)[0],
            *figure(spread(total)),
            figure(spread(found.of(name, "step")), 1e-3, 1)[0],
            figure(spread(found.of(name, "extra_nbytes")), 1 << 20, 0)[0],
        ])  # fmt: skip
    first = facts["first"]
    table.notes = [
        condition(found, facts),
        f"{facts['aliased']} of {facts['tensors']} variables held without a copy",
        f"the first time: {first['sum'] * 1e3:.0f} ms in all, {first['extra_nbytes'] >> 20} MiB of fresh memory",
    ]
    return table


def main() -> None:
    """Run."""
    options = parser(__doc__, repeat=11)
    options.set_defaults(tensors=256)
    options.add_argument("--keep-freed", action="store_true", help="have the allocator keep what is freed (mallopt)")
    options.add_argument("--warm", action="store_true", help="warm TensorFlow's memory before the first save")
    args = options.parse_args()
    if args.keep_freed:
        keep_freed_memory()
    with scratch(args.directory) as place:
        bench = Bench(args, place / "run")
        names = {
            "memcpy": bench.memcpy,
            "leaves": bench.leaves,
            "hold": bench.hold,
            "hold, 3 steps": bench.hold_over_steps,
            "save": bench.save,
            "save, NumPy": bench.save_arrays,
        }
        if args.warm:
            warm(bench.training.variables)
        first = bench.first()
        found = interleave(names, bench.machine.copy_rate, repeat=args.repeat, drift=args.drift)
        aliased = copied(bench.training.variables, hold(bench.training.variables)).count(False)
        bench.close()
    facts = {
        **machine_facts(args.directory),
        "tensorflow": tf.__version__,
        "tensors": args.tensors,
        "nbytes": bench.training.nbytes,
        "keep_freed": args.keep_freed,
        "warm": args.warm,
        "first": first,
        "aliased": aliased,
    }
    publish(table_of(found, facts), args, {"program": "blocking", "facts": facts, **vars(found)})


main()
