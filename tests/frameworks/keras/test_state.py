"""What comes back is what was saved, to the bit, in a process that knows nothing of the first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.errors import ReplicaMismatchError, StateError, StateMismatchError
from hpcckpt.keras.model import layers, optimizers, state as state_of_keras
from hpcckpt.state.tree import flatten
from tests.support.keras.models import IS_KERAS_3, assert_equal, lenet5, recurrent, rows, small, values
from tests.support.programs import environment

IN_A_FRESH_PROCESS = """
import json, sys
from tests.support.keras import models
import hpcckpt as hc
model = models.lenet5()
with hc.Checkpointer(sys.argv[1]) as ckpt:
    ckpt.restore({"model": model})
print("HERE" + json.dumps({name: array.tobytes().hex() for name, array in models.values(model).items()}))
print("RATE" + json.dumps(float(model.optimizer.learning_rate)))
"""


def trained_lenet5() -> Any:
    """Return a LeNet5 whose slots and learning rate are not what they were at the start."""
    model = lenet5()
    x = np.random.default_rng(0).normal(size=(20, 28, 28, 1)).astype("float32")
    model.fit(x, np.zeros((20, 10), "float32"), batch_size=5, verbose=0)
    model.optimizer.learning_rate = 0.2
    return model


def test_weights_slots_and_learning_rate_come_back_in_a_fresh_process(run_dir: Path) -> None:
    model = trained_lenet5()
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(4, {"model": model}).result()
    command = [sys.executable, "-W", "ignore", "-c", IN_A_FRESH_PROCESS, str(run_dir)]
    out = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=True, timeout=240
    ).stdout.splitlines()
    found = {line[:4]: json.loads(line[4:]) for line in out if line[:4] in {"HERE", "RATE"}}
    assert found["HERE"] == {name: array.tobytes().hex() for name, array in values(model).items()}
    assert np.float32(found["RATE"]) == np.float32(0.2)


@pytest.mark.parametrize("make", [small, recurrent])
def test_restore_is_bit_exact(make: Any, run_dir: Path) -> None:
    saved, other = make(), make()
    for variable in other.weights:
        variable.assign(variable + 1)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": saved}).result()
        ckpt.restore({"model": other})
    assert_equal(values(other), values(saved))


def test_training_goes_on_as_if_never_interrupted(run_dir: Path, fit: Any) -> None:
    straight, first, second = small(), small(), small(seed=2)
    fit(straight, rows(), 2)
    fit(first, rows(), 1)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": first}).result()
        ckpt.restore({"model": second})
    fit(second, rows(), 1)
    assert_equal(values(second), values(straight))


def test_moving_statistics_count_on_root_and_weights_on_all() -> None:
    kinds = {name: leaf.declaration.spec.kind for name, leaf in flatten({"model": small()}).tensors.items()}
    assert kinds.pop("model/batch_normalization/moving_mean") == "root"
    assert kinds.pop("model/batch_normalization/moving_variance") == "root"
    assert set(kinds.values()) == {"replicated"}


def test_random_states_of_layers_belong_to_each_rank() -> None:
    tf.keras.backend.experimental.enable_tf_random_generator() if not IS_KERAS_3 else None
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dropout(0.5, seed=1)])
    try:
        leaf = flatten({"model": model}).tensors["model/dropout/seed_generator_state"]
    finally:
        tf.keras.backend.experimental.disable_tf_random_generator() if not IS_KERAS_3 else None
    assert leaf.declaration.spec.kind == "per-rank"
    before = leaf.read().copy()
    model(np.ones((2, 4), "float32"), training=True)
    assert leaf.read().tobytes() != before.tobytes()
    leaf.assign(before)
    assert leaf.read().tobytes() == before.tobytes()


class Sampling(keras.layers.Layer):  # type: ignore[misc,unused-ignore]
    """A layer that holds generators of TensorFlow in attributes, as those of variational models do."""

    def __init__(self) -> None:
        super().__init__(name="sampling")
        self.noise = tf.random.Generator.from_seed(1)
        self.others = {"a": tf.random.Generator.from_seed(2)}

    def call(self, inputs: Any) -> Any:
        return inputs + self.noise.normal(tf.shape(inputs)) + self.others["a"].normal(tf.shape(inputs))


def sampler() -> Any:
    model = keras.Sequential([keras.layers.Input((2,)), Sampling()])
    model.mixers = [tf.random.Generator.from_seed(3)]
    return model


def test_generators_that_the_program_gave_layers_and_models_come_back(run_dir: Path) -> None:
    model, inputs = sampler(), np.zeros((2, 2), "float32")
    leaves = flatten({"model": model}).tensors
    state = "seed_generator_state"
    assert sorted(leaves) == [f"model/sampling/{state}", f"model/sampling/{state}_1", f"model/{state}"]
    assert {leaf.declaration.spec.kind for leaf in leaves.values()} == {"per-rank"}
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        expected = [model(inputs), model.mixers[0].normal((2,))]
        other = sampler()
        other(inputs)
        ckpt.restore({"model": other})
    for one, value in zip([other(inputs), other.mixers[0].normal((2,))], expected, strict=True):
        assert np.array_equal(one, value)


def test_checkpoints_without_the_generators_that_layers_hold_are_restored(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hc.Checkpointer(run_dir) as ckpt:
        with monkeypatch.context() as older:
            older.setattr(layers, "generators_in", lambda _: ())
            ckpt.save(1, {"model": sampler()}).result()
        model = sampler()
        before = model.mixers[0].state.numpy()
        ckpt.restore({"model": model})
    assert np.array_equal(model.mixers[0].state, before)
    assert "model/seed_generator_state is not in the checkpoint: the layer keeps what it has" in caplog.text


def test_reading_does_not_copy_and_later_updates_leave_what_was_read() -> None:
    variable = tf.Variable(np.arange(1000.0))
    leaf = flatten({"v": variable}).tensors["v"]
    first, second = leaf.read(), leaf.read()
    assert first.ctypes.data == second.ctypes.data
    variable.assign_add(tf.ones(1000, tf.float64))
    assert np.array_equal(first, np.arange(1000.0))
    assert np.array_equal(leaf.read(), np.arange(1000.0) + 1)


def test_assigned_memory_is_not_shared_with_the_variable() -> None:
    variable = tf.Variable(np.zeros(1 << 16))
    new = np.ones(1 << 16)
    flatten({"v": variable}).tensors["v"].assign(new)
    new[:] = 2
    assert np.array_equal(variable.numpy(), np.ones(1 << 16))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_variables_of_many_types_come_back(dtype: str, run_dir: Path) -> None:
    source = tf.Variable(tf.cast([0, 1, 2], dtype))
    target = tf.Variable(tf.cast([0, 0, 0], dtype))
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"v": source}).result()
        ckpt.restore({"v": target})
    assert bool(tf.reduce_all(source == target))


def added_layer(model: Any) -> None:
    model.add(keras.layers.Dense(5, name="added"))


def renamed_layer(model: Any) -> None:
    setattr(model.layers[0], "name" if IS_KERAS_3 else "_name", "renamed")


def other_optimizer(model: Any) -> None:
    model.compile("rmsprop", "mse")


def rebuilt_optimizer(model: Any) -> None:
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)


def replaced_layer(model: Any) -> None:
    model.pop()
    model.add(keras.layers.Dense(1))


def rebuilt_layer(model: Any) -> None:
    layer = model.layers[-1]
    layer.built, layer.kernel_initializer = False, keras.initializers.Ones()
    (layer._trainable_variables if IS_KERAS_3 else layer._trainable_weights).clear()
    layer._tracker.unlock() if IS_KERAS_3 else None
    layer.build((None, 3))


CHANGES = [added_layer, renamed_layer, other_optimizer, rebuilt_optimizer, replaced_layer, rebuilt_layer]


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_between_two_saves_is_seen(change: Any, fit: Any) -> None:
    model = small()
    fit(model, rows(5), 1)
    before = flatten({"model": model}).tensors
    assert [leaf.source for leaf in flatten({"model": model}).tensors.values()] == Same(before)
    change(model)
    after = flatten({"model": model}).tensors
    living = {id(v) for owner in (model, model.optimizer) for v in map(inner, variables_of(owner))}
    assert {id(leaf.source) for leaf in after.values()} - {id(inner(model.optimizer.learning_rate))} <= living
    assert [leaf.source for leaf in after.values()] != Same(before) or list(after) != list(before)


class Same:
    """Equal to a list of the very same variables: variables themselves compare by value."""

    def __init__(self, leaves: Any) -> None:
        self._ids = [id(leaf.source) for leaf in leaves.values()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and [id(source) for source in other] == self._ids


def inner(variable: Any) -> Any:
    return variable if isinstance(variable, tf.Variable) else variable.value


def variables_of(owner: Any) -> list[Any]:
    found = owner.variables
    return list(found() if callable(found) else found)


def test_a_bare_keras_variable_and_a_bare_optimizer_are_states_too(run_dir: Path) -> None:
    model = small()
    model.optimizer.build(model.trainable_variables)
    state = {"weight": model.weights[0], "optimizer": model.optimizer}
    assert "optimizer/iteration" in flatten(state).tensors
    assert flatten(state).tensors["weight"].declaration.spec.shape == (4, 3)


def test_another_model_is_refused_and_left_alone(run_dir: Path) -> None:
    other = lenet5()
    before = values(other)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": small()}).result()
        with pytest.raises(StateMismatchError, match="conv2d"):
            ckpt.restore({"model": other})
    assert_equal(values(other), before)


def test_distributed_variables_are_refused() -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        variable = tf.Variable(1.0)
    with pytest.raises(StateError, match=r"tf\.distribute"):
        flatten({"v": variable})


def with_optimizers(*, is_built: bool = True, is_direct: bool = False) -> Any:
    """Return a model that holds optimizers in a list and in a dict, as GANs do; or one as an attribute."""
    model = small("sgd")
    one, two = keras.optimizers.SGD(0.25, momentum=0.9), keras.optimizers.Adam(0.5)
    if is_direct:
        model.critic = one
    else:
        model.pair, model.by_name = [one], {"critic": (two,)}
    for optimizer in (one, two) if is_built else ():
        optimizer.build(model.trainable_variables)
        gradients = [tf.ones(variable.shape) for variable in model.trainable_variables]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return model


def test_optimizers_in_lists_and_dicts_of_a_model_are_restored(run_dir: Path) -> None:
    model, other = with_optimizers(), with_optimizers()
    slot = "momentum" if IS_KERAS_3 else "m"
    assert {"pair/0/iteration", f"by_name/critic/0/{slot}/dense/kernel"} <= set(values(model))
    for leaf in flatten({"model": other}).tensors.values():
        leaf.assign(np.zeros_like(leaf.read()))
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        ckpt.restore({"model": other})
    assert_equal(values(other), values(model))


@pytest.mark.parametrize("is_direct", [False, True])
def test_held_optimizers_without_variables_are_built_for_what_was_trained(run_dir: Path, is_direct: bool) -> None:
    model, other = with_optimizers(is_direct=is_direct), with_optimizers(is_built=False, is_direct=is_direct)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        ckpt.restore({"model": other})
    assert_equal(values(other), values(model))


def test_a_restore_into_an_optimizer_of_other_weights_says_what_to_do(run_dir: Path) -> None:
    model, other = with_optimizers(is_built=False), with_optimizers(is_built=False)
    model.pair[0].build([keras.Variable(1.0) if IS_KERAS_3 else tf.Variable(1.0)])
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        with pytest.raises(StateMismatchError, match=r"pair/0.* has no variables yet; call its build\(variables\)"):
            ckpt.restore({"model": other})


def test_steps_without_optimizers_that_a_model_holds_are_restored(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = with_optimizers()
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": with_optimizers(is_built=False)}).result()
        ckpt.restore({"model": model})
    assert int(model.pair[0].iterations) == 1
    assert "pair/0 is not in the checkpoint: the optimizer keeps what it has" in caplog.text


def adversarial() -> tuple[Any, Any]:
    """Return a discriminator, frozen after it was compiled, and the model that trains a generator against it."""
    critic = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)], name="critic")
    critic.compile("adam", "mse")
    critic.trainable = False
    maker = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2)], name="maker")
    both = keras.Sequential([keras.layers.Input((2,)), maker, critic])
    both.compile("adam", "mse")
    return critic, both


def train_in_turns(critic: Any, both: Any) -> list[Any]:
    x = np.arange(8, dtype="float32").reshape(4, 2)
    for _ in range(2):
        critic.trainable = critic.trainable or IS_KERAS_3  # Keras 2.15 trains what was trainable when it was compiled
        critic.train_on_batch(x, np.ones((4, 1)))
        critic.trainable = False
        both.train_on_batch(x, np.zeros((4, 1)))
    return [*both.get_weights(), *[np.asarray(each) for each in optimizers.own_variables(critic.optimizer)]]


@pytest.mark.parametrize("is_trained_before", [False, True])
def test_a_model_frozen_after_it_was_compiled_trains_on_as_if_never_interrupted(
    run_dir: Path, *, is_trained_before: bool
) -> None:
    critic, both = adversarial()
    if is_trained_before:
        train_in_turns(critic, both)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"critic": critic, "gan": both}).result()
        expected = train_in_turns(critic, both)
        critic, both = adversarial()
        ckpt.restore({"critic": critic, "gan": both})
    for one, value in zip(train_in_turns(critic, both), expected, strict=True):
        assert np.array_equal(one, value)


def test_an_optimizer_in_the_state_beside_its_model_is_refused_with_what_to_pass() -> None:
    model = small()
    with pytest.raises(
        StateError, match=r"optimizer/.*appears twice, for one variable: .* \(a model includes its optimizer"
    ):
        flatten({"model": model, "optimizer": model.optimizer})


class Accumulating(keras.optimizers.SGD):  # type: ignore[misc,unused-ignore]
    """Keeps sums of gradients, a generator and another optimizer, as those of the program do."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.noise = tf.random.Generator.from_seed(1)
        self.inner = keras.optimizers.Adam()

    def build(self, var_list: Any) -> None:
        super().build(var_list)
        if not hasattr(self, "sums"):
            self.sums = [tf.Variable(np.zeros(variable.shape, "float32"), trainable=False) for variable in var_list]
            self.counts = {"calls": tf.Variable(0)}


def accumulating() -> Any:
    model = small("sgd")
    model.compile(Accumulating(), "mse")
    return model


def disturb(optimizer: Any) -> None:
    optimizer.sums[0].assign_add(tf.ones(optimizer.sums[0].shape))
    optimizer.counts["calls"].assign_add(1)
    optimizer.noise.normal((1,))
    optimizer.inner.iterations.assign_add(1)


def test_what_an_optimizer_of_the_program_holds_beside_its_variables_is_restored(run_dir: Path) -> None:
    model, other = accumulating(), accumulating()
    for each in (model.optimizer, model.optimizer.inner):
        each.build(model.trainable_variables)
    disturb(model.optimizer)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        ckpt.restore({"model": other})
    state = {"sums/batch_normalization/gamma", "counts/calls", "seed_generator_state", "inner/iteration"}
    assert {f"optimizer/held/{each}" for each in state} <= set(values(model))
    assert_equal(values(other), values(model))


def test_checkpoints_without_what_an_optimizer_of_the_program_holds_are_restored(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hc.Checkpointer(run_dir) as ckpt:
        with monkeypatch.context() as older:
            older.setattr(state_of_keras, "extra_leaves", lambda *_: ())
            ckpt.save(1, {"model": accumulating()}).result()
        other = accumulating()
        other.optimizer.build(other.trainable_variables)
        disturb(other.optimizer)
        ckpt.restore({"model": other})
    assert int(other.optimizer.counts["calls"]) == 1
    assert "optimizer/held/counts/calls is not in the checkpoint: the optimizer keeps what it has" in caplog.text


def test_what_an_optimizer_of_the_program_has_not_made_yet_is_told_of(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, other = accumulating(), small("sgd")
    model.optimizer.build(model.trainable_variables)
    other.compile(Plain(0.1), "mse")
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        ckpt.restore({"model": other})
        ckpt.save(2, {"optimizer": model.optimizer}).result()
        ckpt.restore({"optimizer": model.optimizer})
    assert "optimizer/held/counts/calls is only in the checkpoint: the optimizer keeps what it has" in caplog.text


class Plain(keras.optimizers.SGD):  # type: ignore[misc,unused-ignore]
    """Has nothing else yet."""


def test_of_an_optimizer_that_horovod_wraps_the_wrapped_class_counts() -> None:
    hvd = pytest.importorskip("horovod.tensorflow.keras", reason="Horovod is not installed")
    hvd.init()
    wrapped = [hvd.DistributedOptimizer(each) for each in (keras.optimizers.Adam(), Plain(0.1))]
    assert [layers.is_of_keras(each) for each in wrapped] == [True, False]


@pytest.mark.parametrize("key", [id, lambda v: v.name, lambda v: v.ref() if hasattr(v, "ref") else v.path])
def test_weights_may_be_the_keys_of_what_an_optimizer_holds(run_dir: Path, key: Any) -> None:
    def keyed(value: float) -> Any:
        model = small("sgd")
        model.compile(Plain(0.1), "mse")
        model.optimizer.sums = {key(v): tf.Variable(np.full(v.shape, value)) for v in model.trainable_variables}
        model.optimizer.other = model.optimizer.itself = model.optimizer
        return model

    model, other = keyed(1.0), keyed(2.0)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        ckpt.restore({"model": other})
    assert all(np.all(each.numpy() == 1.0) for each in other.optimizer.sums.values())


@pytest.mark.parametrize("name", ["Adam", "RMSprop"])
def test_the_checkpoint_of_another_optimizer_is_refused(run_dir: Path, name: str) -> None:
    other = small("sgd")
    other.compile(getattr(keras.optimizers, name)(0.1), "mse")
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": small("sgd")}).result()
        with pytest.raises(StateMismatchError, match="is in the state but not in the checkpoint"):
            ckpt.restore({"model": other})


class Agent(keras.Model):  # type: ignore[misc,unused-ignore]
    """Has a model that holds the optimizer of its weights, and is never compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = Actor()

    def call(self, inputs: Any) -> Any:
        return self.actor(inputs)


class Actor(keras.Model):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.net, self.rule = keras.layers.Dense(1), keras.optimizers.Adam(0.1)

    def call(self, inputs: Any) -> Any:
        return self.net(inputs)

    def learn(self, x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.net(x) ** 2)
        variables = self.net.trainable_variables
        self.rule.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def test_an_optimizer_that_a_part_of_a_model_holds_is_restored_and_built_for_that(run_dir: Path) -> None:
    x = np.ones((2, 3), "float32")
    agent, other = Agent(), Agent()
    for each in (agent, other):
        each(x)
    agent.actor.learn(x)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": agent}).result()
        ckpt.restore({"model": other})
    for each in (agent, other):
        each.actor.learn(x)
    assert_equal(values(other), values(agent))
    assert flatten({"model": agent, "actor": agent.actor}).tensors


def test_a_compiled_optimizer_that_trains_a_part_of_the_model_is_restored(run_dir: Path) -> None:
    model, other = small("adam"), small("adam", seed=2)
    part = model.layers[-1].trainable_variables
    model.optimizer.build(part)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        ckpt.restore({"model": other})
    saved = values(model)
    assert_equal({name: value for name, value in values(other).items() if name in saved}, saved)


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 has no legacy optimizers")
def test_models_that_share_a_legacy_optimizer_are_restored(run_dir: Path) -> None:
    def shared() -> dict[str, Any]:
        critic, both = adversarial()
        rule = tf.keras.optimizers.legacy.Adam(0.1)
        critic.trainable = True
        critic.compile(rule, "mse")
        critic.trainable = False
        both.compile(rule, "mse")
        return {"critic": critic, "gan": both}

    models, others = shared(), shared()
    train_in_turns(*models.values())
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, models).result()
        ckpt.restore(others)
    for one, value in zip(train_in_turns(*others.values()), train_in_turns(*models.values()), strict=True):
        assert np.array_equal(one, value)


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 trains what is trainable now")
def test_a_save_freezes_nothing_and_builds_for_all_that_may_be_trained(run_dir: Path) -> None:
    shared = keras.layers.Dense(2)
    first, second = (keras.Sequential([keras.layers.Input((2,)), shared]) for _ in range(2))
    model = keras.Sequential([keras.layers.Input((2,)), first, second, keras.layers.Dense(1)])
    model.layers[-1].trainable = False
    model.compile("adam", "mse")
    shared.trainable, model.layers[-1].trainable = False, True
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
    assert not shared.trainable
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(np.ones((2, 2), "float32")) ** 2)
    variables = model.trainable_variables
    model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    model.train_on_batch(np.ones((2, 2), "float32"), np.ones((2, 1), "float32"))


class Unused(keras.Model):  # type: ignore[misc,unused-ignore]
    """Has a layer that it never calls, and one that it calls in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.dropout = keras.layers.Dense(1), keras.layers.Dense(1), keras.layers.Dropout(0.5)

    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = self.used(inputs)
        return self.dropout(outputs, training=training) if training else outputs


@pytest.mark.filterwarnings("ignore:`build")  # Keras 3 notices it too
def test_a_layer_that_a_built_model_does_not_call_does_not_matter(run_dir: Path) -> None:
    model, other = Unused(), Unused()
    for number, each in enumerate((model, other)):
        each(np.ones((1, 3), "float32"))
        each.used.kernel.assign(np.full((3, 1), float(number)))
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        ckpt.restore({"model": other})
    assert not np.asarray(other.used.kernel).any()


@pytest.mark.parametrize("is_direct", [False, True])
def test_weights_are_found_beside_the_slots_of_held_optimizers(run_dir: Path, is_direct: bool) -> None:
    model, other = with_optimizers(is_direct=is_direct), small("sgd", seed=2)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"gan": model}).result()
    hc.keras.load_weights(other, run_dir, optimizer=False)
    for one, expected in zip(other.get_weights(), model.get_weights(), strict=True):
        assert np.array_equal(one, expected)


@pytest.mark.parametrize("held", [{"net": None}, {"net": None, "iteration": np.int64(7)}], ids=["alone", "counted"])
def test_weights_are_found_beside_a_counter_of_the_program(run_dir: Path, held: dict[str, Any]) -> None:
    model, other = small("sgd"), small("sgd", seed=2)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"run": {**held, "net": model}}).result()
    hc.keras.load_weights(other, run_dir, optimizer=False)
    for one, expected in zip(other.get_weights(), model.get_weights(), strict=True):
        assert np.array_equal(one, expected)


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 2.15 has no variables of a loss scale to build")
def test_the_loss_scale_of_a_built_optimizer_is_restored(run_dir: Path) -> None:
    def scaled(initial: float) -> Any:
        model, inner = small("sgd"), keras.optimizers.Adam()
        inner.build(model.trainable_variables)
        model.compile(keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=initial), "mse")
        return model

    model, other = scaled(256.0), scaled(2.0)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        ckpt.restore({"model": other})
    assert float(other.optimizer.dynamic_scale) == 256.0


def _model(constant: float, vocabulary: list[str] | None = None) -> Any:
    inputs = keras.layers.Input((2,))
    x = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(constant))(inputs)
    outputs = [keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(x))]
    if vocabulary is not None:
        words = keras.layers.Input((1,), dtype="string")
        lookup = keras.layers.StringLookup()
        lookup.adapt(np.array(vocabulary))
        return keras.Model([inputs, words], [*outputs, lookup(words)])
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [((1.0,), (2.0,), "dense.*/kernel"), ((1.0, ["a", "b"]), (1.0, ["a", "c"]), "string_lookup/vocabulary")],
    ids=["weights", "vocabulary"],
)
def test_a_model_under_two_names_is_refused_if_the_values_differ(
    run_dir: Path, one: Any, other: Any, name: str
) -> None:
    with hc.Checkpointer(run_dir) as ckpt:
        keras.utils.set_random_seed(1)
        keras.backend.clear_session()
        first = _model(*one)
        keras.backend.clear_session()
        ckpt.save(1, {"best": first, "model": _model(*other)}).result()
        keras.backend.clear_session()
        model = _model(*other)
        before = values(model)
        with pytest.raises(StateMismatchError, match=f"'model/{name}': has the memory of 'best/{name}'"):
            ckpt.restore({"best": model, "model": model})
        assert_equal(values(model), before)
        ckpt.save(2, {"best": first, "model": first}).result()
        ckpt.restore({"best": model, "model": model})
    assert_equal(values(model), values(first))


def test_models_that_share_layers_are_restored(run_dir: Path) -> None:
    def gan(constant: float) -> dict[str, Any]:
        keras.backend.clear_session()
        generator, discriminator = _model(constant), keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        whole = keras.Sequential([generator, discriminator])
        for model in (discriminator, whole):
            model.compile("adam", "mse")
        return {"generator": generator, "discriminator": discriminator, "gan": whole}

    saved, now = gan(1.0), gan(2.0)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, saved).result()
        ckpt.restore(now)
    for name, model in saved.items():
        assert_equal(values(now[name]), values(model))


@pytest.mark.counts(2)
@pytest.mark.parametrize("other", [["a", "b"], ["c"]], ids=["of other length", "of the same length"])
def test_vocabularies_that_differ_are_refused(ranks: Any, run_dir: Path, other: list[str]) -> None:
    models = [_model(1.0, ["a"]), _model(1.0, other)]

    def body(comm: Any) -> None:
        text = r"differ from rank 0's: 'model/.*/vocabulary' on rank 1"
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(ReplicaMismatchError, match=text):
            ckpt.save(1, {"model": models[comm.rank]}).result()

    ranks(body)
