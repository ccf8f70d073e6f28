"""What saving costs a training run in all: steps with asynchronous saves, against the same steps without.

A run of so many steps is timed without a save, with ours, and with the ideal: C that copies the same bytes once, into
warm memory, and writes them from a thread over the same file.  The clock runs until the last step is done *and* the
last save is on storage.  The stall is what a run takes longer than the one without saves.

    python bench/stall.py --mib 512 --steps 40 --saves 4
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _calibrate import Machine, _list_of, _pointer
from _common import parser, scratch
from _report import Table, condition, machine_facts, place_of, publish
from _rounds import Figures, interleave, spread

import hpcckpt as hc
from hpcckpt.snapshot import flatten


class Saver:
    """The ideal, in C."""

    def __init__(self, nbytes: int) -> None:
        with tempfile.TemporaryDirectory() as place:
            library = Path(place, "saver.so")
            compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
            source = Path(__file__).with_name("_saver.c")
            subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
            self._c = ctypes.CDLL(str(library))
        self._arena = np.ones(nbytes, np.uint8)
        self._is_busy = False

    def save(self, path: Path, pieces: list[np.ndarray]) -> None:
        """Copy, and begin to write; wait for the save before."""
        self.wait()
        error = self._c.begin_save(os.fsencode(path), *_list_of(pieces), _pointer(self._arena))
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

        def ideal(_: int) -> None:
            pieces = training.pieces()
            saver.save(place / "ideal", pieces)

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
            "ideal": lambda: timed(ideal, nothing, saver.wait),
        }
        found = interleave(variants, machine.copy_rate, repeat=asked.repeat, drift=asked.drift)
    facts = machine_facts(asked.directory)
    report(asked, found, facts)


def report(asked: Any, found: Any, facts: dict[str, Any]) -> None:
    """Say what was found."""
    rounds = [
        (a["run"] - base["run"], b["run"] - base["run"])
        for a, b, base in zip(*(found.figures[name] for name in ("ours", "ideal", "without")), strict=True)
        if a and b and base
    ]
    title = f"{asked.steps} steps, {asked.saves} saves of {asked.mib} MiB of {asked.kind} state, on {place_of(facts)}"
    table = Table(title, ["", "run s", "least to most"])
    for name in ("without", "ours", "ideal"):
        seconds = spread(found.of(name, "run"))
        if seconds:
            table.rows.append([name, f"{seconds['median']:.2f}", f"{seconds['least']:.2f} to {seconds['most']:.2f}"])
    stalls = {"ours": spread([a for a, _ in rounds]), "ideal": spread([b for _, b in rounds])}
    ratio = spread([a / b for a, b in rounds if b > 0])
    for name, stall in stalls.items():
        if stall:
            table.rows.append(
                [f"stall, {name}", f"{stall['median']:.2f}", f"{stall['least']:.2f} to {stall['most']:.2f}"]
            )
    if ratio and stalls["ours"] and stalls["ideal"]:
        of_medians = stalls["ours"]["median"] / stalls["ideal"]["median"]
        table.notes.append(
            f"ours over ideal: {of_medians:.2f} (of the medians); by rounds {ratio['median']:.2f} "
            f"({ratio['least']:.2f} to {ratio['most']:.2f})"
        )
    table.notes.append(condition(found, facts))
    publish(table, asked, {"program": "stall", "figures": found.figures, **facts})


if __name__ == "__main__":
    main()
