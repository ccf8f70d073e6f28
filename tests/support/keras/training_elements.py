"""Trainings put together from elements: each element is what programs do, and what a resume can promise for it.

A training takes one element for each part: layers, loss, class of the model, callback, data, optimizer, options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from hpcckpt.keras import stateless

layers = keras.layers
IS_KERAS_3 = keras.__version__.startswith("3")
SIZE, N_ROWS = 5, 50
Part = Literal["layer", "loss", "model", "callback", "data", "optimizer", "options"]
DRAWS, PYTHON = "draws from a stream that cannot be saved", "changed since training began"
CALLBACK, EAGER = "a state of callback", "run_eagerly runs"


@dataclass(frozen=True)
class Element:
    """A part of a training.

    Attributes
    ----------
    part : str
        Which part it is.
    make : callable
        Makes it, as a new process would.
    reason : str
        What keeps a resume from being exact; empty if nothing does.
    is_claimed : bool
        Whether the issue of wrong claims names it.
    """

    part: Part
    make: Callable[[], Any]
    reason: str = ""
    is_claimed: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.make.__name__.strip("_")


ELEMENTS: dict[str, Element] = {}


def element(part: Part, reason: str = "", *, claimed: bool = False, only: int = 0) -> Callable[[Any], Any]:
    """Take in a function or class as an element; only for Keras 2 or Keras 3 if `only` says so."""

    def take(make: Callable[[], Any]) -> Callable[[], Any]:
        if only in (0, 3 if IS_KERAS_3 else 2):
            found = Element(part, make, reason, claimed)
            ELEMENTS[found.name] = found
        return make

    return take


# -- layers ------------------------------------------------------------------------------------------


@element("layer")
def no_more() -> list[Any]:
    return []


@element("layer")
def dropout_and_batch_norm() -> list[Any]:
    return [layers.Dropout(0.3), layers.BatchNormalization(), layers.GaussianNoise(0.1)]


@element("layer")
def plain_custom_layer() -> list[Any]:
    class Scale(layers.Layer):  # type: ignore[misc]  # Keras has no types
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by, self.table = by, np.linspace(0.5, 1.5, 6, dtype="float32")

        def call(self, inputs: Any) -> Any:
            return inputs * self.by * self.table

    return [Scale(0.7)]


@element("layer", DRAWS, claimed=True)
def tf_random_in_a_layer() -> list[Any]:
    class Sampling(layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return inputs + 0.1 * tf.random.normal(tf.shape(inputs))

    return [Sampling()]


@element("layer", DRAWS, claimed=True)
def tf_random_in_a_lambda() -> list[Any]:
    return [layers.Lambda(lambda inputs: inputs * tf.random.uniform(tf.shape(inputs)), output_shape=(6,))]


@element("layer", claimed=True)
def stateful_lstm() -> list[Any]:
    return [layers.Reshape((2, 3)), layers.LSTM(4, stateful=True)]


@element("layer", claimed=True)
def stateful_bidirectional_gru() -> list[Any]:
    return [layers.Reshape((2, 3)), layers.Bidirectional(layers.GRU(3, stateful=True))]


@element("layer", claimed=True)
def own_generator_of_a_layer() -> list[Any]:
    class Noise(layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.generator = tf.random.Generator.from_seed(3)

        def call(self, inputs: Any) -> Any:
            return inputs + 0.1 * self.generator.normal(tf.shape(inputs))

    return [Noise()]


@element("layer", PYTHON, claimed=True)
def numpy_generator_of_a_layer() -> list[Any]:
    class Noise(layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.generator = np.random.default_rng(3)

        def call(self, inputs: Any) -> Any:
            return inputs + self.generator.normal(size=6).astype("float32")

    return [Noise()]


@element("layer", "draws from NumPy's generator when it is traced", claimed=True)
def numpy_in_a_layer() -> list[Any]:
    class Noise(layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return inputs + np.random.normal(size=6).astype("float32")  # noqa: NPY002 - as old programs do

    return [Noise()]


@element("layer", "runs Python in the training step", claimed=True)
def numpy_generator_by_numpy_function() -> list[Any]:
    class Noise(layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.generator = np.random.default_rng(3)

        def call(self, inputs: Any) -> Any:
            drawn = tf.numpy_function(lambda: self.generator.normal(size=6).astype("float32"), [], tf.float32)
            return inputs + 0.1 * tf.ensure_shape(drawn, (6,))

    return [Noise()]


class Helper:
    """An object that a layer has and Keras does not track."""

    def __init__(self) -> None:
        self.seeds = keras.random.SeedGenerator(5)
        self.average = keras.Variable(1.0, trainable=False)


@element("layer", claimed=True, only=3)
def seeds_and_variable_of_a_helper() -> list[Any]:
    class Quantize(layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.helper = Helper()

        def call(self, inputs: Any) -> Any:
            self.helper.average.assign(self.helper.average * 0.99)
            return inputs * self.helper.average + 0.1 * keras.random.normal((6,), seed=self.helper.seeds)

    return [Quantize()]


# -- losses ------------------------------------------------------------------------------------------


@element("loss")
def mse() -> Any:
    return "mse"


@element("loss", DRAWS, claimed=True)
def tf_random_in_the_loss() -> Any:
    return lambda true, predicted: tf.square(true - predicted) * (1.0 + tf.random.uniform(()))


BETA = tf.Variable(0.0, trainable=False)


@element("loss", claimed=True)
def loss_annealed_by_a_variable_of_the_program() -> Any:
    return lambda true, predicted: tf.square(true - predicted) * (1.0 + BETA.assign_add(0.01))


@element("loss", claimed=True, only=3)
def seeds_of_a_closure() -> Any:
    seeds = keras.random.SeedGenerator(5)
    return lambda true, predicted: keras.ops.square(true - predicted) * (1 + keras.random.uniform((), seed=seeds))


@element("loss", claimed=True, only=3)
def seeds_and_variable_of_a_loss() -> Any:
    class Codebook(keras.losses.Loss):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seeds = keras.random.SeedGenerator(5)
            self.scale = keras.Variable(1.0, trainable=False)

        def call(self, true: Any, predicted: Any) -> Any:
            self.scale.assign(self.scale * 0.99)
            return keras.ops.square(true - predicted) * self.scale * keras.random.uniform((), seed=self.seeds)

    return Codebook()


@element("loss", claimed=True, only=3)
def metric_that_a_loss_divides_by() -> Any:
    class Normalized(keras.losses.Loss):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mean = keras.metrics.Mean()

        def call(self, true: Any, predicted: Any) -> Any:
            self.mean.update_state(keras.ops.abs(true))
            return keras.ops.square(true - predicted) / (1.0 + self.mean.result())

    return Normalized()


# -- classes of models -------------------------------------------------------------------------------


@element("model")
def sequential() -> Any:
    return keras.Sequential


@element("model")
def custom_train_step() -> Any:
    class Custom(keras.Sequential):  # type: ignore[misc]
        clip = 1.0

        def train_step(self, data: Any) -> Any:
            rows, true = data
            return super().train_step((tf.clip_by_value(rows, -self.clip, self.clip), true))

    return Custom


@element("model", DRAWS, claimed=True)
def tf_random_in_train_step() -> Any:
    class Diffusing(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            rows, true = data
            return super().train_step((rows + 0.1 * tf.random.normal(tf.shape(rows)), true))

    return Diffusing


@element("model", PYTHON, claimed=True)
def counter_in_train_step() -> Any:
    class Counting(keras.Sequential):  # type: ignore[misc]
        count = 0

        def train_step(self, data: Any) -> Any:
            self.count += 1
            rows, true = data
            return super().train_step((rows * (1.0 + 0.1 * self.count), true))

    return Counting


@element("model", claimed=True, only=3)
def keras_random_first_drawn_in_compute_loss() -> Any:
    class Drawing(keras.Sequential):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs) * (1.0 + keras.random.uniform(()))

    return Drawing


@element("model", claimed=True, only=3)
def variable_of_the_model_that_train_step_advances() -> Any:
    class Advancing(keras.Sequential):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.time = tf.Variable(0.0, trainable=False)

        def train_step(self, data: Any) -> Any:
            rows, true = data
            return super().train_step((rows * (1.0 + self.time.assign_add(0.01)), true))

    return Advancing


# -- callbacks ---------------------------------------------------------------------------------------


@element("callback")
def schedule_plateau_and_early_stopping() -> list[Any]:
    return [
        keras.callbacks.LearningRateScheduler(lambda _, rate: float(rate) * 0.9),
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0),
        keras.callbacks.EarlyStopping("loss", patience=9),
    ]


class WarmUp(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate with each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.count += 1
        self.model.optimizer.learning_rate = 0.002 * self.count


@element("callback", CALLBACK, claimed=True)
def warm_up_counted_in_an_attribute() -> list[Any]:
    return [WarmUp()]


@element("callback")
def callback_with_state_dict() -> list[Any]:
    class SavedWarmUp(WarmUp):
        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    return [SavedWarmUp()]


@element("callback")
def annealing_by_a_callback_without_state() -> list[Any]:
    @stateless
    class Anneal(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            BETA.assign_add(0.1)

    return [Anneal()]


@element("callback")
def weights_that_shrink_at_the_start_of_each_epoch() -> list[Any]:
    @stateless
    class Shrink(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            for weight in self.model.trainable_weights:
                weight.assign(weight * 0.9)

    return [Shrink()]


@element("callback", PYTHON)
def schedule_that_counts_in_a_closure() -> list[Any]:
    calls: list[int] = []

    def schedule(epoch: int, rate: float) -> float:
        calls.append(epoch)
        return 0.05 / len(calls)

    return [keras.callbacks.LearningRateScheduler(schedule)]


@element("callback", "compiled again", claimed=True)
def compiles_again() -> list[Any]:
    @stateless
    class Unfreeze(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                self.model.compile(keras.optimizers.SGD(0.01), "mse")
                self.model.make_train_function()

    return [Unfreeze()]


# -- data, optimizers, options -----------------------------------------------------------------------


def rows() -> tuple[Any, Any]:
    found = np.random.default_rng(3).normal(size=(N_ROWS, 4)).astype("float32")
    return found, found.sum(axis=1, keepdims=True)


@element("data")
def arrays() -> dict[str, Any]:
    return {"x": rows()[0], "y": rows()[1], "batch_size": SIZE}


@element("data")
def pipeline() -> dict[str, Any]:
    return {"x": tf.data.Dataset.from_tensor_slices(rows()).shuffle(20).batch(SIZE, drop_remainder=True).prefetch(2)}


@element("data")
def with_validation() -> dict[str, Any]:
    return {**arrays(), "validation_data": rows(), "validation_batch_size": SIZE}


@element("data", "data is skipped")
def python_generator() -> dict[str, Any]:
    def batches() -> Iterator[Any]:
        order = np.random.default_rng(3)
        while True:
            chosen = order.permutation(N_ROWS)[:SIZE]
            yield rows()[0][chosen], rows()[1][chosen]

    return {"x": batches(), "steps_per_epoch": N_ROWS // SIZE}


@element("optimizer")
def adam() -> Any:
    return keras.optimizers.Adam(0.02)


@element("optimizer")
def sgd_with_a_schedule() -> Any:
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.02, 10, 0.9), momentum=0.9)


@element("options")
def compiled() -> dict[str, Any]:
    return {}


@element("options")
def several_steps_at_once() -> dict[str, Any]:
    return {"steps_per_execution": 2}


@element("options")
def compiled_by_xla() -> dict[str, Any]:
    return {"jit_compile": True}


@element("options", EAGER)
def run_eagerly() -> dict[str, Any]:
    return {"run_eagerly": True}


PLAIN: dict[Part, str] = {
    "layer": "no_more", "loss": "mse", "model": "sequential", "data": "arrays", "optimizer": "adam",
    "options": "compiled",
}  # fmt: skip


# -- a training --------------------------------------------------------------------------------------


def fresh(seed: int = 7) -> None:
    """Be as a new process is: no names counted, no variable of the program changed, all streams at their beginning."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    tf.random.set_global_generator(tf.random.Generator.from_seed(seed))
    BETA.assign(0.0)
    if IS_KERAS_3:
        from keras.src.backend.common import global_state

        global_state.set_global_attribute("global_seed_generator", None)


def train(names: Sequence[str], *more: Any, epochs: int = 3) -> Any:
    """Train what these elements make, and plain ones for the other parts; return the model."""
    parts: dict[str, Any] = {"layer": [], "callback": []}
    chosen = [ELEMENTS[name] for name in names]
    chosen += [ELEMENTS[name] for part, name in PLAIN.items() if part not in {one.part for one in chosen}]
    for one in chosen:
        made = one.make()
        parts[one.part] = [*parts[one.part], made] if one.part in ("layer", "callback") else made
    found = [layer for some in parts["layer"] for layer in [layers.Dense(6), *some]]
    model = parts["model"]([layers.Input(batch_shape=(SIZE, 4)), *found, layers.Dense(1)])
    model.compile(parts["optimizer"], parts["loss"], **parts["options"])
    callbacks = [callback for some in parts["callback"] for callback in some]
    model.fit(**parts["data"], epochs=epochs, verbose=0, callbacks=[*callbacks, *more])
    return model


def weights(model: Any) -> bytes:
    """Return the bytes of all variables of a model."""
    return b"".join(np.asarray(variable).tobytes() for variable in model.weights)
