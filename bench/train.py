"""Throughput of a training from a configuration, against the same model in a plain Keras script.

Both train one network on the same images, in one process, and take turns in an order of chance.  The script compiles
and fits, as short as it can be; the configuration is trained as ``hpcckpt train`` does it, with its run directory, its
checkpoints after each epoch (and with ``--every`` within), its log, its table of metrics, its lines.  The clock runs
from the end of the first epoch, in which TensorFlow makes the graph ready, to the end of the last one.

    python bench/train.py --epochs 4 --images 6400 --repeat 7
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from _calibrate import Machine
from _common import parser, scratch
from _report import Table, condition, figure, machine_facts, place_of, publish
from _rounds import Figures, interleave, spread

from hpcckpt.train import Environment, export_config
from hpcckpt.train.datasets import synthetic
from hpcckpt.train.models import OneHeadNet

_ENDS: list[tuple[float, float]] = []
"""When epochs of the training under way ended: by the clock, and in time of the processor."""


@export_config
class Clock(keras.callbacks.Callback):
    """Looks at the clock at the end of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._supports_tf_logs = True

    def on_train_begin(self, logs: Any = None) -> None:
        del logs
        _ENDS.clear()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        del epoch, logs
        _ENDS.append((time.perf_counter(), time.process_time()))


def figures_of() -> Figures:
    """Return the seconds of the epochs behind the first."""
    (began, used), (ended, used_in_all) = _ENDS[0], _ENDS[-1]
    return {"run": ended - began, "processor": used_in_all - used}


def script(asked: Any) -> Figures:
    """Train as a plain script does."""
    train, valid = synthetic.from_raw(batch_size=asked.batch, n_images=asked.images, size=asked.size)
    model = OneHeadNet(num_outputs=10)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    model.fit(train, epochs=asked.epochs, validation_data=valid, verbose=2, callbacks=[Clock()])
    return figures_of()


def configured(asked: Any, place: Path) -> Figures:
    """Train the same from a configuration, in a separate run directory."""
    config = {
        "datasets": {
            "hpcckpt.train.datasets.synthetic.from_raw": {
                "batch_size": asked.batch,
                "n_images": asked.images,
                "size": asked.size,
            }
        },
        "model": {"hpcckpt.train.models.OneHeadNet": {"num_outputs": 10}},
        "loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}},
        "metrics": ["accuracy"],
        "optimizer": {"tf.keras.optimizers.Adam": {"learning_rate": 1e-3}},
        "train_loop": {"hpcckpt.train.KerasTrainLoop": {"num_epochs": asked.epochs, "callbacks": [{"Clock": {}}]}},
        "checkpoint": {"every_n_batches": asked.every},
    }
    Environment(place).run([config])
    return figures_of()


def main() -> None:
    """Run."""
    options = parser(__doc__, repeat=7)
    options.add_argument("--epochs", type=int, default=4, help="epochs of a training; the first is not counted")
    options.add_argument("--images", type=int, default=8000, help="images, of which four fifths are trained on")
    options.add_argument("--size", type=int, default=32, help="height and width of an image")
    options.add_argument("--batch", type=int, default=64, help="images in a batch")
    options.add_argument("--every", type=int, help="save every so many batches too")
    asked = options.parse_args()
    facts = machine_facts(asked.directory)
    with scratch(asked.directory) as place:
        count = iter(range(1 << 30))

        def fresh(variant: Callable[[], Figures]) -> Callable[[], Figures]:
            def measure() -> Figures:
                gc.collect()
                return variant()

            return measure

        variants = {
            "script": fresh(lambda: script(asked)),
            "configured": fresh(lambda: configured(asked, place / f"run-{next(count)}")),
        }
        found = interleave(variants, Machine().copy_rate, repeat=asked.repeat, drift=asked.drift)
    n_batches = (asked.epochs - 1) * (asked.images * 4 // 5 // asked.batch)
    table = Table(
        f"Training from a configuration against a Keras script, on {place_of(facts)}",
        ["", "batches/s", "least to most", "throughput over the script's", "least to most", "of the processor"],
    )
    for name in variants:
        rates = [n_batches / seconds for seconds in found.of(name, "run")]
        ratios = found.ratios("script", name, "run")
        used = found.ratios("script", name, "processor")
        over = figure(spread(ratios), digits=3)
        table.rows.append([name, *figure(spread(rates), digits=1), *over, f"{statistics.median(used):.3f}"])
    table.notes.append(f"{n_batches} batches of {asked.batch} after the first epoch; {condition(found, facts)}")
    publish(table, asked, {"program": "train", "figures": found.figures, "facts": facts})


if __name__ == "__main__":
    main()
