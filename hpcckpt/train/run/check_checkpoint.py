"""The key ``checkpoint`` of each cycle, compared with what its backend accepts, before anything is built or written."""

from __future__ import annotations

from collections.abc import Sequence

from hpcckpt.backends.registry import find_backend
from hpcckpt.checkpointer.open import make_backend
from hpcckpt.collective.communicator import Communicator
from hpcckpt.core.options import Options
from hpcckpt.errors import BackendConflictError, BackendNotFoundError, OptionError
from hpcckpt.train.config.cycles import CheckpointSettings, Cycle
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError, inside
from hpcckpt.train.run.build_cycle import together

__all__ = ["check_backends"]


def check_backends(cycles: Sequence[Cycle], comm: Communicator) -> None:
    """Raise if a backend that a cycle names does not exist, or does not accept its options. Collective.

    Raises
    ------
    TrainConfigError
        With each problem and its place.
    """

    def check() -> None:
        given = {id(cycle.checkpoint): cycle for cycle in reversed(cycles)}  # of those that inherit it the first
        problems = [_problem(cycle.checkpoint, cycle.index, comm) for cycle in reversed(given.values())]
        found = [problem for problem in problems if problem is not None]
        if found:
            raise TrainConfigError.of(found)

    together(comm, "check the backends", check)


def _problem(settings: CheckpointSettings, index: int, comm: Communicator) -> ConfigProblem | None:
    where = inside(inside("", index), "checkpoint")
    name = settings.backend
    try:
        make_backend(find_backend(name), comm, Options(async_save=settings.async_save), settings.backend_options)
    except (BackendNotFoundError, BackendConflictError) as error:
        return ConfigProblem(inside(where, "backend"), str(error), "hpcckpt backends lists what there is")
    except OptionError as error:
        return ConfigProblem(inside(where, "backend_options"), str(error), f"give what the backend {name!r} accepts")
    return None
