"""Durable elastic states of Horovod: commits in memory, every N-th of them on disk too."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator
from typing import Any

from hpcckpt.checkpointer import Checkpointer, PendingSave
from hpcckpt.core.results import Restored, SavedStep
from hpcckpt.core.std_streams import write_wrapped
from hpcckpt.errors import OptionError
from hpcckpt.horovod.ranks import communicator
from hpcckpt.horovod.replicas import broadcast_state, check_equal
from hpcckpt.keras.log_lines import saved_line
from hpcckpt.keras.model.finalize import finalize
from hpcckpt.keras.model.layers import named_weights
from hpcckpt.keras.model.naming import Namer, variable_name
from hpcckpt.keras.model.optimizers import build, optimizer_leaves
from hpcckpt.state.tree import Array, TensorLeaf

_ATTRIBUTES = "attributes"
_COMMITS = "commits"


class DurableState:
    """A state of ``hvd.elastic`` that saves every N-th commit to disk. Collective.

    It wraps a state and can be used in its place: by attribute access, by Horovod's callbacks such as
    ``CommitStateCallback``, and by ``hvd.elastic.run``.

    * `commit` keeps the state in memory, as Horovod does; every `every_n_commits` commits it also saves the state to
      disk, in the background.
    * `sync` restores the newest intact step on all ranks when it is called for the first time in a job. Later, when
      ranks of this job have a newer state in memory, it broadcasts that state.
    * `restore` goes back to the last commit.

    Horovod's own states leave out values that Keras 2.15 does not list among an optimizer's variables, most importantly
    the learning rate. Here these values are committed, broadcast, restored and saved with the others.

    Parameters
    ----------
    state : hvd.elastic state
        ``TensorFlowKerasState``, ``KerasState``, ``TensorFlowState`` or ``ObjectState``.
    directory : path_like
        The run directory.
    every_n_commits : int
        Save every N-th commit.
    step : str or callable, optional
        Where step numbers come from: an attribute of the state, such as ``"batch"`` if it never decreases, or a
        function of the state. By default the number of commits, counted over restarts too.
    process_set : hvd.ProcessSet, optional
        Must be all of Horovod's ranks, because its elastic states broadcast over all of them.
    verbose : int
        0 is silent; 1 writes a line on root for each durable commit and restore.
    **options
        All other options of `Checkpointer` except `comm`; by default ``on_newer="aside"``.

    Raises
    ------
    OptionError
        If an option is invalid.
    """

    _OWN = frozenset(
        {"_state", "_every", "_number", "_ranks", "_verbose", "_checkpointer", "_own", "_memory", "_pending"}
        | {"commits", "restored", "_is_current"}
    )

    def __init__(
        self,
        state: Any,
        directory: str | os.PathLike[str],
        every_n_commits: int = 10,
        *,
        step: str | Callable[[Any], int] | None = None,
        process_set: Any = None,
        verbose: int = 1,
        **options: Any,
    ) -> None:
        if every_n_commits < 1:
            raise OptionError(f"every_n_commits: {every_n_commits} – a positive number of commits")
        if "comm" in options:
            raise OptionError("comm: Horovod's ranks are taken; leave it out")
        if process_set is not None and process_set.process_set_id != 0:
            raise OptionError("process_set: Horovod's elastic states broadcast over all ranks; leave it out")
        self._state, self._every, self._verbose = state, every_n_commits, verbose
        self._number = _numbering(step)
        self.commits = 0
        self.restored: Restored | None = None
        self._is_current = False
        self._pending: PendingSave | None = None
        self._ranks = communicator(process_set)
        self._checkpointer = Checkpointer(directory, self._ranks, **{"on_newer": "aside", **options})
        self._checkpointer.on_saved(self._on_saved)
        if _optimizer(state) is not None:
            build(state.optimizer, state.model)
        state.save()
        self._own = list(_not_horovods(state))
        self._memory: list[tuple[TensorLeaf, Array]] = []
        self._remember()

    # -- what Horovod calls ----------------------------------------------------------------------

    def commit(self) -> None:
        """Commit in memory, and every N-th time also to disk. Collective.

        Then check for changes of the hosts.
        """
        self.save()
        self.commits += 1
        self._checkpointer.poll()
        if self.commits % self._every == 0:
            self.make_durable()
        self._state.check_host_updates()

    def save(self) -> None:
        """Keep the state in memory. Independent."""
        self._state.save()
        self._remember()
        self._is_current = True

    def restore(self) -> None:
        """Go back to the last commit in memory. Independent."""
        self._state.restore()
        for leaf, values in self._memory:
            leaf.assign(values)

    def sync(self) -> None:
        """Give all ranks the newest state. Collective.

        It is the one in memory, else the one on disk, else the state of the first rank.
        """
        if not self._ranks.allreduce(self._is_current, operator.or_):
            self._restore_newest()
        self._state.sync()
        if getattr(self._state, "model", None) is not None:
            finalize(self._state.model)
        self.commits = self._ranks.bcast(self.commits)
        shared = {leaf.declaration.spec.name: leaf.source for leaf in self._own}
        if shared:
            broadcast_state(shared, comm=self._ranks)
        check_equal(self._contents()[0], comm=self._ranks)
        self._remember()
        self._is_current = True

    # -- on disk ---------------------------------------------------------------------------------

    def make_durable(self) -> PendingSave:
        """Save the last commit; training continues meanwhile. Collective.

        Raises
        ------
        CollectiveError
            If the previous save could not be committed; the same error on all ranks.
        """
        self.wait()
        contents, attributes = self._contents()
        objects = {_COMMITS: self.commits, _ATTRIBUTES: sorted(attributes)}
        number = self._number(self)
        self._pending = self._checkpointer.save(number, contents, objects=objects, overwrite=True)
        return self._pending

    def wait(self) -> None:
        """Wait until the save that was begun is on disk. Collective."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait for the last save, and release the run directory. Collective."""
        try:
            self.wait()
        finally:
            self._checkpointer.close()
            self._ranks.free()

    def __enter__(self) -> DurableState:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()

    def _restore_newest(self) -> None:
        if self._checkpointer.latest_step() is None:
            return
        contents, attributes = self._contents()
        self.restored = self._checkpointer.restore(contents)
        for name in attributes:
            setattr(self._state, name, attributes[name])
        self.commits = int(self.restored.objects.get(_COMMITS, 0))
        self._state.save()
        if self._verbose and self._ranks.is_root:
            found = self.restored
            about = (
                f"step={found.step} commits={self.commits} from={found.path} ranks {found.n_ranks}->{self._ranks.size}"
            )
            write_wrapped(f"hpcckpt: resume {about}")

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is saved, and the part of it that holds the state's plain attributes. Independent."""
        attributes = {name: getattr(self._state, name) for name in sorted(getattr(self._state, "_saved_state", {}))}
        contents: dict[str, Any] = dict(_tensors(self._state))
        return (contents | {_ATTRIBUTES: attributes} if attributes else contents), attributes

    # -- small things ----------------------------------------------------------------------------

    def _remember(self) -> None:
        self._memory = [(leaf, leaf.read().copy()) for leaf in self._own]

    def _on_saved(self, saved: SavedStep) -> None:
        if self._verbose and self._ranks.is_root:
            write_wrapped(saved_line(saved, int(getattr(self._state, "epoch", 0) or 0)))

    def __getattr__(self, name: str) -> Any:
        if name in DurableState._OWN:  # not made yet
            raise AttributeError(name)
        return getattr(self._state, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in DurableState._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._state, name, value)


def _numbering(step: str | Callable[[Any], int] | None) -> Callable[[DurableState], int]:
    if step is None:
        return lambda state: state.commits
    if isinstance(step, str):
        return lambda state: int(getattr(state._state, step))
    return lambda state: int(step(state._state))


def _optimizer(state: Any) -> Any:
    return getattr(state, "optimizer", None)


def _tensors(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an elastic state that hold tensors, by the names that they have in a checkpoint."""
    model = getattr(state, "model", None)
    if model is not None:
        yield "model", model
        if _optimizer(state) is not None and state.optimizer is not getattr(model, "optimizer", None):
            yield "optimizer", state.optimizer
        return
    variables, namer = getattr(state, "variables", None), Namer()
    if variables:
        yield "variables", {namer.take(variable_name(each.name)): each for each in variables}


def _not_horovods(state: Any) -> Iterator[TensorLeaf]:
    """Yield what belongs to a state's optimizer, and Horovod does not know of: the learning rate, a loss scale."""
    optimizer = _optimizer(state)
    if optimizer is None:
        return
    variables = optimizer.variables
    listed = {id(each) for each in (variables() if callable(variables) else variables)}
    for leaf in optimizer_leaves(optimizer, "optimizer", named_weights(state.model)):
        if id(leaf.source) not in listed:
            yield leaf
