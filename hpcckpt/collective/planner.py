"""Who writes what. Every rank computes its own part of the same plan.

1. Each rank declares its tensors; what must be identical on all ranks is compared by digest, so the
   message has a fixed size however many tensors there are.
2. Declarations of sharded tensors are gathered; boxes that several ranks hold are written once.
3. Replicated tensors level out what the shards left uneven (:mod:`hpcckpt.collective.sharding`).
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.sharding import coverage_problems, split_over
from hpcckpt.core.plan import Declaration, FullPlan, WriteItem
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.errors import (
    Problem,
    ReplicaMismatchError,
    ShardingError,
    TreeMismatchError,
    as_failure,
    error_of,
    list_problems,
)


@dataclass(frozen=True, slots=True)
class SavePlan:
    """What this rank writes, and what the checkpoint will hold.

    Attributes
    ----------
    items : tuple of WriteItem
        This rank's entries.
    tensors : tuple of TensorSpec
        All tensors of the checkpoint, sorted by name; shapes of per-rank ones are rank 0's.
    nbytes : int
        Tensor bytes that all ranks together write, as far as is known when the plan is made: values that each rank
        has for itself may change their size from save to save.
    shared_nbytes_of : tuple of int
        For each rank the bytes of what it writes of tensors that are not its own alone.
    """

    items: tuple[WriteItem, ...]
    tensors: tuple[TensorSpec, ...]
    nbytes: int
    shared_nbytes_of: tuple[int, ...]


def plan_save(comm: Communicator, declarations: Sequence[Declaration], named: Sequence[str] = ()) -> SavePlan:
    """Decide who writes what, from what `gather_declarations` gathers. Collective."""
    return plan_for(comm.rank, declarations, gather_declarations(comm, declarations, named))


def gather_declarations(
    comm: Communicator, declarations: Sequence[Declaration], named: Sequence[str] = ()
) -> list[tuple[Declaration, ...]]:
    """Return the sharded and per-rank declarations of every rank; all else is identical. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks that save.
    declarations : sequence of Declaration
        What this rank holds, sorted by name.
    named : sequence of str
        What else must be identical on all ranks: the step, the names of the state's JSON objects.

    Raises
    ------
    TreeMismatchError
        If ranks declare different trees; names the tensors and the ranks.
    ReplicaMismatchError
        If only encoded values differ, in their length.
    """
    tree = [*map(signature, declarations), *named]
    digest = hashlib.blake2b("\n".join(tree).encode(), digest_size=16).digest()
    gathered = comm.allgather((digest, own_declarations(declarations)))
    if any(other != digest for other, _ in gathered):
        trees = comm.gather(tree if comm.is_root or digest != gathered[0][0] else None)
        raise error_of(comm.on_root("compare the states", lambda: as_failure(tree_mismatch(cast("list[Any]", trees)))))
    return [theirs for _, theirs in gathered]


def plan_for(rank: int, declarations: Sequence[Declaration], gathered: Sequence[Sequence[Declaration]]) -> SavePlan:
    """Return the plan as `rank` sees it; every rank finds the same one. Pure.

    Parameters
    ----------
    rank : int
        The rank whose items are wanted.
    declarations : sequence of Declaration
        What that rank holds.
    gathered : sequence of sequence of Declaration
        The sharded and per-rank declarations of every rank.

    Raises
    ------
    ShardingError
        If shards overlap or leave a hole.
    """
    groups, loads = _shares(declarations, gathered)
    items = tuple(item for group in groups for item in group.get(rank, ()))
    own = [sum(d.nbytes for d in theirs if d.spec.kind == "per-rank") for theirs in gathered]
    shared = tuple(load - nbytes for load, nbytes in zip(loads.values(), own, strict=True))
    return SavePlan(items, _tensors(declarations, gathered), sum(loads.values()), shared)


def full_plan(declarations: Sequence[Declaration], gathered: Sequence[Sequence[Declaration]]) -> FullPlan:
    """Return who writes what, of all ranks. Pure."""
    groups, loads = _shares(declarations, gathered)
    items = tuple(tuple(item for group in groups for item in group.get(rank, ())) for rank in loads)
    return FullPlan(_tensors(declarations, gathered), items)


def _shares(
    declarations: Sequence[Declaration], gathered: Sequence[Sequence[Declaration]]
) -> tuple[list[dict[int, list[WriteItem]]], dict[int, int]]:
    """Return each rank's items, kind by kind, and each rank's bytes."""
    loads: dict[int, int] = dict.fromkeys(range(len(gathered)), 0)
    replicated = [d for d in declarations if d.spec.kind == "replicated"]
    groups = [
        _per_rank_items(gathered, loads),
        _root_items(declarations, loads),
        _sharded_items(gathered, loads),
        split_over(range(len(gathered)), replicated, loads),
    ]
    return groups, loads


def _tensors(declarations: Sequence[Declaration], gathered: Sequence[Sequence[Declaration]]) -> tuple[TensorSpec, ...]:
    return tuple(sorted(_specs(declarations, gathered), key=lambda spec: spec.name))


def fits(plan: Sequence[Declaration], declarations: Sequence[Declaration]) -> bool:
    """Return True if a plan is valid for other declarations: only sizes of per-rank values differ. Pure."""
    return len(plan) == len(declarations) and all(
        a is b or a == b or (a.spec.kind == b.spec.kind == "per-rank" and signature(a) == signature(b))
        for a, b in zip(plan, declarations, strict=True)
    )


def with_local_sizes(plan: SavePlan, declarations: Sequence[Declaration]) -> SavePlan:
    """Return a plan with the sizes that this rank's own values have now. Pure."""
    own = {d.spec.name: d for d in declarations if d.spec.kind == "per-rank"}
    if not own:
        return plan
    items = tuple(
        WriteItem(own[item.spec.name].spec, own[item.spec.name].extent, 0, own[item.spec.name].extent.n_elements)
        if item.spec.name in own
        else item
        for item in plan.items
    )
    tensors = tuple(own[spec.name].spec if spec.name in own else spec for spec in plan.tensors)
    return replace(plan, items=items, tensors=tensors)


def own_declarations(declarations: Sequence[Declaration]) -> tuple[Declaration, ...]:
    """Return what the other ranks cannot know of a rank's declarations. Pure."""
    return tuple(d for d in declarations if d.spec.kind in {"sharded", "per-rank"})


def signature(declaration: Declaration) -> str:
    """Return the text that must be equal on all ranks for one tensor. Pure."""
    spec = declaration.spec
    shape = "*" if spec.kind == "per-rank" else spec.shape
    return f"{spec.kind} {_VALUE if declaration.is_value else spec.dtype} {shape} {spec.name}"


_VALUE = "value"
"""In place of the dtype of a tensor whose shape is a part of its value."""


def tree_mismatch(trees: Sequence[Sequence[str] | None]) -> TreeMismatchError | ReplicaMismatchError:
    """Return the error that names how the ranks' trees differ from rank 0's: in structure, or only in values. Pure.

    ``None`` is a tree that does not differ.
    """
    problems, parts, values = [], [], []
    first_tree = set(trees[0] or ())
    for rank, tree in enumerate(trees):
        missing = sorted(first_tree - set(tree)) if tree is not None else []
        extra = sorted(set(tree) - first_tree) if tree is not None else []
        pairs = _same_names(missing, extra)
        values += [f"{first['name']!r} on rank {rank}" for first, _ in pairs if first["dtype"] == _VALUE]
        for first, other in [pair for pair in pairs if pair[0]["dtype"] != _VALUE][:5]:
            what = "shape" if first["shape"] != other["shape"] else "dtype"
            text = f"has {what} {first[what]} on rank 0 and {other[what]} on rank {rank}"
            problems.append(Problem(repr(first["name"]), text))
            parts += [first["name"]] if what == "shape" and first["dtype"] == other["dtype"] else []
        named = {entry.string for pair in pairs for entry in pair}
        missing, extra = ([text for text in texts if text not in named] for texts in (missing, extra))
        problems += [Problem(f"rank {rank}", f"lacks {text!r} that rank 0 has") for text in missing[:5]]
        problems += [Problem(f"rank {rank}", f"has {text!r} that rank 0 lacks") for text in extra[:5]]
    if not problems:
        more = f" and {len(values) - 5} more" if len(values) > 5 else ""
        return ReplicaMismatchError(
            f"values that should be equal on all ranks differ from rank 0's: {'; '.join(values[:5])}{more}; "
            "broadcast them before the save"
        )
    remedy = "make them build the same state"
    if parts:
        name = parts[0]
        remedy += f". If each rank holds a part of {name!r}, pass hpcckpt.Sharded(part, global_shape, offset)"
    return TreeMismatchError(f"states differ between ranks: {list_problems(problems)}; {remedy}")


_ENTRY = re.compile(r"(?P<kind>[a-z-]+) (?P<dtype>\S+) (?P<shape>\(.*?\)) (?P<name>.*)", re.DOTALL)


def _same_names(missing: Sequence[str], extra: Sequence[str]) -> list[tuple[re.Match[str], re.Match[str]]]:
    """Return the entries of two trees that have the kind and the name of a tensor in common. Pure."""
    others = {(found["kind"], found["name"]): found for text in extra if (found := _ENTRY.fullmatch(text))}
    entries = [found for text in missing if (found := _ENTRY.fullmatch(text))]
    return [(each, others[key]) for each in entries if (key := (each["kind"], each["name"])) in others]


def _per_rank_items(gathered: Sequence[Sequence[Declaration]], loads: dict[int, int]) -> dict[int, list[WriteItem]]:
    items: dict[int, list[WriteItem]] = defaultdict(list)
    for rank, declarations in enumerate(gathered):
        for declaration in declarations:
            if declaration.spec.kind == "per-rank":
                item = WriteItem(declaration.spec, declaration.extent, 0, declaration.extent.n_elements)
                items[rank].append(item)
                loads[rank] += item.nbytes
    return items


def _root_items(declarations: Sequence[Declaration], loads: dict[int, int]) -> dict[int, list[WriteItem]]:
    items = [WriteItem(d.spec, d.extent, 0, d.extent.n_elements) for d in declarations if d.spec.kind == "root"]
    loads[0] += sum(item.nbytes for item in items)
    return {0: items}


def _sharded_items(gathered: Sequence[Sequence[Declaration]], loads: dict[int, int]) -> dict[int, list[WriteItem]]:
    """Give each box to the ranks that hold it; boxes with fewer holders first, so that the others can level."""
    owners: dict[Declaration, list[int]] = defaultdict(list)
    for rank, declarations in enumerate(gathered):
        for declaration in declarations:
            if declaration.spec.kind == "sharded" and declaration.extent.n_elements:
                owners[declaration].append(rank)
    _check_coverage(gathered, owners)
    groups: dict[tuple[int, ...], list[Declaration]] = defaultdict(list)
    for declaration, ranks in owners.items():
        groups[tuple(ranks)].append(declaration)
    items: dict[int, list[WriteItem]] = defaultdict(list)
    for holders, boxes in sorted(groups.items(), key=lambda group: (len(group[0]), group[0])):
        for rank, more in split_over(holders, boxes, loads).items():
            items[rank] += more
    items[0] += [WriteItem(d.spec, d.extent, 0, 0) for d in gathered[0] if _is_empty(d.spec)]  # so that files know them
    return items


def _is_empty(spec: TensorSpec) -> bool:
    return spec.kind == "sharded" and 0 in spec.shape


def _check_coverage(gathered: Sequence[Sequence[Declaration]], owners: dict[Declaration, list[int]]) -> None:
    specs = {d.spec for declarations in gathered for d in declarations if d.spec.kind == "sharded"}
    boxes: dict[str, list[Extent]] = defaultdict(list)
    for declaration in owners:
        boxes[declaration.spec.name].append(declaration.extent)
    problems = [p for spec in sorted(specs, key=lambda s: s.name) for p in coverage_problems(spec, boxes[spec.name])]
    if problems:
        raise ShardingError(f"shards do not tile their tensors: {list_problems(problems)}; correct the offsets")


def _specs(declarations: Sequence[Declaration], gathered: Sequence[Sequence[Declaration]]) -> list[TensorSpec]:
    shared = [d.spec for d in declarations if d.spec.kind in {"replicated", "root"}]
    return shared + [d.spec for d in gathered[0]]
