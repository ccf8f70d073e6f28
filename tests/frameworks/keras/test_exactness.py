"""``exact`` is reported only where it is proved; what can be saved is, and for the rest the level says why not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.errors import StateMismatchError
from hpcckpt.keras import BackupAndRestore, stateless
from hpcckpt.keras.callbacks.exactness import Exactness
from hpcckpt.keras.program.python_values import Values
from hpcckpt.keras.program.traced_steps import concrete_functions
from hpcckpt.train.run.seeding import repeatable
from tests.support.keras import training_elements
from tests.support.keras.models import KillAt, Killed
from tests.support.keras.training_elements import ELEMENTS, IS_KERAS_3

Names = Sequence[str]


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    switches: Any = getattr(keras.backend, "experimental", None)
    if switches is not None:
        switches.enable_tf_random_generator()
    with repeatable(7), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    if switches is not None:
        switches.disable_tf_random_generator()
    tf.random.set_global_generator(tf.random.Generator.from_non_deterministic_state())


def run(names: Names, directory: Path, *more: Any, epochs: int = 3) -> tuple[Any, BackupAndRestore]:
    """Train as a new process would; return the model, if it came to an end, and the callback."""
    training_elements.fresh()
    backup, model = BackupAndRestore(directory, every_n_batches=2, delete_checkpoint=False, verbose=0), None
    try:
        model = training_elements.train(names, backup, *more, epochs=epochs)
    except Killed:
        backup.close()
    return model, backup


SAVED = [name for name, one in ELEMENTS.items() if one.is_claimed and not one.reason]
"""What is no part of the model as Keras sees it, and can be saved all the same."""
REFUSED = [name for name, one in ELEMENTS.items() if one.reason and name != "compiles_again"]
FAST = ["stateful_lstm", "loss_annealed_by_a_variable_of_the_program", "seeds_and_variable_of_a_loss"]


def slow_but(names: Names, fast: Names) -> list[Any]:
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", slow_but(SAVED, FAST))
def test_what_the_training_step_uses_is_saved_wherever_the_program_keeps_it(name: str, tmp_path: Path) -> None:
    straight, _ = run([name], tmp_path / "straight")
    run([name], tmp_path / "run", KillAt(17))
    model, backup = run([name], tmp_path / "run")
    assert backup.restored is not None
    assert (backup.restored.step, backup.restored.level, backup.level, backup.reasons) == (16, "exact", "exact", [])
    assert training_elements.weights(model) == training_elements.weights(straight)


@pytest.mark.parametrize("name", slow_but(REFUSED, ["tf_random_in_a_layer", "warm_up_counted_in_an_attribute"]))
def test_what_cannot_be_saved_makes_the_level_state_with_the_cause(name: str, tmp_path: Path) -> None:
    _, backup = run([name], tmp_path, epochs=2)
    assert backup.level == "state"
    assert [reason for reason in backup.reasons if ELEMENTS[name].reason in reason], backup.reasons


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ("tf_random_in_a_layer", "no_more") if name in ELEMENTS])
def test_xla_changes_nothing_about_what_is_proved(name: str, tmp_path: Path) -> None:
    _, backup = run([name, "compiled_by_xla"], tmp_path, epochs=1)
    assert backup.level == ("state" if ELEMENTS[name].reason else "exact")


@pytest.mark.parametrize(
    "names", [["dropout_and_batch_norm", "plain_custom_layer", "schedule_plateau_and_early_stopping", "pipeline"]]
)
def test_ordinary_trainings_stay_exact(names: Names, tmp_path: Path) -> None:
    _, backup = run(names, tmp_path, epochs=1)
    assert (backup.level, backup.reasons) == ("exact", [])


class Weighted(keras.losses.Loss):
    """A loss of the program with a value that its code uses."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.factor * tf.reduce_mean(tf.abs(y_true - y_pred), -1)


def distance(y_true: Any, y_pred: Any, power: int = 1) -> Any:
    return tf.reduce_mean(tf.abs(y_true - y_pred) ** power)


def test_losses_and_metrics_of_the_program_by_the_name_of_their_output_stay_exact(tmp_path: Path) -> None:
    inputs, loss = keras.Input((3,)), Weighted()
    model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(inputs) for name in "uv"})
    model.compile("sgd", {"u": loss, "v": "mse"}, metrics={"u": [distance], "v": ["mae"]})
    x, y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
    backup = BackupAndRestore(tmp_path, verbose=0)
    model.fit(x, {"u": y, "v": y}, batch_size=4, shuffle=False, verbose=0, callbacks=[backup])
    assert (backup.level, backup.reasons) == ("exact", [])

    class Changes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            loss.factor += 1.0

    backup = BackupAndRestore(tmp_path / "changes", verbose=0)
    model.fit(x, {"u": y, "v": y}, batch_size=4, shuffle=False, verbose=0, callbacks=[backup, stateless(Changes)()])
    assert "changed since training began" in " ".join(backup.reasons)


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 3 only")
def test_a_model_whose_weights_are_all_frozen_resumes_within_an_epoch(tmp_path: Path) -> None:
    def trained(*kill: Any) -> Any:
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.trainable = False
        model.compile("sgd", "mse")
        backup = BackupAndRestore(tmp_path, verbose=0, every_n_batches=2, delete_checkpoint=False)
        try:
            model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=1, verbose=0, callbacks=[*kill, backup])
        except Killed:
            backup.close()
        return backup

    trained(KillAt(5))
    assert trained().restored.objects["batch"] == 4


def test_a_variable_that_a_callback_sets_between_epochs_comes_back_before_that(tmp_path: Path) -> None:
    names = ["loss_annealed_by_a_variable_of_the_program", "annealing_by_a_callback_without_state"]
    straight, _ = run(names, tmp_path / "straight")
    run(names, tmp_path / "run", KillAt(21))
    model, backup = run(names, tmp_path / "run")
    assert (backup.restored.objects["epoch"], backup.restored.objects["batch"]) == (2, 0)
    assert training_elements.weights(model) == training_elements.weights(straight)


@pytest.mark.parametrize(("declare", "level"), [(stateless, "exact"), (lambda variable: variable, "state")])
def test_a_variable_of_the_validation_step_has_a_state_unless_declared_otherwise(
    tmp_path: Path, declare: Any, level: str
) -> None:
    count = declare(tf.Variable(0))

    class Counting(keras.Model):
        def test_step(self, *args: Any) -> Any:
            count.assign_add(1)
            return super().test_step(*args)

    inputs = keras.Input((3,))
    model = Counting(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    backup = BackupAndRestore(tmp_path, verbose=0)
    x, y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
    model.fit(x, y, validation_data=(x, y), epochs=2, shuffle=False, verbose=0, callbacks=[backup])
    assert backup.level == level, backup.reasons


def test_a_model_that_is_compiled_again_is_reported_with_what_to_do(tmp_path: Path) -> None:
    _, backup = run(["compiles_again"], tmp_path, KillAt(17))
    remedy = "a resumed run has to compile it in the same way"
    assert backup.level == "state"
    assert remedy in backup.reasons[-1]
    with pytest.raises(StateMismatchError, match=remedy):
        run(["compiles_again"], tmp_path)


def test_a_checkpoint_without_variables_of_the_step_restores_and_is_not_exact(tmp_path: Path) -> None:
    run(["no_more"], tmp_path, KillAt(7))
    _, backup = run(["loss_annealed_by_a_variable_of_the_program"], tmp_path)
    assert backup.level == "state"
    assert any("that are not in the checkpoint" in reason for reason in backup.reasons), backup.reasons


def test_a_step_is_compiled_once_though_it_is_compiled_before_the_first_batch(tmp_path: Path) -> None:
    traced: list[int] = []

    class Traced(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            if not tf.executing_eagerly() and self.built:
                traced.append(len(traced))
            return inputs

    def build() -> Any:
        training_elements.fresh()
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1), Traced()])
        model.compile("sgd", "mse")
        traced.clear()
        return model

    counts = []
    for callbacks in ([], [BackupAndRestore(tmp_path, verbose=0)]):
        build().fit(*training_elements.rows(), epochs=2, verbose=0, callbacks=callbacks)
        counts.append(len(traced))
    assert 0 < counts[1] <= counts[0]  # the first makes its optimizer while it traces, and traces again


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 3 only")
def test_keras_global_generator_is_made_where_a_checkpoint_has_it() -> None:
    from keras.src.backend.common import global_state

    from hpcckpt.state import random_streams

    training_elements.fresh()
    state = np.array([11, 3], "int64")
    assert random_streams.write_streams({"keras.generator": state}) == []
    assert np.asarray(global_state.get_global_attribute("global_seed_generator").state).tolist() == [11, 3]


def test_on_another_number_of_ranks_generators_get_new_states_and_the_rest_rank_0s() -> None:
    generator, scale = tf.random.Generator.from_seed(3), tf.Variable(0.0)
    exactness = Exactness(keras.Sequential(), {}, [], list)
    exactness.variables = {"noise": generator.state, "scale": scale}
    saved = generator.state.numpy()
    gone = exactness.restore({"noise": saved, "scale": np.float32(0.5), "left": saved}, derived_from=(4, 2, 1, 0))
    assert (gone, float(scale)) == (["left"], 0.5)
    assert generator.state.numpy().tolist() != saved.tolist()


class Holder:
    """An object of a program."""

    def __init__(self) -> None:
        self.count, self.items, self.array = 0, [1, 2], np.zeros(3)
        self.generator = np.random.default_rng(1)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda held: setattr(held, "count", 1), "held.count"),
        (lambda held: held.items.append(3), "held.items"),
        (lambda held: held.array.__setitem__(0, 1.0), "held.array"),
        (lambda held: held.generator.normal(), "held.generator"),
    ],
    ids=["number", "list", "array", "generator"],
)
def test_a_value_of_python_that_changed_is_found(change: Any, path: str) -> None:
    held = Holder()
    before = Values.read({"held": held})
    assert before.changed(Values.read({"held": held})) == []
    change(held)
    assert before.changed(Values.read({"held": held}))[0] == path


def test_a_step_whose_closure_is_not_assigned_yet_is_not_an_error() -> None:
    def make(is_assigned: bool) -> Any:
        if is_assigned:
            late = tf.function(lambda: 1)
        return lambda: late()

    assert concrete_functions(make(is_assigned=False)) == []
