"""What saving costs a training run in all: steps with asynchronous saves, against the same steps without.

A run of N steps is timed without a save, with ours, and with the ideal: C that copies the same bytes once, into
warm memory, and writes them from a thread over the same file.  The clock runs until the last step is done *and* the
last save is on storage.  The stall is what a run takes longer than the one without saves.  On x86-64 there is a second
ideal, which computes checksums too.

    python bench/stall.py --mib 512 --steps 40 --saves 4
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _calibrate import Machine, _list_of, _pointer
from _common import parser, scratch
from _report import Table, condition, machine_facts, place_of, publish
from _rounds import Figures, interleave, spread

import hpcckpt as hc
from hpcckpt.state.tree import flatten

HAS_CHECKSUMS = platform.machine() == "x86_64"
FLAGS = ["-O2", "-shared", "-fPIC", "-pthread", *(["-msse4.2"] if HAS_CHECKSUMS else [])]
IDEAL, CHECKED = "ideal", "ideal, with checksums"


class Saver:
    """The ideal, in C."""

    def __init__(self, nbytes: int) -> None:
        with tempfile.TemporaryDirectory() as place:
            library = Path(place, "saver.so")
            compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
            source = Path(__file__).with_name("_saver.c")
            subprocess.run([compiler, *FLAGS, "-o", library, source], check=True)
            self._c = ctypes.CDLL(str(library))
        self._arena = np.ones(nbytes, np.uint8)
        self._is_busy = False

    def save(self, path: Path, pieces: list[np.ndarray], *, checks: bool) -> None:
        """Copy, and begin to write; wait for the save before."""
        self.wait()
        error = self._c.begin_save(os.fsencode(path), *_list_of(pieces), _pointer(self._arena), checks)
        self._is_busy = error == 0

    def wait(self) -> None:
        """Wait until what was begun is on storage."""
        if self._is_busy and (error := self._c.end_save()):
            raise OSError(error, os.strerror(error))
        self._is_busy = False


class Training:
    """Steps that compute, and update every variable."""

    def __init__(self, kind: str, n_tensors: int, nbytes: int, work: int) -> None:
        import tensorflow as tf

        each = nbytes // n_tensors // 4
        self.a = tf.random.normal((1024, 1024))
        if kind == "tensorflow":
            self.state: dict[str, Any] = {
                f"w{n:03d}": tf.Variable(tf.fill((each,), float(n))) for n in range(n_tensors)
            }
        else:
            self.state = {f"w{n:03d}": np.full(each, n, np.float32) for n in range(n_tensors)}
        variables = list(self.state.values())

        @tf.function
        def compute(a: Any) -> Any:
            b = a
            for _ in range(work):
                b = tf.linalg.matmul(a, b) * 1e-3
            if kind == "tensorflow":
                for variable in variables:
                    variable.assign_sub(tf.ones_like(variable) * 1e-6)
            return tf.reduce_sum(b)

        self._compute = compute
        self._is_numpy = kind != "tensorflow"
        self._variables = variables

    def step(self) -> None:
        """Do one."""
        float(self._compute(self.a))
        if self._is_numpy:
            for array in self._variables:
                np.subtract(array, 1e-6, out=array)

    def pieces(self) -> list[np.ndarray]:
        """Return the bytes of all variables, where they are."""
        return [leaf.read().reshape(-1).view(np.uint8) for leaf in flatten(self.state).tensors.values()]


def run(training: Training, steps: int, every: int, save: Callable[[int], None], poll: Callable[[], None]) -> float:
    """Return the seconds of a run."""
    began = time.perf_counter()
    for step in range(steps):
        if step % every == every // 2:
            save(step)
        training.step()
        poll()
    return time.perf_counter() - began


def main() -> None:
    """Run."""
    options = parser(__doc__, mib=512, repeat=7)
    options.add_argument("--kind", choices=["tensorflow", "numpy"], default="tensorflow", help="what the state is of")
    options.add_argument("--steps", type=int, default=40, help="steps in a run")
    options.add_argument("--saves", type=int, default=4, help="saves in a run")
    options.add_argument("--work", type=int, default=4, help="matrix products per step")
    asked = options.parse_args()
    nbytes = asked.mib << 20
    training, saver, machine = Training(asked.kind, asked.tensors, nbytes, asked.work), Saver(nbytes), Machine()
    every = asked.steps // asked.saves
    with (
        scratch(asked.directory) as place,
        hc.Checkpointer(place / "run", max_to_keep=1, threads=asked.threads) as ckpt,
    ):
        number = [0]

        def ours(_: int) -> None:
            number[0] += 1
            ckpt.save(number[0], training.state)

        def ideal(_: int, *, checks: bool = False) -> None:
            pieces = training.pieces()
            saver.save(place / "ideal", pieces, checks=checks)

        def timed(save: Callable[[int], None], poll: Callable[[], None], wait: Callable[[], None]) -> Figures:
            gc.collect()
            began = time.perf_counter()
            run(training, asked.steps, every, save, poll)
            wait()
            return {"run": time.perf_counter() - began}

        nothing = lambda *_: None  # noqa: E731
        variants = {
            "without": lambda: timed(nothing, nothing, nothing),
            "ours": lambda: timed(ours, ckpt.poll, ckpt.wait),
            IDEAL: lambda: timed(ideal, nothing, saver.wait),
        }
        if HAS_CHECKSUMS:
            variants[CHECKED] = lambda: timed(partial(ideal, checks=True), nothing, saver.wait)
        found = interleave(variants, machine.copy_rate, repeat=asked.repeat, drift=asked.drift)
    facts = machine_facts(asked.directory)
    report(asked, found, facts)


def report(asked: Any, found: Any, facts: dict[str, Any]) -> None:
    """Say what was found."""
    title = f"{asked.steps} steps, {asked.saves} saves of {asked.mib} MiB of {asked.kind} state, on {place_of(facts)}"
    table = Table(title, ["", "run s", "stall s", "ours over it, by rounds"])
    for name in found.figures:
        ratio = spread(_over(stalls(found, "ours"), stalls(found, name))) if name in (IDEAL, CHECKED) else None
        stall = spread([s for s in stalls(found, name) if s is not None]) if name != "without" else None
        table.rows.append([name, *(_text(each) for each in (spread(found.of(name, "run")), stall, ratio))])
    table.notes.append(condition(found, facts))
    publish(table, asked, {"program": "stall", "figures": found.figures, **facts})


def stalls(found: Any, name: str) -> list[float | None]:
    """Return what saves of one kind held the training up, in each round that was steady."""
    pairs = zip(found.figures[name], found.figures["without"], strict=True)
    return [saved["run"] - base["run"] if saved and base else None for saved, base in pairs]


def _over(above: list[float | None], below: list[float | None]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True) if a is not None and b is not None and b > 0]


def _text(value: dict[str, float] | None) -> str:
    return f"{value['median']:.2f} ({value['least']:.2f} to {value['most']:.2f})" if value else ""


if __name__ == "__main__":
    main()
