"""Metrics of an epoch averaged over the ranks, before any other callback uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keras.callbacks import Callback

from hpcckpt.collective.communicator import Communicator
from hpcckpt.keras.callbacks.backup_and_restore import plain_metrics
from hpcckpt.keras.program.declarations import stateless

__all__ = ["MetricMeans", "ValidatedRows", "mean_metrics"]

VALIDATION = "val_"


class ValidatedRows:
    """Counts the rows that a compiled model validates on, in the graph of its validation step.

    Parameters
    ----------
    model : keras.Model
        The model.
    """

    def __init__(self, model: Any) -> None:
        import tensorflow as tf

        self._count = count = stateless(tf.Variable(0, dtype=tf.int64, trainable=False))
        step = model.test_step

        def counting_step(batch: Any) -> Any:
            """Count, and validate."""
            rows = tf.nest.flatten(batch)[0]
            count.assign_add(tf.shape(rows, tf.int64)[0])
            return step(batch)

        model.test_step = counting_step

    def begin(self) -> None:
        """Count from here. Independent."""
        self._count.assign(0)

    @property
    def count(self) -> int:
        """How many there were."""
        return int(self._count.numpy())


class MetricMeans(Callback):  # type: ignore[misc]  # Keras has no types
    """Replaces each metric of an epoch by its mean over the ranks. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    rows : ValidatedRows
        How much this rank validates on: ranks that validate on more count for more.
    """

    def __init__(self, comm: Communicator, rows: ValidatedRows) -> None:
        super().__init__()
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        self._comm, self._rows = comm, rows

    def on_test_begin(self, logs: Any = None) -> None:
        """Count what is validated on from here. Independent."""
        del logs
        self._rows.begin()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average. Collective."""
        del epoch
        if logs is None:
            logs = {}
        every = self._comm.gather((float(self._rows.count), plain_metrics(logs)))
        logs.update(self._comm.on_root("average metrics", lambda: mean_metrics(every or [])))


def mean_metrics(every: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Return the means of the metrics that all ranks have. Pure.

    Parameters
    ----------
    every : sequence of (float, mapping)
        Of each rank, how many rows it has validated on, and its metrics.
    """
    names = set.intersection(*(set(metrics) for _, metrics in every))
    weights = [weight for weight, _ in every]
    is_weighted = all(weight > 0 for weight in weights)
    means = {}
    for name in sorted(names):
        shares = weights if is_weighted and name.startswith(VALIDATION) else [1.0] * len(every)
        means[name] = sum(s * m[name] for s, (_, m) in zip(shares, every, strict=True)) / sum(shares)
    return means
