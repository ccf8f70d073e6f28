"""What `BackupAndRestore` can be asked for, and what it promises: levels, ways through the data, statistics, forks."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt import tiers
from hpcckpt.checkpointer import shutdown
from hpcckpt.collective.communicator import SerialCommunicator
from hpcckpt.core.weak import living
from hpcckpt.errors import OptionError, StepNotFoundError
from hpcckpt.keras import BackupAndRestore, ModelCheckpoint
from hpcckpt.keras.callbacks import reproducibility
from hpcckpt.keras.data import skip_progress
from hpcckpt.keras.model import batch_norm
from hpcckpt.preemption import Halt, Preempted, write_halt
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir.discovery import scan
from hpcckpt.state import random_streams
from tests.support.keras.models import IS_KERAS_3, assert_equal, rows, small, values
from tests.support.undrained import killed_before_the_first_drain

HERE = Path(__file__).parent
STEPS = 10
Fit = Callable[..., Any]


def backup(directory: Path, **options: Any) -> BackupAndRestore:
    return BackupAndRestore(directory, **{"delete_checkpoint": False, "verbose": 0, "max_to_keep": None, **options})


def manifest_of(directory: Path, step: int) -> Any:
    return next(info.manifest for info in scan(directory) if info.step == step)


# -- to the bit ------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
def test_killed_by_sigkill_amid_an_epoch_the_weights_end_with_the_same_sha_256(tmp_path: Path) -> None:
    def job(*args: Any) -> tuple[int, str, str]:
        command = [sys.executable, "-W", "ignore", str(HERE / "job_exact.py"), *map(str, args)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=290, check=False)
        return ended.returncode, ended.stdout, ended.stderr

    straight = job(tmp_path / "straight")
    killed = job(tmp_path / "killed", 17)
    resumed = job(tmp_path / "killed")
    assert killed[0] == -signal.SIGKILL
    assert "level=exact epochs=5 steps=50" in straight[1]  # EarlyStopping has ended it
    assert resumed[:2] == straight[:2]
    assert "hpcckpt: resume step=" in resumed[2]
    assert "hpcckpt: resume step=" not in straight[2]


# -- levels ----------------------------------------------------------------------------------------


def test_the_level_is_written_once_with_the_reason_and_stored(run_dir: Path, fit: Fit, capfd: Any) -> None:
    callback = backup(run_dir, verbose=1)
    fit(small(), rows(), 2, callback)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("hpcckpt: next resume level=")]
    why = "because deterministic operations are off"
    remedy = "for level=exact call hpcckpt.enable_exact_resume(seed=1) before the model is built"
    assert lines == [f"hpcckpt: next resume level=state iterator=replayed {why}; {remedy}"]
    saved = manifest_of(run_dir, 20)
    assert saved.level == callback.level == "state"
    assert saved.objects["user"]["exactness"] == {"level": "state", "reasons": callback.reasons}


def test_where_all_is_deterministic_the_level_is_exact(run_dir: Path, fit: Fit, monkeypatch: Any) -> None:
    monkeypatch.setattr(reproducibility, "_of_program", list)
    callback = backup(run_dir)
    fit(small(), rows(), 1, callback)
    assert (callback.level, callback.reasons, manifest_of(run_dir, 10).level) == ("exact", [], "exact")


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 has no legacy optimizers")
@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop"])
def test_legacy_optimizers_are_exact_too(run_dir: Path, fit: Fit, monkeypatch: Any, name: str) -> None:
    monkeypatch.setattr(reproducibility, "_of_program", list)
    model, callback = small(), backup(run_dir)
    model.compile(getattr(tf.keras.optimizers.legacy, name)(0.1), "mse")
    fit(model, rows(), 1, callback)
    assert (callback.level, callback.reasons) == ("exact", [])


def test_without_a_seed_a_run_cannot_be_repeated(monkeypatch: Any) -> None:
    monkeypatch.setattr(reproducibility, "is_seeded", lambda: False)
    assert "no seed was set" in reproducibility.reasons_against_exact(small(), None, "rank0", 1)
    with pytest.raises(OptionError, match="needs a seed"):
        hc.enable_exact_resume()


def test_on_several_ranks_statistics_and_horovods_fusion_count_too(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "horovod", object())
    monkeypatch.delenv("HOROVOD_FUSION_THRESHOLD", raising=False)
    of_ranks = "; ".join(reproducibility.reasons_against_exact(small(), None, "rank0", 2))
    assert "batch_norm='rank0' makes the statistics of all ranks equal" in of_ranks
    assert "HOROVOD_FUSION_THRESHOLD is not 0" in of_ranks
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    assert "ranks" not in "; ".join(reproducibility.reasons_against_exact(small(), None, "per-rank", 2))


# -- the way through the data ----------------------------------------------------------------------


def python_rows() -> Any:
    x, y = rows()
    signature = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32))
    data = tf.data.Dataset.from_generator(lambda: iter(zip(x, y, strict=True)), output_signature=signature)
    return data.batch(5).apply(tf.data.experimental.assert_cardinality(STEPS))


def test_where_exact_is_impossible_the_reason_is_given_and_what_to_do(run_dir: Path) -> None:
    callback = backup(run_dir, iterator="exact")
    with pytest.raises(OptionError, match=r"iterator='exact' is not possible with this data: .*use iterator='auto'"):
        small().fit(python_rows(), epochs=1, verbose=0, shuffle=False, callbacks=[callback])
    callback.close()


def test_what_is_skipped_is_told_of_and_why(run_dir: Path, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.setattr(skip_progress, "PATIENCE_S", -1.0)
    for epochs in (1, 2):
        small().fit(
            python_rows(), epochs=epochs, verbose=0, shuffle=False, callbacks=[backup(run_dir, save_freq=4, verbose=1)]
        )
    said = capfd.readouterr().err
    assert "hpcckpt: skipped batches=8" in said
    assert "epoch=0 batch=8" in said
    assert "iterator=skip " in said
    assert "data is skipped, not restored: " in said


def test_skip_is_skipped_though_it_could_be_exact(run_dir: Path, fit: Fit) -> None:
    callback = backup(run_dir, iterator="skip")
    fit(small(), rows(), 1, callback)
    assert callback.reasons[-1] == "data is skipped, not restored: iterator='skip' was asked for"


@pytest.mark.parametrize(
    "options", [{"iterator": "perhaps"}, {"batch_norm": "median"}, {"state": {"model": np.ones(1)}}]
)
def test_what_cannot_be_asked_for_is_refused(options: Any, run_dir: Path) -> None:
    with pytest.raises(OptionError):
        BackupAndRestore(run_dir, **options)


# -- statistics of BatchNorm -----------------------------------------------------------------------

MEAN = "model/batch_normalization/moving_mean"
OF_RANKS = (1.0, 4.0)


def moving_mean(model: Any) -> Any:
    return next(weight for weight in model.weights if "moving_mean" in (weight.path if IS_KERAS_3 else weight.name))


def save_and_restore(group: Any, run_dir: Path, policy: Any) -> list[float]:
    """Save on two ranks whose statistics differ; return what each has after a restore."""
    models = [small() for _ in OF_RANKS]

    def body(comm: Any) -> float:
        model, mean = models[comm.rank], moving_mean(models[comm.rank])
        mean.assign(np.full(3, OF_RANKS[comm.rank], "float32"))
        batch_norm.choose(model, policy)
        with hc.Checkpointer(run_dir, comm) as ckpt:
            batch_norm.average(model, ckpt.comm)
            ckpt.save(1, {"model": model}).result()
            assert float(np.asarray(mean)[0]) == OF_RANKS[comm.rank]  # training goes on with its own
            mean.assign(np.zeros(3, "float32"))
            ckpt.restore({"model": model})
        return float(np.asarray(mean)[0])

    found: list[float] = group(2, body)
    return found


@pytest.mark.parametrize(("policy", "expected"), [("rank0", [1, 1]), ("mean", [2.5, 2.5]), ("per-rank", [1, 4])])
def test_statistics_are_those_of_rank_0_their_mean_or_each_ranks_own(
    policy: Any, expected: Any, group: Any, run_dir: Path
) -> None:
    assert save_and_restore(group, run_dir, policy) == expected


def test_statistics_of_each_rank_give_way_to_rank_0s_on_another_number_of_ranks(group: Any, run_dir: Path) -> None:
    save_and_restore(group, run_dir, "per-rank")
    model = small()
    batch_norm.choose(model, "per-rank")
    batch_norm.fill_from_rank_0(model, "model", open_step(run_dir / "step-0000000001"))
    assert np.asarray(moving_mean(model)).tolist() == [1.0] * 3


# -- random streams on other ranks -----------------------------------------------------------------


def test_ranks_that_had_no_streams_are_given_new_ones_that_can_be_repeated() -> None:
    drawn = []
    for identity in ((1, 2, 0), (1, 2, 1), (1, 2, 0)):
        random_streams.derive_streams(*identity)
        drawn.append(np.random.random())  # noqa: NPY002 - the stream that old programs share
    assert drawn[0] == drawn[2] != drawn[1]


# -- another run's step ----------------------------------------------------------------------------


def test_a_fork_begins_with_another_runs_step_and_leaves_that_run_as_it_is(run_dir: Path, fit: Fit) -> None:
    straight = small()
    fit(straight, rows(), 3, backup(run_dir / "old"))
    fork, callback = small(seed=9), backup(run_dir / "new", fork_from=run_dir / "old" / "step-0000000020")
    fit(fork, rows(), 3, callback)
    assert [info.step for info in scan(run_dir / "new")] == [30]
    assert [info.step for info in scan(run_dir / "old")] == [10, 20, 30]
    assert_equal(values(fork), values(straight))


@pytest.mark.parametrize("source", ["best", "best/cp-2"])
def test_a_fork_from_a_step_of_model_checkpoint_begins_with_its_model(
    source: str, run_dir: Path, fit: Fit, capfd: Any
) -> None:
    trained, fork = small(), small(seed=9)
    fit(trained, rows(), 2, ModelCheckpoint(run_dir / "best" / "cp-{epoch}"))
    callback = backup(run_dir / "new", fork_from=run_dir / source, verbose=1)
    fit(fork, rows(), 2, callback)  # has nothing left to train
    assert (callback.epoch, callback.step) == (2, 20)
    assert_equal(values(fork), values(trained))
    assert "step-0000000020 holds a model only" in capfd.readouterr().err


def test_a_fork_from_a_model_that_other_ranks_saved_begins_with_it(group: Any, run_dir: Path, fit: Fit) -> None:
    trained, fork = small(), small(seed=9)
    fit(trained, rows(), 1)

    def save(comm: Any) -> None:
        with hc.Checkpointer(run_dir / "old", comm=comm) as ckpt:
            ckpt.save(20, {"model": trained}, objects={"epoch": 2}).result()

    group(2, save)
    fit(fork, rows(), 2, backup(run_dir / "new", fork_from=run_dir / "old"))
    assert_equal(values(fork), values(trained))


def test_a_fork_that_has_a_backup_of_its_own_goes_on_with_that(run_dir: Path, fit: Fit) -> None:
    for name, epochs in (("old", 1), ("new", 2)):
        fit(small(), rows(), epochs, backup(run_dir / name))
    callback = backup(run_dir / "new", fork_from=run_dir / "old")
    fit(small(), rows(), 2, callback)
    assert callback.step == 20


def test_a_fork_from_nowhere_is_refused(run_dir: Path, fit: Fit) -> None:
    with pytest.raises(StepNotFoundError, match="fork_from"):
        fit(small(), rows(), 1, backup(run_dir, fork_from=run_dir / "nowhere"))


# -- besides ---------------------------------------------------------------------------------------


def test_a_save_of_a_fit_that_was_interrupted_is_over_when_the_next_one_begins(run_dir: Path, fit: Fit) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 5:
                raise KeyboardInterrupt

    def in_flight() -> list[Any]:
        return [
            each for each in living(shutdown._open_sessions) if each.rundir.path == run_dir and each.queue.in_flight
        ]

    begun, again = (backup(run_dir, comm=SerialCommunicator(), save_freq=4) for _ in range(2))
    with pytest.raises(KeyboardInterrupt):
        small().fit(*rows(), epochs=2, batch_size=4, verbose=0, callbacks=[begun, Stop()])
    assert in_flight()
    fit(small(), rows(), 2, again)
    assert not in_flight()


def test_state_of_the_users_own_is_saved_and_restored(run_dir: Path, fit: Fit) -> None:
    counts = np.arange(3)
    fit(small(), rows(), 1, backup(run_dir, state={"counts": counts}))
    counts[:] = 0
    fit(small(), rows(), 1, backup(run_dir, state={"counts": counts}))
    assert counts.tolist() == [0, 1, 2]


def test_double_checkpoint_keeps_the_backup_before_the_last_one(run_dir: Path, fit: Fit) -> None:
    fit(small(), rows(), 3, backup(run_dir, double_checkpoint=True, max_to_keep=1))
    assert [info.step for info in scan(run_dir)] == [20, 30]


def test_with_scratch_the_backups_are_in_the_run_directory_when_the_training_ends(
    run_dir: Path, tmp_path: Path, fit: Fit
) -> None:
    fit(small(), rows(), 2, backup(run_dir, scratch=tmp_path / "scratch"))
    assert [info.step for info in scan(run_dir)] == [10, 20]
    assert 20 in {info.step for info in scan(tiers.scratch_directory(run_dir, tmp_path / "scratch"))}
    callback = backup(run_dir)
    fit(small(), rows(), 2, callback)
    assert callback.step == 20


def test_a_job_that_is_killed_before_its_first_backup_has_left_scratch_goes_on_there(
    run_dir: Path, tmp_path: Path, fit: Fit
) -> None:
    scratch = tmp_path / "scratch"
    with killed_before_the_first_drain(run_dir, scratch):
        fit(small(), rows(), 1, backup(run_dir, scratch=scratch))
    assert not [*scan(run_dir)]
    again = backup(run_dir, scratch=scratch)
    fit(small(), rows(), 2, again)
    assert again.restored is not None
    assert (again.restored.step, again.step) == (10, 20)
    assert [info.step for info in scan(run_dir)] == [10, 20]


class Halts(keras.callbacks.Callback):
    """Asks a run to stop, as ``hpcckpt halt`` does: behind a batch, or in a validation."""

    def __init__(self, directory: Path, batch: int = -1, *, in_validation: bool = False) -> None:
        super().__init__()
        self.directory, self.batch, self.in_validation = directory, batch, in_validation
        directory.mkdir()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self.batch:
            write_halt(self.directory, Halt(after_step=1))

    def on_test_begin(self, logs: Any = None) -> None:
        if self.in_validation:
            write_halt(self.directory, Halt(after_step=1))


WATCHED = {"signals": (), "halt_every_s": 1e-9}


def test_asked_to_stop_it_saves_this_very_step_and_exits_with_75(run_dir: Path, fit: Fit) -> None:
    with pytest.raises(Preempted) as caught:
        fit(small(), rows(), 2, Halts(run_dir, 6), backup(run_dir, save_before_preemption=WATCHED))
    assert caught.value.code == 75
    assert [info.step for info in scan(run_dir)] == [7]


def test_asked_to_stop_in_a_validation_it_stops_behind_it_with_its_metrics(run_dir: Path, fit: Fit) -> None:
    halts = Halts(run_dir, in_validation=True)
    with pytest.raises(Preempted):
        fit(small(), rows(), 2, halts, backup(run_dir, save_before_preemption=WATCHED), validation_data=rows(5))
    assert [info.step for info in scan(run_dir)] == [10]
    assert "val_loss" in manifest_of(run_dir, 10).metrics


@pytest.mark.parametrize("directory", ["", None])
def test_no_directory_is_refused_in_the_words_of_keras(directory: Any) -> None:
    with pytest.raises(ValueError, match="Empty `backup_dir` argument passed"):
        BackupAndRestore(directory)


@pytest.mark.parametrize("save_freq", ["batch", 0.15])
def test_an_unknown_save_freq_is_refused_in_the_words_of_keras(save_freq: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Invalid value for argument `save_freq`"):
        BackupAndRestore(tmp_path, save_freq=save_freq)
