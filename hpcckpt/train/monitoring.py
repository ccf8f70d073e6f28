"""Whether there is the metric that says which checkpoints are kept as the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras.callbacks import Callback

from hpcckpt.keras.callbacks import plain_metrics
from hpcckpt.train.problems import did_you_mean, shown

__all__ = ["MonitorCheck"]


class MonitorCheck(Callback):  # type: ignore[misc]  # Keras has no types
    """Warns behind the first epoch if there is no metric of a name: nothing would be kept as the best. Root only.

    Parameters
    ----------
    name : str
        Of the metric.
    warn : callable
        Told of it, in words.
    """

    def __init__(self, name: str, warn: Callable[[str], None]) -> None:
        super().__init__()
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        self._name, self._warn = name, warn
        self._is_known = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Look, once."""
        del epoch
        metrics = plain_metrics(logs or {})
        if not self._is_known and self._name not in metrics:
            remedy = did_you_mean(self._name, metrics, "there are")
            text = f"there is no metric {shown(self._name)!r}, keep_best keeps nothing"
            self._warn(f"checkpoint.monitor: {text}; {remedy}")
        self._is_known = True
