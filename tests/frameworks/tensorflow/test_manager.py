"""`CheckpointManager` does what TensorFlow's does, and what ours promise besides."""

from __future__ import annotations

import inspect
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.core import failpoints
from hpcckpt.errors import CorruptError, NewerStepError, NoRestorableStepError, OptionError, StateError
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.rundir.pins import pins
from hpcckpt.tensorflow import Checkpoint, CheckpointManager
from tests.support.undrained import killed_before_the_first_drain

KINDS = {"TensorFlow's": tf.train.CheckpointManager, "ours": CheckpointManager}


def number(path: str | None) -> int | None:
    return None if path is None else int(path.rpartition("-")[2])


class Run:
    """A program that trains one number, with either manager."""

    def __init__(self, kind: str, directory: Any, max_to_keep: int | None = 3, **options: Any) -> None:
        self.step, self.w = tf.Variable(0, dtype=tf.int64), tf.Variable(0.0)
        self.checkpoint = Checkpoint(step=self.step, w=self.w)
        counter = {"step_counter": self.step} if "checkpoint_interval" in options else {}
        self.manager = KINDS[kind](self.checkpoint, directory, max_to_keep, **options, **counter)

    def train(self, steps: int, **how: Any) -> list[int | None]:
        saved = []
        for _ in range(steps):
            self.step.assign_add(1)
            self.w.assign_add(0.5)
            saved.append(number(self.manager.save(**how)))
        return saved

    def kept(self) -> tuple[int | None, list[int | None]]:
        self.manager.sync()
        return number(self.manager.latest_checkpoint), [number(path) for path in self.manager.checkpoints]

    def close(self) -> None:
        if isinstance(self.manager, CheckpointManager):
            self.manager.close()


# -- one story after the other, told by both managers ----------------------------------------------


def numbers_and_retention(run: Run, again: Any) -> Any:
    return run.train(5), run.kept(), int(run.checkpoint.save_counter)


def intervals(run: Run, again: Any) -> Any:
    first, same, early = run.train(7), number(run.manager.save()), number(run.manager.save(check_interval=False))
    run.step.assign_add(1)
    return (
        first,
        same,
        early,
        number(run.manager.save(check_interval=False)),
        run.kept(),
        run.manager.checkpoint_interval,
    )


def own_numbers(run: Run, again: Any) -> Any:
    counter = tf.Variable(100)
    saved = [number(run.manager.save(checkpoint_number=counter)), number(run.manager.save(checkpoint_number=107))]
    return saved, int(counter), int(run.checkpoint.save_counter), run.kept()


def the_same_number_again(run: Run, again: Any) -> Any:
    run.train(2, checkpoint_number=5)
    run.kept()
    other = again()
    return number(other.manager.restore_or_initialize()), float(other.w), other.kept()


def going_on(run: Run, again: Any) -> Any:
    run.train(4)
    run.kept()
    run.close()
    other = again()
    before = other.kept(), other.manager.restore_or_initialize() is not None, float(other.w), int(other.step)
    return before, other.train(2), other.kept()


def restoring_what_is_latest(run: Run, again: Any) -> Any:
    run.train(2)
    run.kept()
    other = again()
    other.checkpoint.restore(other.manager.latest_checkpoint).assert_consumed()
    return float(other.w), int(other.checkpoint.save_counter)


def nothing_to_restore(run: Run, again: Any) -> Any:
    called: list[int] = []
    other = again(init_fn=lambda: called.append(1))
    found = other.manager.restore_or_initialize(), other.manager.latest_checkpoint, other.manager.checkpoints
    return found, called, run.manager.restore_or_initialize()


def after_a_resume_the_interval_counts_from_there(run: Run, again: Any) -> Any:
    run.train(4)
    run.kept()
    run.close()
    other = again(checkpoint_interval=3)
    other.manager.restore_or_initialize()
    return other.train(5), other.kept()


STORIES = {
    numbers_and_retention: {},
    intervals: {"checkpoint_interval": 3},
    own_numbers: {},
    the_same_number_again: {},
    going_on: {"max_to_keep": 2},
    restoring_what_is_latest: {},
    nothing_to_restore: {},
    after_a_resume_the_interval_counts_from_there: {"checkpoint_interval": 3, "max_to_keep": None},
}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_it_does_what_tensorflows_does(story, tmp_path):
    told = []
    for kind in KINDS:
        runs: list[Run] = []

        def again(kind: str = kind, runs: list[Run] = runs, **options: Any) -> Run:
            runs.append(Run(kind, tmp_path / kind, **{**STORIES[story], **options}))
            return runs[-1]

        told.append(story(again(), again))
        for run in runs:
            run.close()
    assert told[0] == told[1]


def test_one_of_those_that_go_is_kept_every_so_many_hours(tmp_path, monkeypatch):
    """TensorFlow's bookkeeping against ours, two programs that save every half hour."""
    begun, kept = time.time(), []
    for kind, clock in {"TensorFlow's": "time.time", "ours": "hpcckpt.tensorflow.retention.now"}.items():
        passed = [0.0]
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(clock, lambda passed=passed: begun + passed[0])
                run = Run(kind, tmp_path / kind, 2, keep_checkpoint_every_n_hours=2)
                run.manager.restore_or_initialize()
                for _ in range(8):
                    passed[0] += 1800.0
                    run.train(1)
                    run.kept()
            listed = run.kept()
            run.close()
        pattern = "step-*" if kind == "ours" else "ckpt-*.index"
        kept.append((sorted(number(path.stem) for path in (tmp_path / kind).glob(pattern)), listed))
    assert kept[0] == kept[1]
    assert len(kept[1][0]) > 3


def test_it_takes_tensorflows_arguments_by_their_names_and_places():
    for method in ("__init__", "save", "restore_or_initialize", "sync"):
        theirs = inspect.signature(getattr(tf.train.CheckpointManager, method)).parameters
        ours = inspect.signature(getattr(CheckpointManager, method)).parameters
        shown = {name: p.default for name, p in theirs.items()}
        assert list(shown.items()) == [(name, ours[name].default) for name in list(ours)[: len(shown)]]
    public = {name for name in vars(tf.train.CheckpointManager) if not name.startswith("_")}
    assert public <= set(dir(CheckpointManager))


@pytest.mark.parametrize("options", [{"max_to_keep": 0}, {"max_to_keep": 2, "checkpoint_interval": 3}])
@pytest.mark.parametrize("kind", KINDS)
def test_it_refuses_what_tensorflows_refuses(kind, options, tmp_path):
    with pytest.raises(ValueError, match=r"max_to_keep|step_counter") as caught:
        KINDS[kind](tf.train.Checkpoint(), tmp_path, **options)
    assert kind != "ours" or isinstance(caught.value, OptionError)


# -- what ours promises besides ------------------------------------------------------------------


def test_a_damaged_checkpoint_is_passed_over(run_dir, damage):
    run = Run("ours", run_dir)
    run.train(3)
    run.kept()
    damage.flip(damage.first_file(Path(run.manager.latest_checkpoint)), -1)
    run.close()
    with (other := Run("ours", run_dir)).manager as manager:
        assert number(manager.restore_or_initialize()) == 2
        assert (int(other.step), other.train(1)) == (2, [3])
    assert hc.latest_checkpoint(run_dir).name == "step-0000000003"


def test_where_all_is_damaged_it_does_not_begin_anew(run_dir, damage):
    run = Run("ours", run_dir)
    run.train(2)
    run.close()
    for path in run_dir.glob("step-*"):
        damage.flip(damage.first_file(path), -1)
    called: list[int] = []
    with Run("ours", run_dir, init_fn=lambda: called.append(1)).manager as manager:
        with pytest.raises(NoRestorableStepError):
            manager.restore_or_initialize()
        with pytest.raises(CorruptError):
            manager.restore(2)
    with Run("ours", run_dir).manager as manager, pytest.raises(NoRestorableStepError, match="verify"):
        manager.latest_checkpoint  # noqa: B018 - a property; checkpoint.restore(None) would begin at 0
    assert called == []


def test_a_checkpoint_that_tensorflow_wrote_is_restored_too(tmp_path):
    theirs = Run("TensorFlow's", tmp_path / "theirs")
    theirs.train(2)
    with (run := Run("ours", tmp_path / "ours")).manager as manager:
        manager.restore(theirs.manager.latest_checkpoint).assert_consumed()
        assert (float(run.w), int(run.checkpoint.save_counter)) == (1.0, 2)


def test_any_step_of_any_directory_can_be_restored(tmp_path):
    with (run := Run("ours", tmp_path / "a")).manager as manager:
        paths = [manager.save(objects={"note": n}) for n in range(3) if run.w.assign(n) is not None]
        manager.restore(2).assert_consumed()
        assert (float(run.w), manager.restored.objects["note"]) == (1.0, 1)
        manager.restore(paths[0])
        assert float(run.w) == 0.0
        with (other := Run("ours", tmp_path / "b")).manager as elsewhere:
            assert elsewhere.latest_checkpoint is None
            elsewhere.restore(paths[2]).assert_consumed()
            assert float(other.w) == 2.0


def test_after_going_back_newer_checkpoints_are_not_written_over(run_dir):
    with (run := Run("ours", run_dir)).manager as manager:
        run.train(3)
        manager.restore(1)
        with pytest.raises(NewerStepError, match="on_newer"):
            _ = manager.save(), manager.sync()
    with (run := Run("ours", run_dir, on_newer="aside")).manager as manager:
        manager.restore(1)
        run.train(1)
        assert run.kept() == (2, [1, 2])


def test_a_model_itself_can_be_managed_and_variables_may_come_later(run_dir):
    module = tf.Module()
    module.w = tf.Variable([1.0, 2.0])
    with CheckpointManager(module, run_dir, 1) as manager:
        path = manager.save()
    assert manager.latest_checkpoint == path
    blank = tf.Module()
    with CheckpointManager(blank, run_dir, 1) as manager:
        assert number(manager.restore_or_initialize()) == 1
    blank.w = tf.Variable([0.0, 0.0])
    assert blank.w.numpy().tolist() == [1.0, 2.0]


def test_within_a_tf_function_it_says_what_to_do(run_dir):
    with Run("ours", run_dir).manager as manager:
        with pytest.raises(StateError, match="between two calls"):
            tf.function(lambda: manager.save() and 1, autograph=False)()
        assert manager.latest_checkpoint is None


def test_with_scratch_checkpoints_are_listed_once_they_are_in_the_run_directory(tmp_path, request):
    held = threading.Event()
    failpoints.install_hook(lambda phase, _rank: held.wait(60) if phase == "drain-begun" else None)
    request.addfinalizer(lambda: failpoints.install_hook(None))
    run = Run("ours", tmp_path / "run", 2, scratch=tmp_path / "scratch", scratch_bandwidth=1e9)
    assert run.train(1) == [1]
    run.manager._checkpointer.wait()
    assert (run.manager.latest_checkpoint, step_numbers(tmp_path / "run")) == (None, [])
    held.set()
    run.train(3)
    assert run.kept() == (4, [3, 4])
    shutil.rmtree(tmp_path / "scratch")
    assert step_numbers(tmp_path / "run") == [3, 4]
    with (other := Run("ours", tmp_path / "run", 2)).manager as manager:
        assert number(manager.restore_or_initialize()) == 4
        assert float(other.w) == 2.0


def test_a_checkpoint_that_a_killed_job_left_on_scratch_is_restored_and_drained(tmp_path):
    run_dir, scratch = tmp_path / "run", tmp_path / "scratch"
    with killed_before_the_first_drain(run_dir, scratch), (run := Run("ours", run_dir, scratch=scratch)).manager:
        run.train(1)
    assert step_numbers(run_dir) == []
    with (other := Run("ours", run_dir, scratch=scratch)).manager as manager:
        assert number(manager.restore_or_initialize()) == 1
        assert other.train(1) == [2]
        assert other.kept() == (2, [1, 2])


def test_best_checkpoints_are_kept_by_a_metric(run_dir):
    with CheckpointManager(tf.train.Checkpoint(w=tf.Variable(1.0)), run_dir, 1, keep_best="max:accuracy") as manager:
        for accuracy in (0.5, 0.9, 0.7):
            manager.save(metrics={"accuracy": accuracy})
    assert sorted(path.name[-1] for path in run_dir.glob("step-*")) == ["2", "3"]


def test_the_best_are_among_the_checkpoints_for_as_long_as_they_stay(run_dir):
    def manager():
        return CheckpointManager(tf.train.Checkpoint(w=tf.Variable(1.0)), run_dir, 2, keep_best="min:loss")

    def kept(manager):
        manager.sync()
        listed = [number(path) for path in manager.checkpoints]
        assert listed == step_numbers(run_dir)
        return listed

    with manager() as first:
        for loss in (1.0, 2.0, 3.0, 4.0):
            first.save(metrics={"loss": loss})
        assert kept(first) == [1, 3, 4]
    with manager() as second:
        assert kept(second) == [1, 3, 4]
        second.save(5)
        assert kept(second) == [1, 4, 5]
        second.save(6, metrics={"loss": 0.5})
        assert kept(second) == [5, 6]


def test_the_best_are_not_taken_for_checkpoints_that_go_and_kept_for_good(run_dir):
    keeping = {"keep_best": "min:loss", "keep_checkpoint_every_n_hours": 1e-9}
    with CheckpointManager(tf.train.Checkpoint(w=tf.Variable(1.0)), run_dir, 2, **keeping) as manager:
        for loss in (0.0, 1.0, 2.0):
            manager.save(metrics={"loss": loss})
    assert pins(run_dir) == set()


@pytest.mark.counts(2)
@pytest.mark.parametrize("given_to", ["checkpoint", "manager"])
def test_a_checkpoint_is_restored_by_the_ranks_that_it_or_its_manager_was_given(ranks, run_dir, given_to):
    """Each rank has its own stream, so one rank alone cannot restore it."""

    def body(comm):
        given = {given_to: {"comm": comm}}
        rng = tf.random.Generator.from_seed(comm.rank)
        checkpoint = Checkpoint(rng=rng, **given.get("checkpoint", {}))
        with CheckpointManager(checkpoint, run_dir, 1, **given.get("manager", {})) as manager:
            manager.save()
            manager.sync()
            expected = rng.normal([2]).numpy().tolist()
            checkpoint.restore(manager.latest_checkpoint)
            return rng.normal([2]).numpy().tolist() == expected

    assert ranks(body) == [True, True]


@pytest.mark.counts(1, 2, 5)
def test_ranks_save_and_restore_together(ranks, run_dir):
    def body(comm):
        run = Run("ours", run_dir, 2, comm=comm, keep_checkpoint_every_n_hours=0.0)
        run.train(3)
        seen = run.kept()
        run.close()
        other = Run("ours", run_dir, 2, comm=comm)
        path = other.manager.restore_or_initialize()
        other.close()
        return number(path), float(other.w), seen

    assert ranks(body) == [(3, 1.5, (3, [2, 3]))] * ranks.size


# -- a program that changes one import -----------------------------------------------------------


def test_a_plain_checkpoint_restores_what_our_manager_saved(run_dir: Path) -> None:
    w = tf.Variable(1.0)
    checkpoint = tf.train.Checkpoint(w=w)
    with CheckpointManager(checkpoint, run_dir, 3) as manager:
        manager.save()
        manager.sync()
        w.assign(2.0)
        checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    assert float(w) == 1.0
    assert type(tf.train.Checkpoint(w=w)) is tf.train.Checkpoint  # others are as they were


def test_checkpoints_of_tensorflow_in_the_directory_are_named_until_there_is_a_step(run_dir: Path, caplog: Any) -> None:
    w = tf.Variable(1.0)
    checkpoint = tf.train.Checkpoint(w=w)
    tf.train.CheckpointManager(checkpoint, run_dir, 3).save()
    w.assign(2.0)
    for n_logged in (1, 1):
        with CheckpointManager(checkpoint, run_dir, 3) as manager:
            manager.restore(manager.latest_checkpoint or tf.train.latest_checkpoint(run_dir))
            manager.save()
        assert sum("has checkpoints that TensorFlow wrote" in each.getMessage() for each in caplog.records) == n_logged
    assert float(w) == 1.0


def test_a_plain_checkpoint_still_reads_and_writes_tensorflows_files(tmp_path: Path) -> None:
    w = tf.Variable(1.0)
    checkpoint = tf.train.Checkpoint(w=w)
    with CheckpointManager(checkpoint, tmp_path / "run", 3):
        path = checkpoint.save(str(tmp_path / "theirs"))
        w.assign(2.0)
        checkpoint.restore(path).assert_consumed()
    assert float(w) == 1.0


def test_a_run_directory_is_refused_with_the_call_that_restores_it(run_dir: Path) -> None:
    checkpoint = Checkpoint(w=tf.Variable(1.0))
    with CheckpointManager(checkpoint, run_dir, 3) as manager:
        manager.save()
        manager.sync()
        for restore in (checkpoint.restore, manager.restore):
            with pytest.raises(OptionError, match=r"checkpoint\.restore\(hpcckpt\.latest_checkpoint\("):
                restore(str(run_dir))
