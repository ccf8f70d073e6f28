"""The options of an `LMS` when it starts planning, and the outcome."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from hpcckpt.collective.communicator import Communicator, SerialCommunicator
from hpcckpt.lms.graph.filters import Filters
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.messages import LmsLog
from hpcckpt.lms.planner.make_plan import PlanResult
from hpcckpt.lms.planner.verify_step import Measured
from hpcckpt.lms.report.report import Mode
from hpcckpt.lms.settings import LmsSettings

FILTERS = tuple(f"{way}_{end}_by_{what}" for way in ("excl", "incl") for end in ("output", "input")
                for what in ("scopes", "types"))  # fmt: skip


@dataclass(frozen=True)
class LmsOptions:
    """Constructor values and properties of an `LMS`, its ranks, and its log."""

    settings: LmsSettings
    filters: Filters = field(default_factory=Filters)
    batch_size: int | None = None
    is_training: bool = True
    keras: bool = False
    autotune_gpu_mem: float | None = None
    autotune_plot: bool = False
    comm: Communicator = field(default_factory=SerialCommunicator)
    lms_log: LmsLog = field(default_factory=LmsLog)


@dataclass(frozen=True)
class LmsOutcome:
    """What was done to one graph or function."""

    mode: Mode = "none"
    target: str = ""
    context: GraphContext | None = None
    result: PlanResult | None = None
    measured: Measured | None = None
    n_attempts: int = 0
    added: Collection[Any] = ()


class FilterProperty:
    """A property of `LMS` that holds names: any collection is taken, and kept as a set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance, self._name, None) or set()

    def __set__(self, instance: Any, value: Collection[str] | None) -> None:
        setattr(instance, self._name, value if value is None or isinstance(value, str) else set(value))
