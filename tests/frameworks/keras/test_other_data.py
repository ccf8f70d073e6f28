"""A training that resumes with more epochs, or with other data, than the interrupted one had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.keras import BackupAndRestore
from hpcckpt.keras.callbacks import callback_state
from hpcckpt.keras.callbacks.fit_restore import fit_position
from hpcckpt.keras.callbacks.training_state import Training
from hpcckpt.keras.program import traced_steps
from hpcckpt.testing.ranks import run_ranks
from tests.support.keras.models import KillAt, Killed, rows, small

N_SAMPLES = 48
BATCH = 4
STEPS = N_SAMPLES // BATCH


def backup(directory: Path, **options: Any) -> BackupAndRestore:
    """Return a callback that saves after every second batch, and keeps all."""
    return BackupAndRestore(directory, every_n_batches=2, delete_checkpoint=False, max_to_keep=None, **options)


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Train on shuffled arrays without a seed, as a new process would; return the model."""
    from tensorflow.python.eager import context

    def run(data: Any, epochs: int, *callbacks: Any, **options: Any) -> Any:
        model = small()
        monkeypatch.setattr(context.context(), "_seed", None)
        model.fit(**data, epochs=epochs, callbacks=list(callbacks), verbose=0, **options)
        return model

    return run


def arrays(count: int = N_SAMPLES, batch_size: int = BATCH) -> dict[str, Any]:
    """Return arrays for ``fit``."""
    x, y = rows(count)
    return {"x": x, "y": y, "batch_size": batch_size}


def dataset(count: int = N_SAMPLES, batch_size: int = BATCH) -> dict[str, Any]:
    """Return a ``tf.data`` pipeline for ``fit``."""
    pipeline = tf.data.Dataset.from_tensor_slices(rows(count)).shuffle(count, seed=3)
    return {"x": pipeline.batch(batch_size), "shuffle": False}


def fixed(count: int = N_SAMPLES, batch_size: int = BATCH) -> dict[str, Any]:
    """Return a ``tf.data`` pipeline whose batches have a fixed size, and which has read some of them ahead."""
    pipeline = tf.data.Dataset.from_tensor_slices(rows(count)).shuffle(count, seed=3)
    return {"x": pipeline.batch(batch_size, drop_remainder=True).prefetch(2), "shuffle": False}


def loss_scaled(rate: float) -> Any:
    return keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(rate))


def count_of(model: Any) -> int:
    return int(model.optimizer.iterations.numpy())


@pytest.mark.parametrize("make", [arrays, dataset])
def test_a_finished_training_resumes_with_more_epochs(make: Any, train: Any, tmp_path: Path) -> None:
    train(make(), 1, backup(tmp_path))
    assert count_of(train(make(), 3, backup(tmp_path))) == 3 * STEPS


@pytest.mark.parametrize("make", [arrays, dataset])
def test_a_run_killed_in_its_last_epoch_resumes_with_more_epochs(make: Any, train: Any, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(make(), 2, KillAt(STEPS + 5), backup(tmp_path))
    assert count_of(train(make(), 4, backup(tmp_path))) == 4 * STEPS


@pytest.mark.parametrize("make", [arrays, dataset, fixed])
def test_another_batch_size_within_an_epoch_is_reported_and_trains(
    make: Any, train: Any, tmp_path: Path, capfd: Any
) -> None:
    with pytest.raises(Killed):
        train(make(), 2, KillAt(STEPS + 7), backup(tmp_path))
    capfd.readouterr()
    callback = backup(tmp_path)
    train(make(batch_size=2 * BATCH), 2, callback)
    written = capfd.readouterr().err
    (line,) = [line for line in written.splitlines() if "warning: the data differs" in line]
    assert ("batch size 4 -> 8" if make is arrays else "batches 12 -> 6") in line
    assert ("elements" in line) == (make is fixed)  # an axis of the batch size says no more than the batch size
    assert callback.level == "state"
    assert "iterator=skip " in written


@pytest.mark.parametrize(
    ("make", "count"),
    [(arrays, N_SAMPLES // 2), (arrays, 2 * N_SAMPLES), (dataset, N_SAMPLES // 2)],
    ids=["fewer arrays", "more arrays", "fewer in a dataset"],
)
def test_another_number_of_samples_within_an_epoch_is_reported_and_trains(
    make: Any, count: int, train: Any, tmp_path: Path, capfd: Any
) -> None:
    with pytest.raises(Killed):
        train(make(), 3, KillAt(STEPS + 7), backup(tmp_path))
    capfd.readouterr()
    train(make(count), 3, backup(tmp_path))
    lines = [line for line in capfd.readouterr().err.splitlines() if "warning: the data differs" in line]
    assert len(lines) == 1
    assert (f"samples 48 -> {count}" if make is arrays else f"batches 12 -> {count // BATCH}") in lines[0]


def test_with_another_batch_size_no_sample_is_trained_on_twice(train: Any, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(arrays(), 1, KillAt(9), backup(tmp_path))
    model = train(arrays(batch_size=2 * BATCH), 1, backup(tmp_path))
    assert count_of(model) == 8 + (STEPS - 8) // 2


def test_weights_of_samples_that_are_new_within_an_epoch_are_reported(train: Any, tmp_path: Path, capfd: Any) -> None:
    with pytest.raises(Killed):
        train(arrays(), 2, KillAt(STEPS + 7), backup(tmp_path))
    capfd.readouterr()
    train(arrays(), 2, backup(tmp_path), sample_weight=np.ones(N_SAMPLES))
    assert "the data differs from that of the checkpoint (elements " in capfd.readouterr().err


def test_a_seeded_order_of_batches_of_another_size_is_reported(fit: Any, tmp_path: Path, capfd: Any) -> None:
    with pytest.raises(Killed):
        fit(small(), rows(50), 1, KillAt(7), backup(tmp_path))
    capfd.readouterr()
    fit(small(), rows(40), 1, backup(tmp_path))
    assert "the data differs from that of the checkpoint (samples 50 -> 40)" in capfd.readouterr().err


@pytest.mark.parametrize("make", [keras.optimizers.Adam, loss_scaled], ids=["plain", "loss scaled"])
def test_a_restored_learning_rate_that_is_not_the_compiled_one_is_reported(
    make: Any, fit: Any, tmp_path: Path, capfd: Any
) -> None:
    fit(small(make(0.01)), rows(), 1, backup(tmp_path))
    capfd.readouterr()
    fit(small(make(0.001)), rows(), 2, backup(tmp_path))
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "learning rate" in line]
    assert line.startswith(
        "hpcckpt: the learning rate is 0.01, restored from the checkpoint, not 0.001, which the program compiled;"
    )
    fit(small(make(0.01)), rows(), 3, backup(tmp_path))
    assert "learning rate" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("then", "n_ranks", "of_rank", "steps", "batch"),
    [({"data": {"batch size": 5, "samples": 50}}, 3, lambda rank: {"batch size": 5, "samples": 34 - (rank > 0)}, 7, 4),
     ({"data": {"batch size": 5, "samples": 50}}, 1, lambda _: {"batch size": 5, "samples": 50}, 10, 6),
     ({}, 1, lambda _: {}, 5, 3), ({}, 1, lambda _: {}, None, 12), ({}, 4, lambda _: {}, 20, 12)],
    ids=["arrays in uneven parts", "the same arrays", "steps do not change", "unknown steps", "more steps"],
)  # fmt: skip
def test_all_ranks_of_another_number_begin_at_the_same_part_of_the_epoch(
    then: Any, n_ranks: int, of_rank: Any, steps: int | None, batch: int
) -> None:
    was = {"epoch": 2, "batch": 3 if not then else 6, "step": 30, "steps": 5 if not then else 10, "iterator": then}
    if steps is None:
        was["batch"], was["steps"] = 6, None
    restored: Any = SimpleNamespace(objects=was, n_ranks=2)

    def begin(comm: Any) -> tuple[int, int]:
        source = SimpleNamespace(data=of_rank(comm.rank))
        training: Any = SimpleNamespace(data=None, data_source=source)
        own = steps if steps is None else steps - (comm.rank > 0)
        found = fit_position(restored, training, comm, own, None)
        return found.epoch, found.batch

    assert run_ranks(n_ranks, begin) == [(2, batch)] * n_ranks


def test_a_callback_that_only_rank_0_has_is_not_missed_on_another_number_of_ranks() -> None:
    training = Training(small())
    training.restore_target()
    saved = callback_state.take(
        {"ModelCheckpoint": keras.callbacks.ModelCheckpoint("best.weights.h5", save_weights_only=True)}
    )
    training._parts["callbacks"].value = saved
    lost = {rank: _lost_on(training, rank) for rank in range(2)}
    assert lost == {0: ["callbacks that are not there now: ModelCheckpoint"], 1: []}


def _lost_on(training: Training, rank: int) -> list[str]:
    training._identity = (1, 1, 2, rank)
    return training.set_callbacks()


@pytest.mark.usefixtures("keras_2")
def test_the_reason_that_is_dropout_names_what_to_call_with_keras_2() -> None:
    dropout = traced_steps.Operation("RandomUniform", "dropout/random_uniform/RandomUniform")
    (reason,) = traced_steps._of_operations([dropout])
    assert "call hpcckpt.enable_exact_resume before the model is built" in reason
    assert "SeedGenerator" not in reason


@pytest.mark.parametrize("make", [arrays, dataset, fixed])
def test_data_that_is_the_same_is_not_reported_to_differ(make: Any, train: Any, tmp_path: Path, capfd: Any) -> None:
    with pytest.raises(Killed):
        train(make(), 2, KillAt(STEPS + 7), backup(tmp_path))
    train(make(), 2, backup(tmp_path))
    assert "the data differs" not in capfd.readouterr().err
