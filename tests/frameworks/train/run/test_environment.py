"""What a run from a configuration gives: histories, checkpoints, files; weights handed over, frozen, saved, loaded."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt import tiers
from hpcckpt.core.system import OperatingSystem
from hpcckpt.errors import LockedError, OptionError
from hpcckpt.native.posix_files import POSIX
from hpcckpt.rundir.lock import RunLock
from hpcckpt.train import Environment, KerasTrainLoop
from hpcckpt.train.config_errors import TrainConfigError
from hpcckpt.train.run import environment_info, seeding
from tests.support.train import pieces

Run = Callable[..., list[Any]]


def test_there_is_one_history_for_each_cycle_with_all_its_epochs(run: Run) -> None:
    first, second = run(pieces.two_cycles())
    assert (first.epoch, second.epoch) == ([0, 1, 2], [0, 1])
    for history, epochs in ((first, 3), (second, 2)):
        assert {"loss", "mae", "val_loss", "val_mae"} <= set(history.history)
        assert all(len(values) == epochs for values in history.history.values())


def test_it_trains_what_a_script_with_keras_alone_would_to_the_bit(run: Run, tmp_path: Path) -> None:
    run(pieces.config(seed=5))
    with seeding.repeatable(5):
        keras.utils.set_random_seed(5)
        train, valid = pieces.toy_data()
        keras.utils.set_random_seed(5)
        model = pieces.ToyModel()
        model(np.zeros((1, 6), "float32"))
        model.compile(keras.optimizers.Adam(0.02), keras.losses.MeanSquaredError())
        model.fit(train, epochs=2, validation_data=valid, verbose=0, shuffle=False)
    found = pieces.model_weights(tmp_path / "run")
    assert found["model/head/kernel"].tobytes() == np.asarray(model.head.kernel).tobytes()


def test_models_are_named_alike_whatever_was_built_before_in_the_process(tmp_path: Path) -> None:
    from hpcckpt.cli.app import run as tool

    for name in ("straight", "again"):
        environment = Environment(tmp_path / name, verbose=0)
        environment.run(pieces.two_cycles())
        assert environment.model.name == "toy_model"
    for cycle in ("cycle-1/final", "cycle-2/final"):
        assert tool(["diff", str(tmp_path / "straight" / cycle), str(tmp_path / "again" / cycle)]) == 0


def test_what_is_wrong_in_form_and_in_names_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(pieces.config(optimizer={"tf.keras.optimizers.Adm": {}}, checkpoint={"every_n_batchs": 3})),
        encoding="utf-8",
    )
    for act in (Environment(tmp_path / "run").run, Environment(tmp_path / "run").check):
        with pytest.raises(TrainConfigError) as caught:
            act(tmp_path / "config.json")
        text = str(caught.value)
        assert text.startswith(f"{tmp_path / 'config.json'}: 2 problems")
        assert "Adm" in text
        assert "every_n_batchs" in text


def test_what_cannot_be_built_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(pieces.config(model={"ToyModel": {"dropout": 7.0}})), encoding="utf-8"
    )
    for act in (Environment(tmp_path / "run").run, Environment(tmp_path / "run").check):
        with pytest.raises(TrainConfigError, match=r"config\.json"):
            act(tmp_path / "config.json")


def test_options_that_a_backend_refuses_are_told_before_a_run_is_made(tmp_path: Path) -> None:
    wrong = {"backend_options": {"bogus": 1}}
    for act in (Environment(tmp_path / "run").run, Environment(tmp_path / "run").check):
        with pytest.raises(TrainConfigError) as caught:
            act([*pieces.config(), {"checkpoint": wrong}, {"seed": 3}, {"checkpoint": {"backend": "rankfile:x"}}])
        assert [problem.where for problem in caught.value.problems] == [
            "[1].checkpoint.backend_options",
            "[3].checkpoint.backend",
        ]
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_a_program_that_goes_on_need_not_be_repeatable_as_the_training_was(fails: bool, run: Run) -> None:
    from tensorflow.python.framework import config

    seen = []

    @pieces.export_config
    class Looks(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            seen.append(config.is_op_determinism_enabled())
            if fails:
                raise ValueError("seen enough")

    looking = pieces.config(seed=5, train_loop=pieces.loop(epochs=1, callbacks=[{"Looks": {}}]))
    with contextlib.suppress(ValueError):
        run(looking)
    assert seen == [True]
    assert not config.is_op_determinism_enabled()


def test_the_model_that_was_trained_last_is_at_hand(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "run", verbose=0)
    environment.run(pieces.two_cycles())
    kernel = pieces.model_weights(tmp_path / "run", 2)["model/head/kernel"]
    assert np.asarray(environment.model.head.kernel).tobytes() == kernel.tobytes()


def test_a_cycle_that_is_complete_can_be_loaded_as_a_model(run: Run, tmp_path: Path) -> None:
    config = pieces.config(model={"tf.keras.Sequential": {"layers": [{"tf.keras.layers.Dense": {"units": 1}}]}})
    run(config)
    model = hc.keras.load_model(tmp_path / "run" / "cycle-1")
    assert np.isfinite(model.predict(np.zeros((2, 6), "float32"), verbose=0)).all()


# -- from cycle to cycle -------------------------------------------------------------------------------


def test_a_cycle_begins_with_the_last_weights_of_the_one_before(run: Run, tmp_path: Path) -> None:
    frozen = pieces.loop(epochs=1, freeze_submodels=["body", "head"])
    sgd = {"tf.keras.optimizers.SGD": {}}
    head = [{"train_loop": frozen, "optimizer": sgd, "model": {"WithSpare": {}}}]
    pieces.export_config(WithSpare)
    run([*pieces.config(model={"WithSpare": {}}), *head])
    before, after = (pieces.model_weights(tmp_path / "run", cycle) for cycle in (1, 2))
    for name, value in before.items():
        if "spare" not in name:
            assert after[name].tobytes() == value.tobytes(), name


class WithSpare(pieces.ToyModel):
    """Has something to train when all else is frozen."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.spare = keras.layers.Dense(1, name="spare")

    def call(self, inputs: Any, training: Any = None) -> Any:
        return self.spare(super().call(inputs, training=training))


def test_another_model_takes_what_fits_of_the_cycle_before_and_says_how_much(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    valid = {"datasets": {"two_columns": {}}, "model": {"ToyModel": {"n_outputs": 2}}}
    pieces.export_config(two_columns)
    frozen = pieces.loop(epochs=1, freeze_submodels=["body"])
    run([*pieces.config(), {**valid, "train_loop": frozen}], verbose=1)
    before, after = (pieces.model_weights(tmp_path / "run", cycle) for cycle in (1, 2))
    assert after["model/body/wide/kernel"].tobytes() == before["model/body/wide/kernel"].tobytes()
    assert after["model/head/kernel"].shape == (8, 2)
    assert "cycle=2/2 6 tensors of cycle 1, 2 do not fit" in capfd.readouterr().err


def two_columns() -> Any:
    def doubled(x: Any, y: Any) -> Any:
        return x, tf.concat([y, y], 1)

    return tuple(data.map(doubled) for data in pieces.toy_data())


def test_frozen_submodels_stay_as_they_are_to_the_bit_statistics_too(run: Run, tmp_path: Path) -> None:
    run([*pieces.config(), {"train_loop": pieces.loop(epochs=2, freeze_submodels=["body"])}])
    before, after = (pieces.model_weights(tmp_path / "run", cycle) for cycle in (1, 2))
    body = [name for name in before if name.startswith("model/body/")]
    assert sum("moving" in name for name in body) == 2
    for name in body:
        assert after[name].tobytes() == before[name].tobytes(), name
    assert after["model/head/kernel"].tobytes() != before["model/head/kernel"].tobytes()


def test_what_is_trained_is_told_in_numbers(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    run(pieces.config(train_loop=pieces.loop(epochs=1, freeze_submodels=["body@wide"])), verbose=1)
    assert "parameters=97 trained=25 frozen=body@wide ranks=1" in capfd.readouterr().err


def test_a_submodel_that_is_saved_goes_into_a_model_with_another_head(run: Run, tmp_path: Path) -> None:
    place = str(tmp_path / "weights" / "body")
    saving = pieces.loop(save_submodels=["body", {"name": "body@wide", "path": place}])
    run(pieces.config(train_loop=saving))
    loading = pieces.loop(
        epochs=1, freeze_submodels=["body@wide"], load_submodels=[{"name": "body@wide", "path": place}]
    )
    pieces.export_config(two_columns)
    other = pieces.config(datasets={"two_columns": {}}, model={"ToyModel": {"n_outputs": 2}}, train_loop=loading)
    Environment(tmp_path / "other", verbose=0).run(other)
    saved, loaded = (
        hc.load(path) for path in (tmp_path / "run" / "cycle-1" / "final", tmp_path / "other" / "cycle-1" / "final")
    )
    assert loaded["model/body/wide/kernel"].tobytes() == saved["model/body/wide/kernel"].tobytes()
    assert (
        hc.load(tmp_path / "run" / "submodels" / "body")["model/wide/kernel"].tobytes()
        == saved["model/body/wide/kernel"].tobytes()
    )


def test_weights_of_a_submodel_do_not_take_the_place_of_checkpoints(run: Run, tmp_path: Path) -> None:
    run(pieces.config(train_loop=pieces.loop(epochs=1)))
    before, other = hc.load(tmp_path / "run" / "cycle-1"), tmp_path / "other"
    places = ["run/cycle-1", "other/cycle-1", "other/cycle-1/final", "both", "both"]
    saved = [{"name": "body", "path": str(tmp_path / place)} for place in places]
    for act in (Environment(other, verbose=0).run, Environment(other, verbose=0).check):
        with pytest.raises(TrainConfigError) as caught:
            act(pieces.config(train_loop=pieces.loop(save_submodels=saved)))
        numbers = [problem.where.partition("save_submodels")[2] for problem in caught.value.problems]
        assert numbers == ["[0]", "[1]", "[2]", "[4]"]
    assert hc.load(tmp_path / "run" / "cycle-1").keys() == before.keys()


def test_weights_of_a_submodel_take_the_place_of_those_of_a_cycle_before(run: Run, tmp_path: Path) -> None:
    place = str(tmp_path / "body")
    saving = pieces.loop(epochs=1, save_submodels=[{"name": "body", "path": place}])
    run([*pieces.config(train_loop=saving), {"seed": 2}])
    last = pieces.model_weights(tmp_path / "run", 2)["model/body/wide/kernel"]
    assert hc.load(place)["model/wide/kernel"].tobytes() == last.tobytes()


@pytest.mark.parametrize("key", ["freeze_submodels", "save_submodels", "load_submodels"])
def test_a_wrong_submodel_path_is_a_config_error_with_its_place_and_the_tree(key: str, run: Run) -> None:
    wrong = [{"name": "bodi", "path": "x"}] if key == "load_submodels" else ["bodi"]
    with pytest.raises(TrainConfigError) as caught:
        run(pieces.config(train_loop=pieces.loop(**{key: wrong})))
    (problem,) = caught.value.problems
    assert problem.where == f"[0].train_loop.hpcckpt.train.KerasTrainLoop.{key}[0]"
    assert "did you mean 'body'?" in problem.text
    assert "body  Sequential" in problem.text


def test_weights_to_load_that_are_not_there_are_a_config_error(run: Run) -> None:
    loading = pieces.loop(load_submodels=[{"name": "body", "path": "nowhere"}])
    for act in (run, Environment("run").check):
        with pytest.raises(TrainConfigError, match=r"\[0\]\.train_loop.*load_submodels\[0\].*nowhere does not exist"):
            act(pieces.config(train_loop=loading))


def test_weights_to_load_that_a_cycle_before_saves_are_no_error_of_a_check(tmp_path: Path) -> None:
    place = {"name": "body", "path": str(tmp_path / "body")}
    last = {"name": "body", "path": str(tmp_path / "run" / "cycle-1" / "final")}
    first = pieces.config(train_loop=pieces.loop(save_submodels=[place]))
    second = {"train_loop": pieces.loop(load_submodels=[place, last])}
    assert len(Environment(tmp_path / "run").check([*first, second])) == 2


# -- the run directory ---------------------------------------------------------------------------------


def test_the_run_directory_says_what_was_trained_and_on_what(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("SOME_TOKEN", "not-for-files")
    monkeypatch.setattr(environment_info, "_GIT_S", 200.0)
    run(pieces.two_cycles())
    place = tmp_path / "run"
    first, second = json.loads((place / "config.json").read_text(encoding="utf-8"))
    assert first["model"] == second["model"] == {"ToyModel": {}}
    (job,) = json.loads((place / "environment.json").read_text(encoding="utf-8"))["jobs"]
    assert job["ranks"] == 1
    assert job["packages"]["keras"] == keras.__version__
    assert job["git"]["commit"]
    assert not any(
        "not-for-files" in path.read_text(errors="ignore", encoding="utf-8") for path in place.rglob("*.json*")
    )
    rows = list(csv.DictReader((place / "metrics.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["cycle"], row["epoch"], row["step"]) for row in rows] == [
        ("1", "1", "8"), ("1", "2", "16"), ("1", "3", "24"), ("2", "1", "8"), ("2", "2", "16"),
    ]  # fmt: skip
    events = [entry["event"] for entry in pieces.log(place)]
    assert (events[0], events.count("epoch"), events[-1]) == ("begin", 5, "complete")
    assert {"saved", "weights", "cycle"} <= set(events)


def test_with_scratch_the_checkpoints_are_in_the_run_directory_at_the_end(run: Run, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    run(pieces.config(checkpoint={"scratch": str(scratch), "scratch_bandwidth": 1e9}))
    assert hc.latest_checkpoint(tmp_path / "run" / "cycle-1") is not None
    assert hc.latest_checkpoint(tiers.scratch_directory(tmp_path / "run" / "cycle-1", scratch)) is not None


def test_checkpoints_may_stand_elsewhere(run: Run, tmp_path: Path) -> None:
    other = str(tmp_path / "scratch")
    run(pieces.config(checkpoint={"directory": other}))
    assert hc.latest_checkpoint(tmp_path / "scratch" / "cycle-1")
    assert not (tmp_path / "run" / "cycle-1").exists()
    (history,) = run(pieces.config(checkpoint={"directory": other}), "latest")
    assert history.epoch == [0, 1]


def test_a_monitor_that_is_no_metric_is_told_once_with_the_name_that_was_meant(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(pieces.config(checkpoint={"keep_best": 1, "monitor": "max:val_maee"}), verbose=1)
    text = "checkpoint.monitor: there is no metric 'val_maee', keep_best keeps nothing; did you mean 'val_mae'?"
    assert capfd.readouterr().err.count(f"hpcckpt: cycle=1/1 warning: {text}") == 1
    assert [entry["text"] for entry in pieces.log(tmp_path / "run", "warning")] == [text]
    run(pieces.config(checkpoint={"keep_best": 1, "monitor": "max:val_mae"}), "never", overwrite=True)
    assert not pieces.log(tmp_path / "run", "warning")


def test_two_jobs_do_not_train_in_one_run_directory(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with RunLock.take(tmp_path / "run", system=OperatingSystem(POSIX)) as lock:
        held = json.loads(lock.path.read_text(encoding="utf-8"))
        foreign = {**held, "host": "another-host"} if "host" in held else held
        lock.path.write_text(json.dumps(foreign), encoding="utf-8")
        with pytest.raises(LockedError, match="another-host"):
            run(pieces.config())


def test_separate_processes_in_one_run_directory_get_an_error_with_the_remedy(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    (tmp_path / "run").mkdir()
    with RunLock.take(tmp_path / "run", system=OperatingSystem(POSIX)) as lock:
        held = json.loads(lock.path.read_text(encoding="utf-8"))
        lock.path.write_text(json.dumps({**held, "host": "another-host"}), encoding="utf-8")
        with pytest.raises(LockedError, match="2 processes train separately here: give each its own run directory"):
            run(pieces.config(distributed="none"))


def test_the_default_run_directory_is_named_after_the_configuration(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.hjson"
    path.write_text(json.dumps(pieces.config()), encoding="utf-8")
    Environment(verbose=0).run(path)
    assert (tmp_path / "runs" / "small" / "metrics.csv").is_file()


# -- check ---------------------------------------------------------------------------------------------


def test_check_builds_everything_and_trains_nothing(tmp_path: Path) -> None:
    first, second = Environment(tmp_path / "run").check(pieces.two_cycles())
    assert (first.parameters, first.trained, first.epochs, first.batches) == (97, 81, 3, 8)
    assert (second.frozen, second.trained, second.ranks) == (("body@wide",), 25, 1)
    assert not (tmp_path / "run").exists()


def test_check_tells_of_a_loss_that_does_not_fit_the_labels(tmp_path: Path) -> None:
    wrong = pieces.config(
        loss={"tf.keras.losses.CategoricalCrossentropy": {}}, model={"ToyModel": {"n_outputs": 3}}, metrics=[]
    )
    with pytest.raises(TrainConfigError, match=r"\[0\]: a step to train cannot be made: ValueError: .*let model, loss"):
        Environment(tmp_path / "run").check(wrong)


def nothing_to_train() -> Any:
    return pieces.toy_data()[0].take(0)


def no_dataset() -> Any:
    return [1, 2]


def endless() -> Any:
    return pieces.toy_data()[0].repeat()


def nothing_to_validate() -> Any:
    train, valid = pieces.toy_data()
    return train, valid.take(0)


def validates_for_ever() -> Any:
    train, valid = pieces.toy_data()
    return train, valid.repeat()


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (nothing_to_train, "there is not one batch to train on"),
        (no_dataset, r"gives \(int, int\), not a tf.data.Dataset"),
        (endless, r"train with never ends.*num_train_steps"),
        (nothing_to_validate, "there is not one batch to validate on"),
        (validates_for_ever, r"validate with never ends.*num_valid_steps"),
    ],
)
def test_data_that_cannot_be_trained_on_is_a_config_error(factory: Any, text: str, run: Run) -> None:
    pieces.export_config(factory)
    with pytest.raises(TrainConfigError, match=rf"\[0\]\.datasets: .*{text}"):
        run(pieces.config(datasets={factory.__name__: {}}))


def test_data_that_never_ends_is_trained_on_in_epochs_of_so_many_steps(run: Run, tmp_path: Path) -> None:
    pieces.export_config(endless)
    run(pieces.config(datasets={"endless": {}}, train_loop=pieces.loop(num_train_steps=5)))
    assert [
        row["step"]
        for row in csv.DictReader((tmp_path / "run" / "metrics.csv").read_text(encoding="utf-8").splitlines())
    ] == [
        "5",
        "10",
    ]


def test_more_steps_per_epoch_than_the_data_has_are_refused_before_training(run: Run, tmp_path: Path) -> None:
    lasting, short = (pieces.config(train_loop=pieces.loop(num_train_steps=steps)) for steps in (4, 6))
    run(lasting)
    with pytest.raises(TrainConfigError, match=r"num_train_steps: 2 epochs of 6 batches need 12, and the data has 8"):
        Environment(tmp_path / "short").check(short)


def of_unknown_length() -> Any:
    return pieces.toy_data()[0].filter(lambda x, y: True)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_cycle_whose_data_has_ended_before_its_last_epoch_is_not_complete(run: Run, tmp_path: Path) -> None:
    pieces.export_config(of_unknown_length)
    short = pieces.config(datasets={"of_unknown_length": {}}, train_loop=pieces.loop(num_train_steps=6))
    with pytest.raises(TrainConfigError, match=r"\[0\]\.datasets: the data ended in epoch \d of 2, after 8 batches"):
        run(short)
    assert not (tmp_path / "run" / "cycle-1" / "final").exists()
    (entry,) = pieces.log(tmp_path / "run", "failed")
    assert (entry["error"], "the data ended" in entry["text"]) == ("ConfigError", True)


def test_a_model_that_does_not_take_the_data_is_a_config_error(run: Run) -> None:
    layers = [{"tf.keras.layers.Reshape": {"target_shape": [7]}}]
    with pytest.raises(TrainConfigError, match=r"\[0\]\.model: the model does not take the data"):
        run(pieces.config(model={"tf.keras.Sequential": {"layers": layers}}))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_epochs": 0}, "num_epochs: 0 – a whole number from 1 on"),
        ({"num_valid_steps": 1.5}, "num_valid_steps: 1.5 – a whole number from 1 on, or null"),
        ({"freeze_submodels": "body"}, "freeze_submodels: 'body' – a list"),
        ({"save_submodels": [{"path": "x"}]}, r"save_submodels\[0\]"),
        ({"save_submodels": [{"name": "body", "path": "a\0b"}]}, r"save_submodels\[0\]"),
        ({"callbacks": ["EarlyStopping"]}, r"callbacks\[0\]: a str is no Keras callback"),
        ({"callbacks": [keras.callbacks.EarlyStopping]}, r"callbacks\[0\]: EarlyStopping is a class"),
    ],
)
def test_options_of_a_loop_that_make_no_sense_are_told(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        KerasTrainLoop(**options)


def test_all_options_of_a_loop_that_make_no_sense_are_told_at_once() -> None:
    with pytest.raises(OptionError, match=r"num_epochs: 0 .*; num_train_steps: 'all'"):
        KerasTrainLoop(num_epochs=0, num_train_steps="all")


def test_ranks_that_would_train_in_different_ways_from_cycle_to_cycle_are_refused(run: Run) -> None:
    with pytest.raises(TrainConfigError, match=r"\[1\]\.distributed: 'none', and 'mpi4py' in the first cycle"):
        run([*pieces.config(distributed="mpi4py"), {"distributed": "none"}])
