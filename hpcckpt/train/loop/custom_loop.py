"""A loop whose step is the program's own: what happens with a batch, and nothing else."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcckpt.errors import CodeError
from hpcckpt.keras.callbacks import metric_state
from hpcckpt.train.loop.train_loop import TrainLoop

__all__ = ["CustomTrainLoop", "SoFar"]

_ATTRIBUTE = "train_loop_mean_of_"


@dataclass(frozen=True, slots=True)
class SoFar:
    """A figure of the whole epoch so far, as `CustomTrainLoop.measure` returns it; it is not averaged."""

    value: Any


class CustomTrainLoop(TrainLoop):
    """Train with a custom step.

    Subclass it, define the step of a batch, and export it::

        @hpcckpt.train.export_config
        class TapeLoop(hpcckpt.train.CustomTrainLoop):
            def train_step(self, batch):
                x, y = batch
                with tf.GradientTape() as tape:
                    predicted = self.model(x, training=True)
                    loss = self.loss(y, predicted)
                self.minimize(loss, tape)
                return {"loss": loss, **self.measure(y, predicted)}

    It is checkpointed, resumed, stopped, and distributed over ranks like `KerasTrainLoop`, because ``fit`` calls the
    step. The optimizer applies gradients averaged over the ranks. `train_step` becomes part of a graph, unless
    `is_eager`.

    Parameters
    ----------
    *args, **kwargs
        As for `TrainLoop`; a subclass may take more.

    Attributes
    ----------
    model, optimizer, loss : object
        Those of the configuration, compiled; `loss` may be ``None``.
    is_eager : bool
        Class attribute: whether the step runs as Python for each batch, which is slow.
    """

    is_eager = False
    optimizer: Any = None
    loss: Any = None

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        """Train on a batch; return values by name. To be overridden. Collective.

        The means of the values over an epoch are shown.

        Parameters
        ----------
        batch : nest of tf.Tensor
            An element of the dataset.
        """
        del batch
        raise CodeError(f"{type(self).__name__} has no train_step: write one, or use KerasTrainLoop")

    def valid_step(self, batch: Any) -> Mapping[str, Any]:
        """Validate on a batch; return values by name.

        By default these are the loss and the metrics.

        Parameters
        ----------
        batch : nest of tf.Tensor
            An element of the dataset.
        """
        import keras
        import tensorflow as tf

        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        predicted = self.model(x, training=False)
        figures = self.measure(y, predicted, sample_weight)
        if self.loss is None:
            return figures
        return {"loss": tf.add_n([self.loss(y, predicted, sample_weight), *self.model.losses]), **figures}

    # -- for steps ---------------------------------------------------------------------------------

    def minimize(self, loss: Any, tape: Any, variables: Any = None) -> None:
        """Apply the gradients of a loss, averaged over the ranks, to the model's variables. Collective.

        If the optimizer scales the loss, as in mixed precision, the gradients are those of the scaled loss.

        Parameters
        ----------
        loss : tf.Tensor
            The loss.
        tape : tf.GradientTape
            The tape that recorded the loss.
        variables : list, optional
            The variables; by default all trainable ones of the model.
        """
        wanted = self.model.trainable_variables if variables is None else variables
        gradients = _gradients(self.optimizer, loss, wanted, tape)
        self.optimizer.apply_gradients(list(zip(gradients, wanted, strict=True)))

    def measure(self, y: Any, predicted: Any, sample_weight: Any = None) -> dict[str, SoFar]:
        """Update the configuration's metrics with a batch. Independent.

        Returns their values in the epoch so far.
        """
        found = self.model.compute_metrics(None, y, predicted, sample_weight)
        own = {metric.name for metric in self._means.values()}
        return {name: SoFar(value) for name, value in found.items() if name != "loss" and name not in own}

    # -- what Keras calls ----------------------------------------------------------------------------

    def prepare(self, model: Any, data: Any) -> None:
        """Take over a compiled model, which then trains by this step. Collective."""
        super().prepare(model, data)
        self.optimizer, self.loss = model.optimizer, _built_loss(model)
        self._means: dict[str, Any] = {}
        model.train_step = self._train_step
        model.test_step = self._valid_step
        model.run_eagerly = self.is_eager
        if not self.is_eager:
            self._try_out(data.element_spec)
        metric_state.build(
            model, data
        )  # Keras 3 asks all metrics for their values, also those that no step has measured

    def _try_out(self, spec: Any) -> None:
        """Trace the step once, without running it, so that all figures have their metrics before the first batch.

        A resume within an epoch needs them, to restore what they have accumulated.
        """
        import tensorflow as tf

        tf.function(self._train_step).get_concrete_function(spec)

    def _train_step(self, batch: Any) -> dict[str, Any]:
        return self._figures(self.train_step(batch), "train_step", batch)

    def _valid_step(self, batch: Any) -> dict[str, Any]:
        return self._figures(self.valid_step(batch), "valid_step", batch)

    def _figures(self, found: Any, step: str, batch: Any) -> dict[str, Any]:
        """Return what a step gave as figures of the epoch so far: means over all rows."""
        import tensorflow as tf

        if not isinstance(found, Mapping):
            name = f"{type(self).__name__}.{step}"
            raise CodeError(f"{name} gives {type(found).__name__}, not a mapping of figures by name")
        n_rows = tf.shape(tf.nest.flatten(batch)[0])[0]
        return {
            name: value.value if isinstance(value, SoFar) else self._mean(name, value, n_rows)
            for name, value in found.items()
        }

    def _mean(self, name: str, value: Any, n_rows: Any) -> Any:
        import keras
        import tensorflow as tf

        if name not in self._means:
            with tf.init_scope():
                metric = keras.metrics.Mean(name=name)
                self._means[name] = metric
                with _open_for_parts(self.model):
                    setattr(self.model, _ATTRIBUTE + name, metric)  # so Keras resets it with each epoch
        self._means[name].update_state(tf.reduce_mean(value), sample_weight=n_rows)
        return self._means[name].result()


def _gradients(optimizer: Any, loss: Any, variables: Any, tape: Any) -> Any:
    """Return the gradients that an optimizer wants to be given: it may want those of a loss that it has scaled."""
    import tensorflow as tf

    if hasattr(optimizer, "scale_loss"):  # Keras 3, which divides by the scale when it applies
        return tape.gradient(loss, variables, output_gradients=optimizer.scale_loss(tf.ones_like(loss)))
    if not hasattr(optimizer, "get_scaled_loss"):
        return tape.gradient(loss, variables)
    scaled = tape.gradient(loss, variables, output_gradients=optimizer.get_scaled_loss(tf.ones_like(loss)))
    return optimizer.get_unscaled_gradients(scaled)


@contextlib.contextmanager
def _open_for_parts(model: Any) -> Iterator[None]:
    """Let a model take a part though it is built; Keras 3 locks it then, as Keras' own LoRA has it unlocked."""
    tracker = getattr(model, "_tracker", None)
    if tracker is None:
        yield
        return
    tracker.unlock()
    try:
        yield
    finally:
        tracker.lock()


def _built_loss(model: Any) -> Any:
    """Return the compiled loss, as a function that gives one number for a batch; ``None`` if there is none."""
    import keras

    if model.loss is None:
        return None
    loss = keras.losses.get(model.loss) if isinstance(model.loss, str) else model.loss
    return loss if isinstance(loss, keras.losses.Loss) else functools.partial(_mean_loss, loss)


def _mean_loss(loss: Any, y: Any, predicted: Any, sample_weight: Any = None) -> Any:
    """Return the mean of what a function that is a loss gives for each row."""
    import tensorflow as tf

    values = loss(y, predicted)
    return tf.reduce_mean(values if sample_weight is None else values * tf.cast(sample_weight, values.dtype))
