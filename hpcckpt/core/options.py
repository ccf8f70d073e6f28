"""Options of a checkpointer: plain frozen data, checked all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Literal

from hpcckpt import errors
from hpcckpt.errors import OptionError, Problem

OnNewer = Literal["error", "aside"]
Level = Literal["exact", "state", "weights"]
Mode = Literal["min", "max", "auto"]
Recycle = bool | Literal["always"]


@dataclass(frozen=True, slots=True)
class Best:
    """Which steps are best: the `count` steps with the smallest or largest value of a metric.

    Parameters
    ----------
    metric : str
        Name of a metric given to ``save(metrics=…)``.
    mode : {"auto", "min", "max"}
        ``auto`` is ``max`` for names with "acc", "auc", "f1", "score", "precision", "recall", else ``min``.
    count : int
        Number of best steps to keep.
    """

    metric: str
    mode: Mode = "auto"
    count: int = 1

    @property
    def largest(self) -> bool:
        """Whether a larger value is better."""
        hints = ("acc", "auc", "f1", "score", "precision", "recall", "fmeasure")
        return self.mode == "max" or (self.mode == "auto" and any(hint in self.metric.lower() for hint in hints))


def parse_best(value: Best | str | None) -> Best | None:
    """Read `keep_best`: a `Best`, ``"val_loss"``, ``"max:reward"``, or ``"min:val_loss:3"``.

    Raises
    ------
    OptionError
        If it gives a direction without a metric, or one that is misspelt.
    """
    if not isinstance(value, str):
        return value
    parts = value.split(":")
    _check_direction(value, parts)
    mode = parts.pop(0) if parts[0] in {"min", "max", "auto"} and len(parts) > 1 else "auto"
    count = int(parts.pop()) if len(parts) > 1 and parts[-1].isdecimal() and len(parts[-1]) < 10 else 1
    return Best(":".join(parts), mode, count)  # type: ignore[arg-type]  # checked in problems()


_DIRECTIONS = {
    **dict.fromkeys(("min", "minimum", "minimize", "minimise", "lowest", "smallest", "least"), "min"),
    **dict.fromkeys(("max", "maximum", "maximize", "maximise", "highest", "largest", "greatest"), "max"),
    "auto": "auto",
}


def _check_direction(text: str, parts: Sequence[str]) -> None:
    mode = _DIRECTIONS.get(parts[0].strip().lower())
    if mode is None:
        if not parts[0].strip():
            raise OptionError(f"{text!r} names no metric: write 'val_loss', 'min:val_loss' or 'max:accuracy'")
        return
    metric = ":".join(parts[1:]).strip()
    if not metric:
        example = "max:accuracy" if mode == "max" else f"{mode}:val_loss"
        raise OptionError(f"{text!r} names no metric: write '{mode}:METRIC', such as {example!r}")
    if parts[0] != mode:
        raise OptionError(f"{text!r}: the direction is one of auto, max, min: write '{mode}:{metric}'")


def _is_count(value: Any, low: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= low


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in {"bool_", "bool"}  # NumPy's


def _is_limit(value: Any) -> bool:
    return value is None or _is_count(value, 0)


def _is_rate(value: Any) -> bool:
    return value is None or _is_positive(value)


def _is_positive(value: Any) -> bool:
    return isinstance(value, Real) and float(value) > 0


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that is decided once, when a checkpointer is made.

    Parameters
    ----------
    max_to_keep : int or None
        Newest steps that retention keeps; ``None`` keeps all.
    keep_best : Best or None
        Steps that are kept besides, because a metric is best there.
    keep_period : int or None
        Steps divisible by this are also kept, for ever.
    backend : str
        Name of the storage backend.
    on_newer : {"error", "aside"}
        What saving below a newer step does: fail, or move the newer steps aside.
    check_replicas : int
        Compare replicated tensors by digest on the first save and then every `check_replicas` saves; 0 never.
    lock_expiry_s : float
        Seconds without a heartbeat after which another host's lock counts as left by a dead job.
    threads : int
        Native I/O threads per rank; 0 chooses from the cores this rank may use.
    async_save : bool
        Whether `save` returns after the snapshot, and the rest is done in the background.
    max_in_flight : int
        How many saves may be in the background before the next one waits.
    max_bytes_in_flight : int or None
        Bytes per rank that saves in the background may hold; beyond them a save waits, or is written at once.
    recycle : bool or "always"
        Whether files of retired steps are written over by the next save: those that provably no program has open,
        or all of them.
    incremental : bool
        Whether tensors that did not change since the newest step are linked instead of written.
    nan_guard : bool
        Whether a step with NaN or infinite values is refused; of numbers of Python, with NaN.
    peer_timeout_s : float
        How long a rank that waits puts up with the silence of another one before it ends the job.
    scratch : str or None
        Where steps are committed first, to be drained to the run directory in the background.
    scratch_bandwidth : float or None
        Bytes per second that all ranks together may drain.
    scratch_keep : int
        Newest steps that stay on scratch when they are drained.
    """

    max_to_keep: int | None = 3
    keep_best: Best | None = None
    keep_period: int | None = None
    backend: str = "rankfile"
    on_newer: OnNewer = "error"
    check_replicas: int = 100
    lock_expiry_s: float = 600.0
    threads: int = 0
    async_save: bool = True
    max_in_flight: int = 1
    max_bytes_in_flight: int | None = None
    recycle: Recycle = True
    incremental: bool = False
    nan_guard: bool = False
    peer_timeout_s: float = 1800.0
    scratch: str | None = None
    scratch_bandwidth: float | None = None
    scratch_keep: int = 1

    def on_scratch(self) -> Options:
        """Return the options of the run directory on scratch, which only keeps the newest steps."""
        return replace(self, max_to_keep=self.scratch_keep, keep_best=None, keep_period=None)

    def problems(self) -> list[Problem]:
        """Return everything that is wrong with these options."""
        best = Best("") if self.keep_best is None else self.keep_best
        is_best = isinstance(best, Best)
        is_named = self.keep_best is None or (is_best and _is_name(best.metric))
        rules = [
            ("max_to_keep", self.max_to_keep is None or _is_count(self.max_to_keep, 1), "must be at least 1, or None"),
            ("keep_period", self.keep_period is None or _is_count(self.keep_period, 1), "must be at least 1, or None"),
            (
                "keep_best",
                is_named,
                "must name a metric, or be a Best, or None",
            ),
            ("keep_best.mode", not is_best or best.mode in ("min", "max", "auto"), "must be one of auto, max, min"),
            ("keep_best.count", not is_best or _is_count(best.count, 1), "must be at least 1"),
            ("on_newer", self.on_newer in ("error", "aside"), "must be one of aside, error"),
            ("check_replicas", _is_count(self.check_replicas, 0), "must be at least 0"),
            ("lock_expiry_s", _is_positive(self.lock_expiry_s), "must be positive"),
            ("threads", _is_count(self.threads, 0), "must be at least 0"),
            ("max_in_flight", _is_count(self.max_in_flight, 1), "must be at least 1"),
            ("recycle", isinstance(self.recycle, bool) or self.recycle == "always", "must be True, False, or 'always'"),
            ("incremental", not self.incremental or self.max_in_flight == 1, "goes with max_in_flight=1 only"),
            ("max_bytes_in_flight", _is_limit(self.max_bytes_in_flight), "must be a number of bytes, or None"),
            *((name, _is_flag(getattr(self, name)), "must be True or False") for name in _FLAGS),
            ("peer_timeout_s", _is_positive(self.peer_timeout_s), "must be positive"),
            ("scratch", self.scratch is None or bool(self.scratch), "must name a directory, or be None"),
            ("scratch_bandwidth", _is_rate(self.scratch_bandwidth), "must be bytes per second, positive, or None"),
            ("scratch_keep", _is_count(self.scratch_keep, 1), "must be at least 1"),
        ]
        return [Problem(f"options.{name}", message) for name, is_met, message in rules if not is_met]

    def check(self) -> Options:
        """Return these options, or raise.

        Raises
        ------
        OptionError
            Naming every problem.
        """
        problems = self.problems()
        if problems:
            raise OptionError(errors.list_problems(problems))
        return self


_FLAGS = tuple(each.name for each in fields(Options) if each.type == "bool")
