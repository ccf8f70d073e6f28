"""Our `ModelCheckpoint` is played the same story as the one of the Keras that runs, and does and says the same."""

from __future__ import annotations

import copy
import errno
import functools
import inspect
import logging
import os
import re
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt import tiers
from hpcckpt.core import failpoints
from hpcckpt.errors import NoSpaceError
from hpcckpt.keras import BackupAndRestore, ModelCheckpoint
from hpcckpt.rundir.discovery import scan
from hpcckpt.testing.faults import Fault, armed
from tests.support.keras.models import IS_KERAS_3, rows, small
from tests.support.listing import listed
from tests.support.undrained import killed_before_the_first_drain

Theirs = keras.callbacks.ModelCheckpoint
Logs = Sequence[dict[str, Any]]
STEPS = 5
NAME = "cp-{epoch:02d}.ckpt"
THEIR_ENDING = ".weights.h5"
FALLING: Logs = [{"loss": 0.5, "val_loss": 0.4}, {"loss": 0.4, "val_loss": 0.6}, {"loss": 0.3, "val_loss": 0.2}]


@dataclass
class Outcome:
    """What a callback has done: names of what it saved, what it said, its best value, what it warned of."""

    names: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    best: float | None = None
    warned: list[str] = field(default_factory=list)


@functools.cache
def trained(number: int) -> Any:
    model = small()
    model.compile("adam", "mse", metrics=["accuracy"])
    model.fit(*rows(5), verbose=0)  # Keras 3 knows the metrics behind a step only
    return model


def model_of(number: int = 0) -> Any:
    """Return a model that has done no step; compiling one takes a second, so there are only a few."""
    trained(number).optimizer.iterations.assign(0)
    return trained(number)


def play(callback: Any, model: Any, logs: Logs, batches: Sequence[int] = range(STEPS)) -> None:
    """Play a callback the calls that ``fit`` would make."""
    callback.set_model(model)
    callback.on_train_begin()
    for epoch, of_epoch in enumerate(logs):
        callback.on_epoch_begin(epoch)
        done = 0
        for batch in batches:
            model.optimizer.iterations.assign_add(batch + 1 - done)
            done = batch + 1
            callback.on_train_batch_end(batch, {"loss": of_epoch.get("loss", 1.0)})
        callback.on_epoch_end(epoch, dict(of_epoch))
    callback.on_train_end()


def read_said(capsys: Any, directory: Path) -> list[str]:
    text = capsys.readouterr().out.replace(f"{directory}/", "").replace(THEIR_ENDING, ".ckpt")
    return sorted(line for line in text.splitlines() if line)  # ours says when it is finished a little later


@dataclass
class Stage:
    """Where both are played the same story."""

    place: Path
    capsys: Any
    caplog: Any
    patch: pytest.MonkeyPatch

    def _outcome(self, callback: Any, names: list[str], directory: Path, caught: Any) -> Outcome:
        texts = [str(each.message) for each in caught if "HDF5 file via" not in str(each.message)]
        texts += [record.getMessage() for record in self.caplog.records]
        self.caplog.clear()
        return Outcome(names, read_said(self.capsys, directory), callback.best, texts)

    def theirs(self, name: str, logs: Logs, batches: Sequence[int] = range(STEPS), **options: Any) -> Outcome:
        """Play Keras' own, which Keras 3 allows to save weights under one ending only; record what it would write."""
        model, names, directory = model_of(), [], self.place / "theirs"
        self.patch.setattr(model, "save", lambda path, **_: names.append(str(path)))
        self.patch.setattr(model, "save_weights", lambda path, **_: names.append(str(path)))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            callback = Theirs(str(directory / name.replace(".ckpt", THEIR_ENDING)), **options)
            play(callback, model, logs, batches)
        relative = [name.removeprefix(f"{directory}/").replace(THEIR_ENDING, ".ckpt") for name in names]
        return self._outcome(callback, relative, directory, caught)

    def ours(self, name: str, logs: Logs, batches: Sequence[int] = range(STEPS), **options: Any) -> Outcome:
        """Play ours."""
        directory = self.place / "ours"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            callback = ModelCheckpoint(directory / name, **options)
            play(callback, model_of(), logs, batches)
        return self._outcome(callback, names_in(directory), directory, caught)

    def both(self, name: str, logs: Logs, batches: Sequence[int] = range(STEPS), **options: Any) -> Outcome:
        """Play both, assert that they have done the same, and return what that was."""
        options.setdefault("save_weights_only", True)
        theirs, ours = (play(name, logs, batches, **options) for play in (self.theirs, self.ours))
        assert ours == theirs
        return ours


@pytest.fixture
def stage(tmp_path: Path, capsys: Any, caplog: Any, monkeypatch: Any) -> Stage:
    monkeypatch.setattr(logging.getLogger("tensorflow"), "propagate", True)  # it hands nothing on by itself
    model_of()
    caplog.clear()
    capsys.readouterr()
    return Stage(tmp_path, capsys, caplog, monkeypatch)


def names_in(directory: Path) -> list[str]:
    """Return what the steps of a directory are called, oldest first; each name opens its step."""
    names = [info.manifest.objects["user"]["checkpoint"]["name"] for info in scan(directory) if info.manifest]
    assert all((directory / name).resolve().name.startswith("step-") for name in names if name != ".")
    return names


def steps_in(directory: Path) -> list[int]:
    return [info.step for info in scan(directory)]


# -- Keras' own options, one by one ----------------------------------------------------------------


def test_all_of_keras_options_are_there_in_keras_order() -> None:
    ours = [name for name in inspect.signature(ModelCheckpoint).parameters if name != "options" or not IS_KERAS_3]
    theirs = [name for name in inspect.signature(Theirs).parameters if name != "kwargs"]
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("name", [NAME, "{epoch}/{loss:.2f}-{val_loss:.1f}.ckpt"])
def test_filepath_may_have_the_epoch_and_metrics_in_it(name: str, stage: Stage) -> None:
    assert len(stage.both(name, FALLING).names) == 3


def test_filepath_may_have_the_batch_in_it(stage: Stage) -> None:
    done = stage.both("{epoch}-{batch:02d}.ckpt", FALLING[:2], save_freq=3)
    assert done.names == ["1-03.ckpt", "2-01.ckpt", "2-04.ckpt"]


def test_filepath_with_a_metric_that_is_not_there_is_refused_in_keras_words(stage: Stage) -> None:
    texts = []
    for player in (stage.theirs, stage.ours):
        with pytest.raises(KeyError) as caught:
            player("{nothing}.ckpt", FALLING, save_weights_only=True)
        texts.append(re.sub(r'"[^"]*/', '"', str(caught.value.args[0])).replace(THEIR_ENDING, ".ckpt"))
    assert texts[0] == texts[1]


def test_filepath_may_be_a_path_object(tmp_path: Path) -> None:
    assert ModelCheckpoint(tmp_path / "a").filepath == str(tmp_path / "a")


@pytest.mark.parametrize("monitor", ["loss", "val_loss", "accuracy", "val_accuracy"])
@pytest.mark.parametrize("mode", ["auto", "min", "max"])
def test_monitor_and_mode_choose_what_is_best(monitor: str, mode: str, stage: Stage) -> None:
    logs = [{monitor: value} for value in (0.5, 0.4, 0.7, 0.6, 0.3)]
    done = stage.both(NAME, logs, monitor=monitor, mode=mode, save_best_only=True, verbose=1)
    assert 2 <= len(done.names) < 5


def test_mode_that_is_unknown_falls_back_with_keras_warning(stage: Stage) -> None:
    assert stage.both(NAME, FALLING, mode="most", save_best_only=True).warned


@pytest.mark.parametrize("verbose", [0, 1])
@pytest.mark.parametrize("is_best", [False, True])
def test_verbose_says_what_keras_says(verbose: int, is_best: bool, stage: Stage) -> None:
    done = stage.both(NAME, FALLING, verbose=verbose, save_best_only=is_best)
    assert bool(done.said) == bool(verbose)


def test_verbose_says_it_once_over_all_ranks(group: Any, tmp_path: Path, capsys: Any) -> None:
    models = [model_of(0), model_of(1)]
    group(2, lambda c: play(ModelCheckpoint(tmp_path / NAME, verbose=1, comm=c), models[c.rank], FALLING[:1]))
    lines = capsys.readouterr().out.splitlines()
    assert lines.count(f"Epoch 1: saving model to {tmp_path / 'cp-01.ckpt'}") == 1


def test_save_best_only_saves_nothing_worse(stage: Stage) -> None:
    done = stage.both(NAME, FALLING, save_best_only=True)
    assert done.names == ["cp-01.ckpt", "cp-03.ckpt"]
    assert done.best == 0.2


@pytest.mark.parametrize("is_best", [False, True])
def test_a_metric_that_is_missing_is_treated_as_keras_does(is_best: bool, stage: Stage) -> None:
    done = stage.both(NAME, [{"loss": 1.0}], save_best_only=is_best)
    assert bool(done.warned) == is_best
    assert len(done.names) == (0 if is_best and not IS_KERAS_3 else 1)


def test_a_metric_that_is_no_scalar_saves_with_a_warning(stage: Stage) -> None:
    player = stage.both if IS_KERAS_3 else stage.ours  # Keras 2.15 fails of it
    done = player(NAME, [{"val_loss": np.ones(2)}], save_best_only=True, save_weights_only=True)
    assert len(done.names) == len(done.warned) == 1


@pytest.mark.parametrize("is_weights_only", [False, True])
def test_save_weights_only_leaves_out_what_the_model_is_built_from(is_weights_only: bool, tmp_path: Path) -> None:
    play(ModelCheckpoint(tmp_path / NAME, save_weights_only=is_weights_only), model_of(), FALLING[:1])
    saved = scan(tmp_path)[0].manifest
    assert saved is not None
    assert saved.objects["user"]["checkpoint"]["weights_only"] is is_weights_only
    assert ("architecture" in saved.objects["user"]) is not is_weights_only
    assert any(tensor.name.startswith("optimizer/") for tensor in saved.tensors)


@pytest.mark.parametrize("save_freq", ["epoch", 1, 4, 7])
def test_save_freq_counts_epochs_or_batches(save_freq: Any, stage: Stage) -> None:
    name = NAME if save_freq == "epoch" else "{epoch}-{batch}.ckpt"
    assert stage.both(name, FALLING, save_freq=save_freq).names


def test_save_freq_of_10_saves_twice_in_25_batches(stage: Stage) -> None:
    assert len(stage.both("{epoch}-{batch}.ckpt", FALLING[:1], range(25), save_freq=10).names) == 2


def test_save_freq_knows_of_steps_per_execution(stage: Stage) -> None:
    done = stage.both("{epoch}-{batch}.ckpt", FALLING[:2], batches=(3, 7, 11), save_freq=6)
    assert done.names == ["1-8.ckpt", "2-4.ckpt", "2-12.ckpt"]


def test_save_freq_that_is_neither_is_refused_in_keras_words(tmp_path: Path) -> None:
    texts = []
    for cls in (Theirs, ModelCheckpoint):
        with pytest.raises(ValueError, match="Unrecognized save_freq") as caught:
            cls(str(tmp_path / "a.keras"), save_freq="batch")
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("is_weights_only", [False, True])
def test_options_are_those_of_keras_2(is_weights_only: bool, tmp_path: Path) -> None:
    right, wrong = tf.saved_model.SaveOptions(), tf.train.CheckpointOptions()
    right, wrong = (wrong, right) if is_weights_only else (right, wrong)
    ModelCheckpoint(tmp_path / "a", save_weights_only=is_weights_only, options=right)
    texts = []
    for cls in (ModelCheckpoint,) if IS_KERAS_3 else (ModelCheckpoint, Theirs):
        with pytest.raises(TypeError, match="`options` must be either None or") as caught:
            cls(str(tmp_path / "a"), save_weights_only=is_weights_only, options=wrong)
        texts.append(re.sub(" at 0x[0-9a-f]*", "", str(caught.value)))
    assert len(set(texts)) == 1


@pytest.mark.parametrize("threshold", [0.1, 0.3])
def test_initial_value_threshold_has_to_be_passed_first(threshold: float, stage: Stage) -> None:
    done = stage.both(NAME, FALLING, initial_value_threshold=threshold, save_best_only=True, verbose=1)
    assert len(done.names) == (threshold == 0.3)


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 2.15 only")
def test_period_is_keras_2s_old_name_for_every_so_many_epochs(stage: Stage) -> None:
    assert stage.both(NAME, FALLING, period=2).names == ["cp-02.ckpt"]


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 2.15 only")
def test_load_weights_on_restart_is_keras_2s_old_way_to_go_on(tmp_path: Path) -> None:
    first, second = model_of(0), model_of(1)
    play(ModelCheckpoint(tmp_path / NAME), first, FALLING[:1])
    second.set_weights([weight + 1 for weight in second.get_weights()])
    play(ModelCheckpoint(tmp_path / NAME, load_weights_on_restart=True), second, FALLING[:1])
    for ours, theirs in zip(second.get_weights(), first.get_weights(), strict=True):
        assert np.array_equal(ours, theirs)


def test_without_placeholders_the_newest_replaces_the_one_before(tmp_path: Path) -> None:
    play(ModelCheckpoint(tmp_path / "best"), model_of(), FALLING)
    assert steps_in(tmp_path / "best") == [15]


def test_the_tutorials_code_runs_after_changing_one_import(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    model = small()
    callback = ModelCheckpoint(
        filepath="training/cp-{epoch:04d}.ckpt", monitor="val_loss", verbose=0, save_best_only=False,
        save_weights_only=True, mode="auto", save_freq="epoch", options=None,
    )  # fmt: skip
    model.fit(*rows(), epochs=3, validation_data=rows(20), callbacks=[callback], verbose=0)
    latest = hc.latest_checkpoint("training")
    assert latest is not None
    assert Path("training/cp-0003.ckpt").resolve() == Path(latest).resolve()
    saved = hc.load("training/cp-0003.ckpt")
    assert np.array_equal(saved["model/dense/kernel"], model.get_weights()[0])


# -- options of hpcckpt -------------------------------------------------------------------------------


def test_max_to_keep_keeps_the_newest_and_their_names(tmp_path: Path) -> None:
    play(ModelCheckpoint(tmp_path / NAME, max_to_keep=2), model_of(), FALLING)
    assert steps_in(tmp_path) == [10, 15]
    assert sorted(path.name for path in tmp_path.glob("cp-*")) == ["cp-02.ckpt", "cp-03.ckpt"]


def test_keep_best_keeps_the_best_besides(tmp_path: Path) -> None:
    play(ModelCheckpoint(tmp_path / NAME, max_to_keep=1, keep_best="max:val_loss"), model_of(), FALLING)
    assert steps_in(tmp_path) == [10, 15]


def test_every_n_minutes_saves_within_epochs(tmp_path: Path) -> None:
    play(ModelCheckpoint(tmp_path / "{epoch}-{batch}", save_freq=100, every_n_minutes=1e-9), model_of(), FALLING[:1])
    assert names_in(tmp_path)


def test_backend_chooses_the_format(tmp_path: Path) -> None:
    play(ModelCheckpoint(tmp_path / NAME, backend="hdf5"), model_of(), FALLING[:1])
    assert list(tmp_path.glob("step-*/data/*.h5"))


def test_with_scratch_steps_and_names_are_drained_when_the_training_ends(tmp_path: Path) -> None:
    run, scratch = tmp_path / "run", tmp_path / "scratch"
    play(ModelCheckpoint(run / NAME, scratch=scratch, scratch_bandwidth=1e9), model_of(), FALLING)
    assert names_in(run) == ["cp-01.ckpt", "cp-02.ckpt", "cp-03.ckpt"]
    assert {path.resolve().parent for path in run.glob("cp-*")} == {run.resolve()}
    assert 15 in steps_in(tiers.scratch_directory(run, scratch))
    assert not list(scratch.rglob("cp-*"))
    shutil.rmtree(scratch)
    assert hc.load(run / "cp-02.ckpt")


def test_with_scratch_a_step_gets_its_name_when_it_is_in_the_run_directory(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    held, seen = threading.Event(), []
    failpoints.install_hook(lambda phase, _rank: held.wait(60) if phase == "drain-begun" else None)
    request.addfinalizer(lambda: failpoints.install_hook(None))

    class Looks(ModelCheckpoint):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, logs)
            self._target._saves.finish()
            seen.append(sorted(path.name for path in (tmp_path / "run").glob("[cs]*")))
            held.set()

    play(Looks(tmp_path / "run" / NAME, scratch=tmp_path / "scratch"), model_of(), FALLING[:1])
    assert seen == [[]]
    assert names_in(tmp_path / "run") == ["cp-01.ckpt"]


@pytest.mark.parametrize("tier", ["one tier", "two tiers"])
def test_a_step_that_is_saved_twice_has_both_its_names(tier: str, tmp_path: Path) -> None:
    options = {"scratch": tmp_path / "scratch"} if tier == "two tiers" else {}
    callback = ModelCheckpoint(tmp_path / "run" / "{loss:.2f}", **options)
    callback.set_model(model_of())
    callback.on_train_begin()
    for loss in (0.5, 0.4):
        callback._save_model(0, None, {"loss": loss})
    callback.on_train_end()
    assert sorted(path.name for path in (tmp_path / "run").glob("0.*")) == ["0.40", "0.50"]


@pytest.mark.filterwarnings("ignore:`load_weights_on_restart` argument is deprecated")
def test_a_step_that_a_killed_job_left_on_scratch_is_drained_and_named_on_resume(
    tmp_path: Path,
) -> None:
    run, scratch = tmp_path / "run", tmp_path / "scratch"
    with killed_before_the_first_drain(run, scratch):
        play(ModelCheckpoint(run / NAME, scratch=scratch), model_of(), FALLING[:1])
    assert steps_in(run) == []
    callback = ModelCheckpoint(run / "next-{epoch}", scratch=scratch, load_weights_on_restart=True)
    play(callback, model_of(1), FALLING[:2])
    assert names_in(run) == ["cp-01.ckpt", "next-1", "next-2"]


def test_async_save_false_has_it_committed_when_the_epoch_ends(tmp_path: Path) -> None:
    found: list[list[int]] = []

    class Looks(ModelCheckpoint):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, logs)
            found.append(steps_in(tmp_path))

    play(Looks(tmp_path / NAME, async_save=False), model_of(), FALLING[:2])
    assert found == [[5], [5, 10]]


def test_metrics_are_averaged_over_the_ranks_before_they_are_compared(group: Any, tmp_path: Path) -> None:
    models = [model_of(0), model_of(1)]
    of_ranks = [0.5, 0.4, 0.6], [0.1, 0.4, 0.1]  # the means are 0.3, 0.4, 0.35: each rank alone would choose otherwise

    def body(comm: Any) -> float | None:
        callback = ModelCheckpoint(tmp_path / NAME, save_best_only=True, comm=comm)
        play(callback, models[comm.rank], [{"val_loss": value} for value in of_ranks[comm.rank]])
        return callback.best

    assert group(2, body) == [pytest.approx(0.3)] * 2
    assert names_in(tmp_path) == ["cp-01.ckpt"]


# -- over restarts ---------------------------------------------------------------------------------


def go_on(place: Path, values: Sequence[float], *, iterations: int) -> ModelCheckpoint:
    """Have a new process go on with a model that was trained before."""
    model = model_of()
    callback = ModelCheckpoint(place / "{epoch:02d}-{val_loss:.2f}", save_best_only=True)
    model.optimizer.iterations.assign(iterations)
    play(callback, model, [{"val_loss": value} for value in values])
    return callback


def test_the_best_of_an_earlier_run_is_not_replaced_by_a_worse_one_on_resume(tmp_path: Path) -> None:
    go_on(tmp_path, [0.5, 0.2], iterations=0)
    assert go_on(tmp_path, [0.3, 0.4], iterations=10).best == 0.2
    assert names_in(tmp_path) == ["01-0.50", "02-0.20"]


def test_a_worse_model_of_the_same_script_does_not_become_the_best(tmp_path: Path, capsys: Any) -> None:
    go_on(tmp_path, [0.5, 0.2], iterations=0)
    capsys.readouterr()
    assert go_on(tmp_path, [0.3, 0.25], iterations=0).best == 0.2
    assert names_in(tmp_path) == ["01-0.50", "02-0.20"]
    text = f"hpcckpt: best val_loss so far 0.20000 (step 10 in {tmp_path}): only better models are saved"
    assert text in capsys.readouterr().err


def test_a_better_model_of_the_same_script_moves_newer_ones_aside_and_says_so(tmp_path: Path, caplog: Any) -> None:
    go_on(tmp_path, [0.5, 0.2], iterations=0)
    assert go_on(tmp_path, [0.1], iterations=0).best == 0.1
    assert names_in(tmp_path) == ["01-0.10"]
    assert "step-0000000010 is now .aside-step-0000000010-" in caplog.text
    assert f"'hpcckpt prune --aside {tmp_path}' removes it" in caplog.text


def test_what_an_earlier_run_saved_without_choosing_counts_by_its_metrics(tmp_path: Path) -> None:
    play(ModelCheckpoint(tmp_path / NAME), model_of(), [{"val_loss": 0.4}, {"val_loss": 0.1}, {"val_loss": 0.3}])
    callback = ModelCheckpoint(tmp_path / NAME, save_best_only=True)
    play(callback, model_of(), [{"val_loss": 0.2}])
    assert callback.best == 0.1
    assert steps_in(tmp_path) == [5, 10, 15]


@pytest.mark.parametrize("threshold", [float("inf"), 0.4])
def test_a_threshold_of_the_program_is_used_instead_of_the_best_on_storage(
    threshold: float, tmp_path: Path, capsys: Any
) -> None:
    go_on(tmp_path, [0.2], iterations=0)
    capsys.readouterr()
    callback = ModelCheckpoint(tmp_path / NAME, save_best_only=True, initial_value_threshold=threshold)
    play(callback, model_of(), [{"val_loss": 0.3}])
    assert callback.best == 0.3
    text = f"is 0.20000 (step 5); this run is compared with initial_value_threshold={threshold:.5f} instead"
    assert text in capsys.readouterr().err


def test_best_and_counts_come_back_with_a_backup(tmp_path: Path, fit: Callable[..., Any]) -> None:
    def train(epochs: int) -> ModelCheckpoint:
        best = ModelCheckpoint(tmp_path / "best", monitor="loss", save_best_only=True, save_freq=7)
        fit(small(), rows(), epochs, best, BackupAndRestore(tmp_path / "run", delete_checkpoint=False, verbose=0))
        return best

    first, second = train(1), train(1)  # the second has nothing left to train
    assert second.state_dict() == first.state_dict()
    assert first.state_dict()["batches_seen"] == 3


def test_a_name_that_a_killed_run_could_not_give_is_given_by_the_next(tmp_path: Path) -> None:
    go_on(tmp_path, [0.5], iterations=0)
    (tmp_path / "01-0.50").unlink()
    go_on(tmp_path, [], iterations=5)
    model = model_of()
    model.optimizer.iterations.assign(5)
    play(ModelCheckpoint(tmp_path / "{epoch:02d}-{val_loss:.2f}", save_best_only=True), model, [{"val_loss": 0.9}])
    assert (tmp_path / "01-0.50").resolve() == (tmp_path / "step-0000000005").resolve()


@pytest.mark.parametrize("name", ["../outside", "sub/../../outside", "{absolute}", "nul\0byte", 5])
def test_a_name_that_a_manifest_gives_never_leads_out_of_the_run_directory(
    name: Any, tmp_path: Path, damage: Any
) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    hostile = name.format(absolute=outside) if isinstance(name, str) else name
    go_on(run, [0.5], iterations=0)
    (run / "01-0.50").unlink()
    manifest = run / "step-0000000005" / "manifest.json"
    damage.reseal(manifest, lambda document: document["objects"]["user"]["checkpoint"].update(name=hostile))
    go_on(run, [0.4], iterations=5)
    assert steps_in(run) == [5, 10]
    assert listed(run) == ["01-0.40", "step-0000000005", "step-0000000010"]
    assert not os.path.lexists(outside)


def test_a_name_whose_save_failed_is_given_to_the_next_save_that_bears_it(tmp_path: Path, saving: Any) -> None:
    callback, model = ModelCheckpoint(tmp_path / NAME, **saving), model_of()
    full = Fault("2-write", "raise", error=OSError(errno.ENOSPC, "full"))
    with armed(full), pytest.raises(NoSpaceError):
        play(callback, model, FALLING[:1])
    model.optimizer.iterations.assign(0)
    play(callback, model, FALLING[:2])
    assert names_in(tmp_path) == ["cp-01.ckpt", "cp-02.ckpt"]
    assert os.readlink(tmp_path / "cp-01.ckpt") == "step-0000000005"


def test_what_it_says_at_the_end_does_not_open_the_run_directory_again(tmp_path: Path) -> None:
    callback = ModelCheckpoint(tmp_path / NAME, verbose=2)
    play(callback, model_of(), FALLING)
    assert names_in(tmp_path)
    assert callback._target._saves._checkpointer is None


def test_every_n_minutes_does_not_stop_for_the_end_of_the_job(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HPCCKPT_JOB_END", str(time.time() + 2))
    play(ModelCheckpoint(tmp_path / NAME, every_n_minutes=1000), model_of(), FALLING)
    assert steps_in(tmp_path) == [5, 10, 15]


@pytest.mark.parametrize("kind", ["steps", "files", "backup"])
def test_a_deep_copy_of_a_callback_saves_and_reports_by_itself(kind: str, tmp_path: Path, fit: Any, capfd: Any) -> None:
    name = "a.weights.h5" if kind == "files" else "a"
    options = {"verbose": 1, "save_weights_only": True, "monitor": "loss"}
    made = BackupAndRestore(tmp_path / name) if kind == "backup" else ModelCheckpoint(tmp_path / name, **options)
    fit(small(), rows(), 1, copy.deepcopy(made))
    assert ("saved step" if kind == "backup" else "saving model to") in "".join(capfd.readouterr())


def test_monitor_op_compares_as_mode_says(tmp_path: Path) -> None:
    assert ModelCheckpoint(tmp_path / "a", mode="max").monitor_op is np.greater
    assert ModelCheckpoint(tmp_path / "a", mode="min").monitor_op is np.less
    callback = ModelCheckpoint(tmp_path / "a", mode="min")
    callback.monitor_op = np.greater
    assert (callback.mode, callback.monitor_op) == ("max", np.greater)
