"""What saves in the background cost a training at the interval that ``every_n_minutes="auto"`` chooses.

Two trainings with Keras and Adam: LeNet5 (examples/lenet5.py), and a model of N million parameters.  Stretches of
the same number of batches take turns, in an order of chance: one with a save at its beginning, which goes on in the
background while the batches do, and one without.  What the first takes longer is what a save costs, by the clock,
which runs until the save is durable, and in time of the processor, which a busy machine disturbs less.  Meanwhile the
planner of `hpcckpt.interval` watches these saves and steps, as a guard does.

Then its interval is put to the proof: stretches of that length, in batches, with one save each and without.  The mean
time between failures is chosen so short for that (``--proof``) that a stretch takes seconds, not minutes: the shorter
it is, the more often is saved, so the overhead at the usual times is less.

    python bench/overhead.py --millions 100 --repeat 7
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from _calibrate import Machine
from _common import parser, scratch
from _report import Table, condition, machine_facts, place_of, publish
from _rounds import Figures, Rounds, interleave, spread

import hpcckpt as hc
from hpcckpt.core.durations import duration_s
from hpcckpt.interval import IntervalPlanner

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))


N_LEARNING = 4
_CLOCKS = ("run", "processor")

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
    """Return a model of eight equal layers with `millions` million parameters in total."""
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
        self.lasts_s: list[float] = []
        ckpt.on_saved(self._saved)

    def _saved(self, saved: Any) -> None:
        self.lasts_s.append(saved.seconds)
        self.planner.observe_save(saved.stall_seconds, saved.seconds)

    def run(self, n_steps: int, *, saves: bool) -> Figures:
        """Train `n_steps` batches; return the seconds, of the clock and of the processor."""
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
        step_s = self.run(10, saves=False)["run"] / 10
        self.run(max(5, round(2 * self.lasts_s[-1] / step_s)), saves=True)
        return max(5, math.ceil(3 * self.lasts_s[-1] / step_s))

    def learn(self, step_s: float) -> int:
        """Save at the planner's own interval, as it learns what that costs; return the batches that it comes to."""
        for _ in range(N_LEARNING):
            self.run(math.ceil(self.planner.period_s / step_s), saves=True)
        return math.ceil(self.planner.period_s / step_s)

    def compare(self, n_steps: int, machine: Machine, asked: Any, repeat: int) -> Rounds:
        """Measure stretches of `n_steps` batches with and without a save, taking turns."""
        variants: dict[str, Callable[[], Figures]] = {
            "without": lambda: self.run(n_steps, saves=False),
            "with": lambda: self.run(n_steps, saves=True),
        }
        return interleave(variants, machine.copy_rate, repeat=repeat, drift=asked.drift)


@dataclass
class Found:
    """What was found out about one training.

    Attributes
    ----------
    n_short, n_long : int
        Batches of a stretch that shows what a save costs, and of one at the automatic interval.
    """

    stretches: Stretches
    short: Rounds
    n_short: int
    long: Rounds | None = None
    n_long: int = 0

    def costs(self, what: str) -> list[float]:
        """Return what a save cost in each round."""
        pairs = zip(self.short.figures["with"], self.short.figures["without"], strict=True)
        return [a[what] - b[what] for a, b in pairs if a and b]

    def batch(self, what: str) -> float:
        """Return what a batch takes."""
        return statistics.median(self.short.of("without", what)) / self.n_short


def measure(training: Training, place: Path, asked: Any) -> Found:
    """Measure one training."""
    machine, is_proved = Machine(), asked.proof != "none"
    with hc.Checkpointer(place, max_to_keep=1, threads=asked.threads) as ckpt:
        stretches = Stretches(training, ckpt, duration_s(asked.proof if is_proved else asked.mtbf))
        n_short = stretches.warm_up()
        found = Found(stretches, stretches.compare(n_short, machine, asked, asked.repeat), n_short)
        if is_proved:
            found.n_long = stretches.learn(found.batch("run"))
            found.long = stretches.compare(found.n_long, machine, asked, max(3, asked.repeat // 2))
    return found


def tabulate(name: str, found: Found, nbytes: int, asked: Any) -> list[list[str]]:
    """Return rows of the table."""
    planner, lasts_s = found.stretches.planner, found.stretches.lasts_s
    usual = IntervalPlanner(duration_s(asked.mtbf))
    usual.observe_save(planner.cost_s or 0.0, max(lasts_s))
    n_usual = usual.period_s / found.batch("run")
    by_clock, by_processor = (
        100 * statistics.median(found.costs(what)) / (n_usual * found.batch(what)) for what in ("run", "processor")
    )
    rows = [
        ["state, a batch", f"{nbytes / 2**20:.0f} MiB, {1000 * found.batch('run'):.0f} ms"],
        ["a save lasts", f"{statistics.median(lasts_s):.2f} s"],
        ["a save costs", f"{_spread(found.costs('run'), 's')}; the planner says {planner.cost_s or 0:.3f} s"],
        ["  of the processor", _spread(found.costs("processor"), "s")],
        [f"interval at mtbf {asked.mtbf}", f"{usual.period_s:.0f} s = every {n_usual:.0f} batches"],
        ["  overhead: these costs there", f"{by_clock:.2f} %; of the processor {by_processor:.2f} %"],
    ]
    if found.long is not None:
        ratios = {what: [100 * (r - 1) for r in found.long.ratios("with", "without", what)] for what in _CLOCKS}
        rows += [
            [f"interval at mtbf {asked.proof}", f"{planner.period_s:.1f} s; measured: every {found.n_long} batches"],
            ["  overhead", _spread(ratios["run"], "%")],
            ["  of the processor", _spread(ratios["processor"], "%")],
        ]
    return [[f"{name}: {row[0]}", row[1]] for row in rows]


def _spread(values: list[float], unit: str) -> str:
    value = spread(values)
    if value is None:
        return "no steady round"
    return f"{value['median']:.2f} {unit} ({value['least']:.2f} to {value['most']:.2f})"


def main() -> None:
    """Run."""
    options = parser(__doc__, repeat=7)
    options.add_argument("--millions", type=float, default=100, help="parameters of the large model")
    options.add_argument("--batch", type=int, default=64, help="rows of a batch")
    options.add_argument("--mtbf", default="24h", help="mean time between failures that jobs count with")
    options.add_argument("--proof", default="10m", help="the one that it is put to the proof with, or none")
    options.add_argument("--only", choices=["lenet5", "large"], help="one of them")
    asked = options.parse_args()
    facts = machine_facts(asked.directory)
    table = Table(f"What saving costs at the automatic interval, on {place_of(facts)}", ["", "median (least to most)"])
    figures: dict[str, Any] = {}
    with scratch(asked.directory) as place:
        for name in [asked.only] if asked.only else ["lenet5", "large"]:
            training = lenet5(asked.batch) if name == "lenet5" else dense(asked.millions, asked.batch)
            found = measure(training, place / name, asked)
            table.rows += tabulate(name, found, training.nbytes, asked)
            table.notes.append(f"{name}: {condition(found.long or found.short, facts)}")
            figures[name] = {"short": found.short.figures, "long": found.long.figures if found.long else None}
            del training, found
    publish(table, asked, {"program": "overhead", "figures": figures, "facts": facts})


if __name__ == "__main__":
    main()
