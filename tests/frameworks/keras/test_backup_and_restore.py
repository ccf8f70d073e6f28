"""Killed anywhere, a run of ``fit`` resumes from its newest backup."""

from __future__ import annotations

import errno
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.errors import NoRestorableStepError, NoSpaceError, OptionError, StateMismatchError
from hpcckpt.keras import BackupAndRestore
from hpcckpt.rundir.discovery import scan
from hpcckpt.testing.faults import Fault, armed
from tests.support.keras.models import IS_KERAS_3, assert_equal, lenet5, rows, small, values

STEPS = 10  # in an epoch of 50 rows, 5 in a batch


class Killed(Exception):  # noqa: N818 - it is no error
    """Simulates SIGKILL."""


class KillAt(keras.callbacks.Callback):
    """Ends a run from outside, after N batches or epochs."""

    def __init__(self, batches: int = 0, epochs: int = 0) -> None:
        super().__init__()
        self.batches, self.epochs = batches, epochs

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches -= 1
        if self.batches == 0:
            raise Killed

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs -= 1
        if self.epochs == 0:
            raise Killed


class Diary(keras.callbacks.Callback):
    """Writes down how training looks before each batch that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.iterations: list[int] = []
        self.rates: list[float] = []
        self.epochs: list[int] = []
        self.weights: list[Any] = []
        self.batches: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.iterations.append(int(self.model.optimizer.iterations.numpy()))
        self.rates.append(float(self.model.optimizer.learning_rate.numpy()))
        self.weights.append(self.model.get_weights())
        self.batches.append(batch)


def saved_steps(directory: Path) -> list[int]:
    return [info.step for info in scan(directory)]


def backup(directory: Path, **options: Any) -> BackupAndRestore:
    return BackupAndRestore(directory, **{"max_to_keep": None, "delete_checkpoint": False, "verbose": 0, **options})


def run_until_killed(fit: Any, model: Any, callback: Any, epochs: int = 3, **when: int) -> None:
    """Train until it is killed; what it had begun to save by then is committed."""
    with pytest.raises(Killed):
        fit(model, rows(), epochs, callback, KillAt(**when))
    callback.close()


# -- when it saves -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [10, 20, 30]),
        ({"every_n_batches": 4}, [4, 8, 10, 12, 16, 20, 24, 28, 30]),
        ({"every_n_batches": 10}, [10, 20, 30]),
        ({"save_freq": 12}, [12, 24]),
        ({"save_freq": False, "every_n_batches": 7}, [7, 14, 21, 28]),
        ({"every_n_batches": 4, "max_to_keep": 2}, [28, 30]),
    ],
)
def test_it_saves_after_epochs_and_every_n_batches(options: Any, steps: Any, run_dir: Path, fit: Any) -> None:
    fit(small(), rows(), 3, backup(run_dir, **options))
    assert saved_steps(run_dir) == steps


def test_the_last_batch_of_an_epoch_is_not_saved_just_before_the_epoch(run_dir: Path, fit: Any, capfd: Any) -> None:
    fit(small(), rows(), 2, backup(run_dir, every_n_batches=5, verbose=1))
    steps = [line.split()[2] for line in capfd.readouterr().err.splitlines() if "saved" in line]
    assert steps == ["step=5", "step=10", "step=15", "step=20"]


def test_epochs_are_saved_with_their_metrics_after_validation(run_dir: Path, fit: Any) -> None:
    history = fit(small(), rows(), 2, backup(run_dir), validation_data=rows(20)).history
    metrics = [dict(info.manifest.metrics) for info in scan(run_dir) if info.manifest]
    assert [m["val_loss"] for m in metrics] == pytest.approx(history["val_loss"])
    assert [m["loss"] for m in metrics] == pytest.approx(history["loss"])


def test_the_best_step_is_kept(run_dir: Path, fit: Any) -> None:
    history = fit(small(), rows(), 4, backup(run_dir, max_to_keep=1, keep_best="max:loss")).history["loss"]
    assert int(np.argmax(history)) == 0  # it learns, so the first epoch has the largest loss
    assert saved_steps(run_dir) == [10, 40]


def test_a_run_of_several_steps_per_execution_saves_at_the_boundaries(run_dir: Path, fit: Any) -> None:
    model = small()
    model.compile("adam", "mse", steps_per_execution=5)
    fit(model, rows(), 2, backup(run_dir, every_n_batches=4))
    assert saved_steps(run_dir) == [5, 10, 15, 20]


def test_where_the_length_of_an_epoch_is_unknown_its_end_is_saved_once(run_dir: Path) -> None:
    signature = (tf.TensorSpec((5, 4), tf.float32), tf.TensorSpec((5, 1), tf.float32))
    x, y = rows()
    batches = [(x[i : i + 5], y[i : i + 5]) for i in range(0, 50, 5)]
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    with warnings.catch_warnings():  # Keras 3 warns at the end of data whose length it does not know
        warnings.simplefilter("ignore")
        small().fit(dataset, epochs=2, verbose=0, shuffle=False, callbacks=[backup(run_dir, every_n_batches=5)])
    steps = {info.step: info.manifest for info in scan(run_dir)}
    assert list(steps) == [5, 10, 15, 20]
    assert all("loss" in (steps[step].metrics if steps[step] else {}) for step in (10, 20))


# -- how it goes on ------------------------------------------------------------------------------


def test_it_restores_before_the_first_batch(run_dir: Path, fit: Any) -> None:
    first = small(keras.optimizers.Adam(0.2))
    run_until_killed(fit, first, backup(run_dir), epochs=2, batches=11)
    with hc.Checkpointer(run_dir) as ckpt:
        twin = small()
        ckpt.restore({"model": twin}, strict=False)
    diary = Diary()
    fit(small(keras.optimizers.Adam(0.01), seed=9), rows(), 2, backup(run_dir), diary)
    assert diary.iterations[0] == 10
    assert diary.rates[0] == pytest.approx(0.2)
    for restored, saved in zip(diary.weights[0], twin.get_weights(), strict=True):
        assert np.array_equal(restored, saved)


def test_a_run_killed_between_epochs_ends_as_if_never_killed(run_dir: Path, fit: Any) -> None:
    straight = small()
    fit(straight, rows(), 3)
    run_until_killed(fit, small(), backup(run_dir), epochs=3, batches=25)  # in epoch 2; epochs 0 and 1 are saved
    resumed, diary = small(seed=9), Diary()
    fit(resumed, rows(), 3, backup(run_dir), diary)
    assert diary.epochs == [2]
    assert_equal(values(resumed), values(straight))


def test_a_run_killed_within_an_epoch_counts_on(run_dir: Path, fit: Any) -> None:
    run_until_killed(fit, small(), backup(run_dir, every_n_batches=4), batches=19)
    callback, diary = backup(run_dir, every_n_batches=4), Diary()
    fit(small(), rows(), 3, callback, diary)
    assert callback.restored is not None
    assert callback.restored.step == 16
    assert diary.epochs == [1, 2]
    assert diary.iterations[-1] + 1 == callback.step == 3 * STEPS
    assert saved_steps(run_dir) == [4, 8, 10, 12, 16, 20, 24, 28, 30]


def test_what_is_due_behind_the_last_batch_is_saved_when_the_epoch_has_ended(run_dir: Path, fit: Any) -> None:
    run_until_killed(fit, small(), backup(run_dir, save_freq=5), batches=11)
    info = scan(run_dir)[-1]
    assert info.step == 10
    assert info.manifest is not None
    assert "loss" in info.manifest.metrics
    callback, diary = backup(run_dir, save_freq=5), Diary()
    fit(small(), rows(), 2, callback, diary)
    assert diary.epochs == [1]
    assert callback.step == 2 * STEPS


def test_a_finished_run_that_is_started_again_trains_no_more(run_dir: Path, fit: Any) -> None:
    fit(small(), rows(), 2, backup(run_dir))
    again, diary = small(seed=9), Diary()
    fit(again, rows(), 2, backup(run_dir), diary)
    assert diary.iterations == []
    assert int(again.optimizer.iterations.numpy()) == 2 * STEPS


def test_the_next_fit_of_the_same_model_begins_where_it_is_told(run_dir: Path, fit: Any) -> None:
    run_until_killed(fit, small(), backup(run_dir), batches=15)
    model, diary = small(), Diary()
    fit(model, rows(), 2, BackupAndRestore(run_dir, verbose=0))
    fit(model, rows(), 1, diary)
    assert diary.epochs == [0]
    assert diary.batches == list(range(STEPS))


@pytest.mark.usefixtures("keras_2")
def test_the_train_counter_goes_on(run_dir: Path, fit: Any) -> None:
    run_until_killed(fit, small(), backup(run_dir), batches=15)
    model = small()
    fit(model, rows(), 2, backup(run_dir))
    assert int(model._train_counter.numpy()) == 2 * STEPS


class CountedRows:
    """A pipeline that knows its position and trains each epoch in another order."""

    def __init__(self) -> None:
        self.epoch = self.batch = 0
        self.dealt: list[tuple[int, int]] = []

    def advance(self, n_batches: int) -> None:
        self.batch += n_batches
        self.epoch, self.batch = self.epoch + self.batch // STEPS, self.batch % STEPS

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]

    def _rows(self) -> Iterator[tuple[Any, Any]]:
        x, y = rows()
        epoch, first = self.epoch, self.batch
        while True:
            order = np.random.default_rng(epoch).permutation(len(x)).reshape(STEPS, -1)
            for number in range(first, STEPS):
                self.dealt.append((epoch, number))
                yield x[order[number]], y[order[number]]
            epoch, first = epoch + 1, 0

    def dataset(self) -> Any:
        signature = (tf.TensorSpec((5, 4), tf.float32), tf.TensorSpec((5, 1), tf.float32))
        return tf.data.Dataset.from_generator(self._rows, output_signature=signature)


def fit_counted(model: Any, callback: BackupAndRestore, data: CountedRows, *callbacks: Any) -> None:
    model.fit(
        data.dataset(), epochs=3, steps_per_epoch=STEPS, callbacks=[callback, *callbacks], verbose=0, shuffle=False
    )


def test_with_a_pipeline_with_a_position_a_kill_within_an_epoch_changes_nothing(run_dir: Path) -> None:
    straight, data = small(), CountedRows()
    fit_counted(straight, backup(run_dir / "straight", data=data), data)
    data = CountedRows()
    callback = backup(run_dir / "killed", every_n_batches=4, data=data)
    with pytest.raises(Killed):
        fit_counted(small(), callback, data, KillAt(batches=19))
    callback.close()
    resumed, data = small(seed=9), CountedRows()
    fit_counted(resumed, backup(run_dir / "killed", every_n_batches=4, data=data), data)
    assert data.dealt[0] == (1, 6)
    assert_equal(values(resumed), values(straight))


# -- what it leaves ------------------------------------------------------------------------------


def test_backups_are_deleted_when_training_ends_well(run_dir: Path, fit: Any) -> None:
    fit(small(), rows(), 2, BackupAndRestore(run_dir, verbose=0))
    assert not run_dir.exists()


def test_what_is_not_ours_is_not_deleted(run_dir: Path, fit: Any) -> None:
    run_dir.mkdir()
    (run_dir / "notes.txt").write_text("mine", encoding="utf-8")
    fit(small(), rows(), 2, BackupAndRestore(run_dir, verbose=0))
    assert saved_steps(run_dir) == []
    assert (run_dir / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_backups_stay_when_training_fails(run_dir: Path, fit: Any) -> None:
    run_until_killed(fit, small(), BackupAndRestore(run_dir, verbose=0), batches=15)
    assert saved_steps(run_dir) == [10]


def test_one_line_is_written_for_each_save_and_restore(run_dir: Path, fit: Any, capfd: Any) -> None:
    run_until_killed(fit, small(), backup(run_dir, verbose=1), batches=15)
    fit(small(), rows(), 2, backup(run_dir, verbose=1))
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("hpcckpt: ")]
    lines = [line for line in lines if not line.startswith("hpcckpt: level=state, reason ")]
    words = [line.split()[1].partition("=")[0] for line in lines]
    assert words == ["next", "saved", "resume", "next", "saved"]
    assert lines[1].startswith("hpcckpt: saved step=10 epoch=1 bytes=")
    for key in ("stall=", "total=", "bw=", "backend=rankfile", "files=1", "kept=1"):
        assert key in lines[1]
    assert f"resume step=10 epoch=1 batch=0 from={run_dir / 'step-0000000010'} ranks 1->1 level=state" in lines[2]
    assert lines[2].endswith("missing=0 unexpected=0")


# -- what it does when something is wrong --------------------------------------------------------


def test_a_save_that_fails_ends_training_and_leaves_the_last_backup(run_dir: Path, fit: Any) -> None:
    fit(small(), rows(), 1, backup(run_dir))
    full = Fault("2-write", "raise", error=OSError(errno.ENOSPC, "full"))
    with armed(full), pytest.raises(NoSpaceError):
        fit(small(), rows(), 2, backup(run_dir))
    assert saved_steps(run_dir) == [10]


@pytest.mark.filterwarnings("ignore:`build")  # Keras 3 notices it too
def test_a_layer_that_is_never_called_changes_nothing(run_dir: Path) -> None:
    class Subclassed(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first = keras.layers.Dense(1)
            self.never_called = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.first(inputs)

    def trained(epochs: int) -> Any:
        model = Subclassed()
        model.compile("sgd", "mse")
        model.fit(*rows(), epochs=epochs, verbose=0, callbacks=[backup(run_dir)])
        return model

    trained(1)
    assert saved_steps(run_dir) == [2]
    trained(2)
    assert saved_steps(run_dir) == [2, 4]


def test_another_model_is_refused(run_dir: Path, fit: Any) -> None:
    run_until_killed(fit, small(), backup(run_dir), batches=15)
    with pytest.raises(StateMismatchError, match=r"build the same model.* or load what fits, .*train in another dir"):
        lenet5().fit(np.zeros((5, 28, 28, 1)), np.zeros((5, 10)), callbacks=[backup(run_dir)], verbose=0)


def test_a_damaged_backup_is_passed_over_and_replaced(
    run_dir: Path, fit: Any, damage: Any, capfd: Any, caplog: Any
) -> None:
    run_until_killed(fit, small(), backup(run_dir), batches=25)
    damage.flip(damage.first_file(run_dir / "step-0000000020"), -1)
    callback = backup(run_dir, verbose=1)
    fit(small(), rows(), 3, callback)
    assert callback.restored is not None
    assert callback.restored.step == 10
    assert saved_steps(run_dir) == [10, 20, 30]
    assert [text.count("step 20 was skipped") for text in (caplog.text, capfd.readouterr().err)] == [1, 0]  # not twice


def test_if_all_backups_are_damaged_it_does_not_silently_begin_anew(run_dir: Path, fit: Any, damage: Any) -> None:
    run_until_killed(fit, small(), backup(run_dir), batches=15)
    damage.flip(run_dir / "step-0000000010" / "manifest.json", 40)
    with pytest.raises(NoRestorableStepError):
        fit(small(), rows(), 3, backup(run_dir))


@pytest.mark.parametrize(
    "options",
    [
        {"save_freq": False}, {"save_freq": "batch"}, {"save_freq": 5, "every_n_batches": 5}, {"save_freq": 0},
        {"every_n_batches": 0}, {"every_n_batches": -3}, {"save_freq": True},
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options: Any, run_dir: Path) -> None:
    with pytest.raises(OptionError):
        BackupAndRestore(run_dir, **options)


def test_keras_names_come_first_and_in_its_order() -> None:
    import inspect

    ours = list(inspect.signature(BackupAndRestore).parameters)[:3]
    kerases = list(inspect.signature(keras.callbacks.BackupAndRestore).parameters)
    assert [name for name in kerases if name in ours] == ours
    assert IS_KERAS_3 or kerases[:3] == ours


def test_what_it_says_at_the_end_does_not_open_the_run_directory_again(run_dir: Path, fit: Any, capfd: Any) -> None:
    callback = backup(run_dir, verbose=1)
    fit(small(), rows(), 2, callback)
    assert f"saved step={2 * STEPS}" in capfd.readouterr().err
    assert callback._saves._checkpointer is None


def test_every_n_minutes_alone_does_not_stop_for_the_end_of_the_job(run_dir: Path, fit: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("HPCCKPT_JOB_END", str(time.time() + 2))
    fit(small(), rows(), 2, backup(run_dir, every_n_minutes=1000))
    assert saved_steps(run_dir) == [STEPS, 2 * STEPS]
