"""The ranks that train together, and how: alone, by Horovod, or with gradients averaged by mpi4py.

1) (all ranks) ``start(kind, comm)``     the ranks
2) (all ranks) ``team.compiling``        the arguments of ``compile``
3) (all ranks) ``team.wrap(model)``      after ``compile``: gradients are averaged whenever the optimizer applies them
4) (all ranks) ``team.backup(…)``        the callback that saves, restores, and makes all ranks start equal
"""

from __future__ import annotations

import importlib
import importlib.util
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from hpcckpt.collective.communicator import Communicator, SerialCommunicator, launched_size
from hpcckpt.collective.connect import as_communicator
from hpcckpt.errors import OptionError
from hpcckpt.train.config.cycles import Distributed

__all__ = ["Team", "start"]


class Team(ABC):
    """The ranks that train together.

    Attributes
    ----------
    kind : str
        ``none``, ``horovod`` or ``mpi4py``.
    comm : Communicator
        The ranks.
    compiling : mapping
        The arguments of ``compile``.
    """

    kind: Distributed
    compiling: Mapping[str, Any] = {}

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm

    @property
    def rank(self) -> int:
        """This rank."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """How many there are."""
        return self.comm.size

    @property
    def is_root(self) -> bool:
        """Whether this rank speaks for all."""
        return self.comm.is_root

    def close(self) -> None:
        """Give the communicators back, when all ranks have come to the end. Collective."""
        self.comm.barrier()
        self.comm.free()

    @abstractmethod
    def wrap(self, model: Any) -> None:
        """Have a compiled model's optimizer average gradients over the ranks. Collective."""

    @abstractmethod
    def backup(self, directory: str, **options: Any) -> Any:
        """Return the callback that saves and restores. Collective."""


class Alone(Team):
    """One rank."""

    kind = "none"

    def wrap(self, model: Any) -> None:
        """Leave the optimizer as it is. Independent."""

    def backup(self, directory: str, **options: Any) -> Any:
        """Return the callback that saves and restores. Independent."""
        from hpcckpt.train.callbacks.backup_callback import Backup

        return Backup(directory, comm=self.comm, **options)


class Mpi4py(Team):
    """Ranks of MPI, whose gradients mpi4py averages."""

    kind = "mpi4py"
    compiling = {"jit_compile": False}  # noqa: RUF012 - never changed; XLA cannot call Python

    def __init__(self, comm: Communicator) -> None:
        from hpcckpt.train.loop.gradient_allreduce import GradientMean

        super().__init__(comm)
        self._mean = GradientMean(comm)

    def wrap(self, model: Any) -> None:
        """Average gradients before they are applied. Independent."""
        average_before_applying(model.optimizer, self._mean)

    def close(self) -> None:
        """Give the communicators back, when all ranks have come to the end. Collective."""
        super().close()
        self._mean.comm.free()

    def backup(self, directory: str, **options: Any) -> Any:
        """Return the callback that saves and restores, and broadcasts what is not restored. Independent."""
        from hpcckpt.train.callbacks.backup_callback import MpiBackup

        return MpiBackup(directory, comm=self.comm, **options)


class Horovod(Team):
    """Ranks of Horovod."""

    kind = "horovod"

    def wrap(self, model: Any) -> None:
        """Give the model Horovod's optimizer; gradients of a tape are averaged too. Collective."""
        from hpcckpt.horovod.models import wrap_optimizer

        wrap_optimizer(model)
        _average_gradients_of_tapes(model.optimizer)

    def backup(self, directory: str, **options: Any) -> Any:
        """Return the callback that saves and restores, and broadcasts what is not restored. Collective."""
        from hpcckpt.train.callbacks.horovod_backup import HorovodBackup

        return HorovodBackup(directory, **options)


# -- starting --------------------------------------------------------------------------------------


def start(kind: Distributed, comm: Any = None) -> Team:
    """Return the ranks that train together. Collective.

    Parameters
    ----------
    kind : str
        ``none`` is this process alone, whatever started it; ``auto`` is Horovod on several ranks where it is installed,
        else mpi4py; and on one rank ``none``.
    comm : mpi4py communicator, optional
        The ranks; Horovod takes all that were started.

    Raises
    ------
    OptionError
        If Horovod is to train on ranks that were given to us.
    MpiError
        If there is no MPI for the ranks that were started.
    """
    if kind == "none":
        return Alone(SerialCommunicator())
    if kind == "horovod" or (kind == "auto" and comm is None and _may_be_horovod()):
        return _start_horovod(comm)
    group = as_communicator(comm)
    return Alone(group) if group.size == 1 else Mpi4py(group)


def _may_be_horovod() -> bool:
    """Return True if several ranks were started, and Horovod is available. Collective."""
    if (launched_size() or 1) == 1:
        return False
    group = as_communicator(None)
    try:
        return group.allreduce(_imports("horovod.tensorflow.keras"), operator.and_)
    finally:
        group.free()


def _imports(name: str) -> bool:
    """Return True if a module can be imported; one that was compiled for another TensorFlow cannot."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        return False
    try:
        importlib.import_module(name)
    except Exception:  # noqa: BLE001 - whatever it is, it is not to be used
        return False
    return True


def _start_horovod(comm: Any) -> Team:
    if comm is not None:
        raise OptionError("distributed='horovod' takes all ranks that were started; leave comm out, or use 'mpi4py'")
    if importlib.util.find_spec("horovod") is None:
        raise OptionError("distributed='horovod': Horovod is not installed; use 'mpi4py', or 'auto'")
    from hpcckpt.horovod import ranks

    return Horovod(ranks.start())


# -- optimizers ------------------------------------------------------------------------------------


def average_before_applying(optimizer: Any, mean: Callable[[list[Any]], list[Any]]) -> None:
    """Make an optimizer average gradients over the ranks before it applies them. Independent.

    The method is replaced in the object, not in a subclass: Keras writes the optimizer's class into saved models.
    Gradients are averaged before they are unscaled or clipped.
    """
    if hasattr(type(optimizer), "apply"):  # Keras 3: `apply_gradients` calls it
        apply = optimizer.apply

        def apply_means(grads: Any, trainable_variables: Any = None) -> Any:
            """Average and apply."""
            return apply(mean(list(grads)), trainable_variables)

        optimizer.apply = apply_means
        return
    apply_gradients = optimizer.apply_gradients

    def apply_mean_gradients(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Average and apply."""
        pairs = list(grads_and_vars)
        means = mean([gradient for gradient, _ in pairs])
        return apply_gradients(list(zip(means, [v for _, v in pairs], strict=True)), *args, **kwargs)

    optimizer.apply_gradients = apply_mean_gradients


def _average_gradients_of_tapes(optimizer: Any) -> None:
    """Make Horovod's optimizer also average gradients that it did not compute itself.

    It averages in ``compute_gradients``, which ``minimize`` calls, and only there: a step that takes its gradients from
    a tape and applies them would silently train each rank separately.
    """
    horovods = getattr(optimizer, "inner_optimizer", optimizer)
    apply_gradients = optimizer.apply_gradients

    def apply_mean_gradients(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Average, unless that is done, and apply."""
        pairs = list(grads_and_vars)
        if not horovods._aggregated_gradients:
            variables = [variable for _, variable in pairs]
            means = horovods._allreduce([gradient for gradient, _ in pairs], variables)
            pairs = list(zip(means, variables, strict=True))
        horovods._aggregated_gradients = False
        return apply_gradients(pairs, *args, **kwargs)

    optimizer.apply_gradients = apply_mean_gradients
