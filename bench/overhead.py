"""What saves in the background cost a training at the interval that ``every_n_minutes="auto"`` chooses.

Two trainings with Keras and Adam: LeNet5 (examples/lenet5.py), and a model of so many million parameters.  Stretches of
the same number of batches take turns, in an order of chance: one with a save at its beginning, which goes on in the
background while the batches do, and one without.  What the first takes longer is what a save costs; the clock runs
until the save is durable.  Meanwhile the planner of `hpcckpt.interval` watches these saves and steps, as a guard does.

Then its interval is put to the proof: stretches of that length, in batches, with one save each and without.  The mean
time between failures is chosen so short for that (``--proof``) that a stretch takes seconds, not minutes: the shorter
it is, the more often is saved, so the overhead at the usual times is less.

    python bench/overhead.py --millions 100 --repeat 7
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from _calibrate import Machine
from _common import parser, scratch
from _report import Table, condition, machine_facts, place_of, publish
from _rounds import Figures, Rounds, interleave, spread

import hpcckpt as hc
from hpcckpt.interval import IntervalPlanner
from hpcckpt.preemption.clock import duration_s

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))


# -- the trainings -----------------------------------------------------------------------------------


class Training:
    """A Keras model, and one batch that it is trained with again and again."""

    def __init__(self, model: Any, x: Any, y: Any, loss: str) -> None:
        import keras
        import tensorflow as tf

        model.compile(keras.optimizers.Adam(1e-4), loss, jit_compile=False)
        self.state = {"model": model}
        self._step = model.make_train_function()
        self._batches = iter(tf.data.Dataset.from_tensors((x, y)).cache().repeat())
        self.n_steps = 0

    def step(self) -> None:
        """Train a batch."""
        self.n_steps += 1
        for value in self._step(self._batches).values():
            float(value)

    @property
    def nbytes(self) -> int:
        """Bytes of model and optimizer."""
        model = self.state["model"]
        return sum(v.numpy().nbytes for v in [*model.weights, *model.optimizer.variables])


def lenet5(batch: int) -> Training:
    """Return LeNet5, on images that are made up."""
    from lenet5 import lenet5 as make

    rng = np.random.default_rng(1)
    images = rng.random((batch, 28, 28, 1), np.float32)
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Training(make(), images, rng.integers(0, 10, batch), loss)  # type: ignore[arg-type]


def dense(millions: float, batch: int) -> Training:
    """Return a model of eight equal layers with so many million parameters in all."""
    import keras

    width = round(math.sqrt(millions * 1e6 / 8))
    inputs = keras.layers.Input((width,))
    hidden = inputs
    for _ in range(8):
        hidden = keras.layers.Dense(width, activation="relu")(hidden)
    x = np.random.default_rng(1).random((batch, width), np.float32)
    return Training(keras.Model(inputs, hidden), x, x, "mse")


# -- stretches ---------------------------------------------------------------------------------------


class Stretches:
    """Batches with and without a save, and a planner that watches.

    Parameters
    ----------
    training : Training
        What is trained.
    ckpt : Checkpointer
        What saves it.
    mtbf_s : float
        For the planner.
    """

    def __init__(self, training: Training, ckpt: hc.Checkpointer, mtbf_s: float) -> None:
        self.training, self.ckpt = training, ckpt
        self.planner = IntervalPlanner(mtbf_s, min_interval_s=0.0)
        self.step_s = 0.0
        self.lasts_s: list[float] = []
        ckpt.on_saved(self._saved)

    def _saved(self, saved: Any) -> None:
        self.lasts_s.append(saved.seconds)
        self.planner.observe_save(saved.stall_seconds, saved.seconds)

    def run(self, n_steps: int, *, saves: bool) -> Figures:
        """Train so many batches; return the seconds, of the clock and of the processor."""
        gc.collect()
        began, used = time.perf_counter(), time.process_time()
        if saves:
            self.ckpt.save(self.training.n_steps, self.training.state)
        for _ in range(n_steps):
            at, was_saving = time.perf_counter(), saves and self.ckpt.is_saving
            self.training.step()
            if saves:
                self.ckpt.poll()
            self.planner.observe_step(time.perf_counter() - at, is_saving=was_saving)
        if saves:
            self.ckpt.wait()
        return {"run": time.perf_counter() - began, "processor": time.process_time() - used}

    def warm_up(self) -> int:
        """Compile, recycle files; return how many batches last longer than two saves."""
        for _ in range(3):
            self.run(3, saves=True)
        self.step_s = self.run(10, saves=False)["run"] / 10
        self.run(max(5, round(2 * self.lasts_s[-1] / self.step_s)), saves=True)
        return max(5, math.ceil(3 * self.lasts_s[-1] / self.step_s))

    def compare(self, n_steps: int, machine: Machine, asked: Any, repeat: int) -> Rounds:
        """Measure stretches of so many batches with and without a save, taking turns."""
        variants: dict[str, Callable[[], Figures]] = {
            "without": lambda: self.run(n_steps, saves=False),
            "with": lambda: self.run(n_steps, saves=True),
        }
        return interleave(variants, machine.copy_rate, repeat=repeat, drift=asked.drift)


def measure(training: Training, name: str, place: Path, asked: Any) -> tuple[list[list[str]], dict[str, Any], Rounds]:
    """Measure one training; return rows, figures, and the rounds."""
    machine, proof_s = Machine(), duration_s(asked.proof)
    with hc.Checkpointer(place / name, max_to_keep=1, threads=asked.threads) as ckpt:
        stretches = Stretches(training, ckpt, proof_s)
        n_short = stretches.warm_up()
        short = stretches.compare(n_short, machine, asked, asked.repeat)
        planner = stretches.planner
        usual = IntervalPlanner(duration_s(asked.mtbf))
        usual.observe_save(planner.cost_s or 0.0, max(stretches.lasts_s))
        n_long = math.ceil(planner.period_s / stretches.step_s)
        long = stretches.compare(n_long, machine, asked, max(3, asked.repeat // 2))
    costs = [
        a["run"] - b["run"] for a, b in zip(short.figures["with"], short.figures["without"], strict=True) if a and b
    ]
    cost, by_round = spread(costs), spread([100 * (ratio - 1) for ratio in long.ratios("with", "without", "run")])
    by_processor = spread([100 * (ratio - 1) for ratio in long.ratios("with", "without", "processor")])
    base = spread(long.of("without", "run"))
    rows = [
        ["state, a batch", f"{training.nbytes / 2**20:.0f} MiB, {1000 * stretches.step_s:.0f} ms"],
        ["a save lasts", f"{np.median(stretches.lasts_s):.2f} s"],
        ["a save costs, measured", _spread(cost, "s") + f" (every {n_short} batches)"],
        ["a save costs, says the planner", f"{planner.cost_s or 0:.3f} s"],
        [
            f"interval at mtbf {asked.mtbf}",
            f"{usual.period_s:.0f} s = every {usual.period_s / stretches.step_s:.0f} batches",
        ],
        ["  overhead there, from the cost", f"{100 * (cost['median'] if cost else 0) / usual.period_s:.2f} %"],
        [f"interval at mtbf {asked.proof}", f"{planner.period_s:.1f} s = every {n_long} batches"],
        ["  overhead there, measured", _spread(by_round, "%")],
        ["  in time of the processor", _spread(by_processor, "%")],
    ]
    facts = {"short": short.figures, "long": long.figures, "n_short": n_short, "n_long": n_long, "base": base}
    return [[f"{name}: {row[0]}", row[1]] for row in rows], facts, long


def _spread(value: dict[str, float] | None, unit: str) -> str:
    if value is None:
        return "no steady round"
    return f"{value['median']:.2f} {unit} ({value['least']:.2f} to {value['most']:.2f})"


def main() -> None:
    """Run."""
    options = parser(__doc__, repeat=7)
    options.add_argument("--millions", type=float, default=100, help="parameters of the large model")
    options.add_argument("--batch", type=int, default=64, help="rows of a batch")
    options.add_argument("--mtbf", default="24h", help="mean time between failures that jobs count with")
    options.add_argument("--proof", default="10m", help="the one that the interval is put to the proof with")
    options.add_argument("--only", choices=["lenet5", "large"], help="one of them")
    asked = options.parse_args()
    facts = machine_facts(asked.directory)
    table = Table(f"What saving costs at the automatic interval, on {place_of(facts)}", ["", "median (least to most)"])
    figures: dict[str, Any] = {}
    with scratch(asked.directory) as place:
        for name in [asked.only] if asked.only else ["lenet5", "large"]:
            training = lenet5(asked.batch) if name == "lenet5" else dense(asked.millions, asked.batch)
            rows, figures[name], rounds = measure(training, name, place, asked)
            table.rows += rows
            table.notes.append(f"{name}: {condition(rounds, facts)}")
            del training
    publish(table, asked, {"program": "overhead", "figures": figures, "facts": facts})


if __name__ == "__main__":
    main()
