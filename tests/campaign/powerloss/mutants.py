"""The campaign's own test: what each sync is for, and what happens without it.

A job that leaves out a sync does everything else as it did: so leaving its record out of the trace is the same as
running an engine without it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.campaign.powerloss.check import Checker
from tests.campaign.powerloss.disk import Disk, Prints
from tests.campaign.powerloss.losses import Model, State, systematic
from tests.campaign.powerloss.recording import Recording
from tests.campaign.powerloss.trace import NAME_KINDS, ROOT, Op, Trace

MAX_STATES = 150
"""After how many states that break no promise a sync counts as one that is not needed."""
_STAGED = re.compile(r"\.next-.*|\.step-.*\.tmp-.*")


class _Names:
    """Where nodes are, as operations move them."""

    def __init__(self, trace: Trace) -> None:
        self._of = {child: (node, name) for node, names in trace.entries.items() for name, child in names.items()}
        self._at = {slot: child for child, slot in self._of.items()}

    def apply(self, op: Op) -> None:
        if op.kind == "exchange":
            other = self._at[op.slots[1]]
            self._put(other, op.slots[0])
        if op.kind not in {"unlink", "rmdir"}:
            self._put(op.node, op.slots[-1])

    def _put(self, node: int, slot: tuple[int, str]) -> None:
        self._of[node] = slot
        self._at[slot] = node

    def path(self, node: int) -> str:
        if node == ROOT or node not in self._of:
            return ""
        parent, name = self._of[node]
        return f"{self.path(parent)}/{name}"


def roles(recording: Recording) -> dict[int, str]:
    """Return what every sync of a trace is for, in words."""
    names, found, since = _Names(recording.trace), {}, dict[int, list[Op]]()
    for op in recording.trace.ops:
        if op.kind in NAME_KINDS:
            names.apply(op)
            for directory in {directory for directory, _ in op.slots}:
                since.setdefault(directory, []).append(op)
        elif op.kind == "sync":
            found[op.number] = _role(names.path(op.node), "/" + recording.run, since.pop(op.node, []))
        elif op.kind != "mark":
            since.setdefault(op.node, []).append(op)
    return found


def _role(path: str, run: str, ops: list[Op]) -> str:
    """Say what a sync of `path` is for, whose pending operations are `ops`."""
    if path == run:
        return f"run directory, {_last_change(ops)}"
    if not path.startswith(run):
        return "parent of the run directory"
    name = path.rpartition("/")[2]
    if path.startswith(f"{run}/.pins/"):
        return "pin"
    if name.endswith(".safetensors"):
        writes = [op for op in ops if op.kind == "write"]
        is_zeroed = bool(writes) and not any(any(op.data) for op in writes)
        kind = "frozen file" if ".frozen-" in name else "data file"
        return f"{kind}, header made invalid" if is_zeroed else kind
    if _STAGED.fullmatch(name):
        return "staging directory, manifest gone" if ops and ops[-1].kind == "unlink" else "staging directory"
    if name.startswith(".retired-"):
        return "retired directory, manifest gone"
    return {"data": "data directory", "manifest.json": "manifest"}.get(name, name)


def _last_change(ops: list[Op]) -> str:
    """Say what the last renaming among operations was for."""
    if any(op.kind == "exchange" for op in ops):
        return "step exchanged"
    renames = [(op.slots[0][1], op.slots[1][1]) for op in ops if op.kind == "rename"]
    if not renames:
        return "nothing renamed"
    source, target = renames[-1]
    if source.startswith(".retired-") and _STAGED.fullmatch(target):
        return "files used again"
    kinds = {".aside-": "steps moved aside", ".retired-": "step retired", "step-": "step published"}
    return next((text for prefix, text in kinds.items() if target.startswith(prefix)), "names given back")


@dataclass(frozen=True, slots=True)
class Mutant:
    """An engine that leaves out one kind of sync, and what came of it.

    Attributes
    ----------
    dropped : tuple of str
        Roles.
    n_states, n_broken : int
        How many states were checked, and in how many a promise was broken.
    example : str
        One such problem.
    """

    dropped: tuple[str, ...]
    scenario: str
    n_states: int
    n_broken: int
    example: str


def mutate(recording: Recording, dropped: tuple[str, ...], wanted: int, scratch: Path) -> Mutant:
    """Check states that only an engine that leaves syncs out can come to, until N are found to be broken."""
    checker = Checker(recording)
    broken: list[str] = []
    n_states = 0
    for state in new_states(recording, dropped):
        n_states += 1
        broken += [text for text in _problems(checker, state, scratch) if "stays behind" not in text][:1]
        if len(broken) == wanted or n_states == MAX_STATES:
            break
    return Mutant(dropped, recording.name, n_states, len(broken), broken[0] if broken else "")


def new_states(recording: Recording, dropped: tuple[str, ...]) -> Iterator[State]:
    """Yield states of which one operation is lost, or few are kept, and which are not legal if all syncs are made."""
    all_roles, seen = roles(recording), set(_legal(recording))
    for key, state in _states(Model(recording.trace, lambda op: all_roles[op.number] not in dropped)):
        if key not in seen:
            seen.add(key)
            yield state


@functools.cache
def _legal(recording: Recording) -> frozenset[tuple[bytes, int]]:
    return frozenset(key for key, _ in _states(Model(recording.trace)))


def _states(model: Model) -> Iterator[tuple[tuple[bytes, int], State]]:
    """Yield states, each with what tells it apart: its tree, and how many marks say what had been promised."""
    prints, n_marks = Prints(), 0
    for moment in range(len(model.trace.ops) + 1):
        n_marks += moment > 0 and model.trace.ops[moment - 1].kind == "mark"
        for label, choice in systematic(model, moment, n_pairs=0):
            key = prints.of(Disk(model.trace, choice))
            yield (key, n_marks), State(label, choice, key, {moment})


def _problems(checker: Checker, state: State, scratch: Path) -> Iterator[str]:
    try:
        yield from checker.problems(state, scratch)
    except Exception as error:  # noqa: BLE001 - a job that cannot go on is a problem like others
        yield f"wrong: {type(error).__name__}: {error}"
