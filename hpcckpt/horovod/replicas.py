"""State that all ranks share: broadcast from one of them, and proved to be equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcckpt.collective.communicator import Communicator
from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.errors import OptionError, ReplicaMismatchError, TreeMismatchError
from hpcckpt.horovod.ranks import communicator, initialized, ranks_of
from hpcckpt.saving.snapshot import replica_checksums, replica_names
from hpcckpt.state.tree import Array, Finish, StateTree, TensorLeaf, flatten

_SHARED = {"replicated", "root"}


def broadcast_state(
    state: Any, root_rank: int | None = None, *, process_set: Any = None, comm: Communicator | None = None
) -> None:
    """Broadcast the state of one rank to all ranks. Collective.

    The state is weights, optimizer, learning rate and JSON values. Unlike ``hvd.broadcast_variables`` this function
    broadcasts everything that a checkpoint has, including the learning rate of Keras 2.15; it builds an optimizer that
    has no variables yet; and it first checks that all ranks have the same names, shapes and dtypes. Per-rank values,
    such as streams of random numbers, are left as they are.

    Parameters
    ----------
    state : Keras model, or mapping
        As for `Checkpointer.save`.
    root_rank : int, optional
        The rank whose state is broadcast: a rank of Horovod, by default the first of the process set.
    process_set : hvd.ProcessSet, optional
        By default all of Horovod's ranks.
    comm : Communicator, optional
        A communicator of these ranks, if the caller has one from `communicator`.

    Raises
    ------
    OptionError
        If `root_rank` is not in the process set.
    TreeMismatchError
        If ranks differ in a name, shape or dtype; names the first differences. Nothing is changed.
    """
    hvd = initialized()
    ranks = ranks_of(process_set)
    root = ranks[0] if root_rank is None else root_rank
    if root not in ranks:
        raise OptionError(f"root_rank: {root} – one of Horovod's ranks {ranks}")
    group = comm or communicator(process_set)
    try:
        tree = group.agree("broadcast: read state", lambda: flatten(state))
        leaves = [leaf for leaf in tree.tensors.values() if leaf.declaration.spec.kind in _SHARED]
        _check_equal(group, leaves, tree.objects)
        chosen = {} if process_set is None else {"process_set": process_set}
        arrays = [_broadcast(hvd, leaf, root, chosen) for leaf in leaves]
        values = _broadcast_values(hvd, tree, root, chosen)
        group.agree("broadcast: assign", lambda: _assign(tree, leaves, arrays, values) if hvd.rank() != root else None)
    finally:
        if comm is None:
            group.free()


def _broadcast(hvd: Any, leaf: TensorLeaf, root: int, chosen: dict[str, Any]) -> Array:
    """Return root's values of a tensor, as bytes: Horovod does not know all dtypes. Collective."""
    own = np.ascontiguousarray(leaf.read()).reshape(-1).view(np.uint8)
    if own.size == 0:
        return own
    sent: Array = hvd.broadcast(own, root, name=f"hpcckpt.{leaf.declaration.spec.name}", **chosen).numpy()
    return sent


def _broadcast_values(hvd: Any, tree: StateTree, root: int, chosen: dict[str, Any]) -> dict[str, Any]:
    """Return root's JSON values by name. Collective."""
    own = {name: leaf.read() for name, leaf in tree.objects.items()}
    sent: dict[str, Any] = hvd.broadcast_object(own, root, name="hpcckpt.values", **chosen) if own else own
    return sent


def _assign(tree: StateTree, leaves: Sequence[TensorLeaf], arrays: Sequence[Array], values: Mapping[str, Any]) -> None:
    for leaf, array in zip(leaves, arrays, strict=True):
        tensor = array.view(numpy_dtype(leaf.declaration.spec.dtype))
        leaf.assign(tensor.reshape(leaf.declaration.extent.shape))
    for name, value in values.items():
        tree.objects[name].assign(value)
    for finish in tree.finishes:
        if isinstance(finish, Finish):
            finish.run()


def _check_equal(comm: Communicator, leaves: Sequence[TensorLeaf], values: Iterable[str]) -> None:
    """Find out whether all ranks would broadcast the same tensors and JSON values. Collective."""
    own = [f"{spec.name!r} {spec.dtype} {list(spec.shape)}" for spec in (leaf.declaration.spec for leaf in leaves)]
    own += map(repr, values)
    theirs = comm.bcast(own if comm.is_root else None)

    def compare() -> None:
        if own != theirs:
            here, there = sorted(set(own) - set(theirs)), sorted(set(theirs) - set(own))
            raise TreeMismatchError(
                f"this rank has {', '.join(here[:3]) or 'none'} where rank 0 has {', '.join(there[:3]) or 'none'}; "
                "build the same model and optimizer on all ranks"
            )

    comm.agree("broadcast: compare names", compare)


def check_equal(state: Any, *, process_set: Any = None, comm: Communicator | None = None) -> int:
    """Check that weights and optimizer are equal on all ranks. Collective.

    Returns the number of tensors. Each rank computes a checksum of every tensor that must be equal, the learning rate
    included. Statistics of BatchNorm, which Horovod never averages, and per-rank values are left out.

    Parameters
    ----------
    state : Keras model, or mapping
        As for `Checkpointer.save`.
    process_set : hvd.ProcessSet, optional
        By default all of Horovod's ranks.
    comm : Communicator, optional
        A communicator of these ranks, if the caller has one from `communicator`.

    Raises
    ------
    ReplicaMismatchError
        On all ranks, naming the first tensor that differs, and where.
    """
    group = comm or communicator(process_set)
    try:
        tree = group.agree("compare ranks: read state", lambda: flatten(state))
        names, sums = group.agree("compare ranks: checksums", lambda: _checksums(tree))
        digest = hashlib.blake2b(repr((names, sums)).encode(), digest_size=16).digest()
        if len(group.distinct([digest])) > 1:
            raise ReplicaMismatchError(_difference(group.allgather(dict(zip(names, sums, strict=True)))))
        return len(names)
    finally:
        if comm is None:
            group.free()


def _checksums(tree: StateTree) -> tuple[list[str], list[int]]:
    return replica_names(tree), replica_checksums(tree)()


def _difference(every: Sequence[dict[str, int]]) -> str:
    """Say what differs from rank 0, the first of it by name. Pure."""
    names = sorted({name for theirs in every for name in theirs})
    differing = [name for name in names if len({theirs.get(name) for theirs in every}) > 1]
    ranks = [rank for rank, theirs in enumerate(every) if theirs.get(differing[0]) != every[0].get(differing[0])]
    more = f", and so do {len(differing) - 1} more" if len(differing) > 1 else ""
    return (
        f"{differing[0]!r} differs from rank 0's on rank {', '.join(map(str, ranks))}{more} of {len(names)} tensors; "
        "restore or broadcast on all ranks before the first batch: hpcckpt.horovod.RestoreCallback does both"
    )
