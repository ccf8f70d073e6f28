"""What a loss of power may leave: the model of ``docs/decisions/0010-power-loss.md``, and its enumeration.

A crash comes after some operation of the trace.  What was synced since is *durable*; every other operation is
*pending* and may have reached storage or not, in any subset in which

- operations on one name of one directory reached it in their order,
- a rename or an exchange reached it as a whole,
- bytes reached it by pages of 4 KiB, in any subset, whether or not the file's new size did.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from tests.campaign.powerloss.disk import WHOLE, Disk, Part, Prints
from tests.campaign.powerloss.trace import DATA_KINDS, NAME_KINDS, PAGE, Op, Trace

NONE: frozenset[int] = frozenset()
GARBAGE = bytes(range(255, 255 - 64, -1))
MAX_PAIRS = 40
"""Of how many pending operations all pairs are tried; of more, the newest N."""
TRIES = 6
"""How often a random state is sought for each that is wanted: the same one is found often."""
HARSH = frozenset({"spoiled", "sectors"})
"""What is beyond the model: storage that destroys old bytes beside those it writes, and tears inside a page."""

Choice = dict[int, Part]
"""What reached storage: the number of each such operation, and which part of it."""


@dataclass(slots=True)
class State:
    """A tree that a crash may leave.

    Attributes
    ----------
    label : str
        What kind of loss made it, the first time it was found.
    choice : Choice
        How it is made.
    moments : set of int
        After how many operations the crash may have come: each asks for something else to be there.
    print : bytes
        What tells the tree from others.
    """

    label: str
    choice: Choice
    print: bytes
    moments: set[int] = field(default_factory=set)


class Model:
    """Which operations are durable at each moment of a trace, and which need which.

    Parameters
    ----------
    trace : Trace
        What took place.
    is_synced : callable, optional
        Says of a sync whether it counts; by default all do.
    """

    def __init__(self, trace: Trace, is_synced: Callable[[Op], bool] = lambda _op: True) -> None:
        self.trace = trace
        self.needs: dict[int, tuple[int, ...]] = {}
        self._last_on: dict[tuple[int, str], int] = {}
        self.pending: list[tuple[int, ...]] = [()]
        for op in trace.ops:
            if op.kind in NAME_KINDS:
                self._chain(op)
            self.pending.append(self._pending_after(op, is_synced))

    def _chain(self, op: Op) -> None:
        self.needs[op.number] = tuple(sorted({self._last_on[slot] for slot in op.slots if slot in self._last_on}))
        self._last_on |= dict.fromkeys(op.slots, op.number)

    def _pending_after(self, op: Op, is_synced: Callable[[Op], bool]) -> tuple[int, ...]:
        before = self.pending[-1]
        if op.kind == "mark":
            return before
        if op.kind != "sync":
            return (*before, op.number)
        if not is_synced(op):
            return before
        return tuple(number for number in before if not self._is_durable(self.trace.ops[number], op))

    def _is_durable(self, op: Op, sync: Op) -> bool:
        """Return True if a sync makes an operation durable: a rename between directories needs both of them."""
        if op.kind in DATA_KINDS:
            return op.node == sync.node
        directories = {directory for directory, _ in op.slots}
        later = self.trace.ops[op.number : sync.number]
        return sync.node in directories and directories <= {o.node for o in later if o.kind == "sync"} | {sync.node}

    def durable(self, moment: int) -> Choice:
        """Return what no crash at this moment takes away."""
        gone = set(self.pending[moment])
        ops = self.trace.ops[:moment]
        return {op.number: WHOLE for op in ops if op.kind not in {"mark", "sync"} and op.number not in gone}

    def keeping(self, moment: int, wanted: Mapping[int, Part]) -> Choice:
        """Return the durable operations, the wanted ones, and what these need."""
        choice = self.durable(moment) | dict(wanted)
        todo = list(wanted)
        while todo:
            for number in self.needs.get(todo.pop(), ()):
                if number not in choice:
                    choice[number] = WHOLE
                    todo.append(number)
        return choice

    def losing(self, moment: int, lost: Sequence[int], parts: Mapping[int, Part] | None = None) -> Choice:
        """Return all operations so far but the lost ones, and what needs these; of some only parts."""
        choice = self.durable(moment)
        for number in self.pending[moment]:
            if number not in lost and all(need in choice for need in self.needs.get(number, ())):
                choice[number] = (parts or {}).get(number, WHOLE)
        return choice


# -- enumeration ---------------------------------------------------------------------------------


def states(model: Model, quota: int = 0, seed: str = "") -> list[State]:
    """Return different trees that a crash may leave: the systematic ones, then random ones up to a quota."""
    rng = random.Random(seed)
    found: dict[bytes, State] = {}
    prints = Prints()

    def add(label: str, moment: int, choice: Choice) -> None:
        key = prints.of(Disk(model.trace, choice))
        state = found.setdefault(key, State(label, choice, key))
        state.moments.add(moment)

    for moment in range(len(model.trace.ops) + 1):
        for label, choice in systematic(model, moment):
            add(label, moment, choice)
    open_moments = [moment for moment, pending in enumerate(model.pending) if pending]
    for _ in range(TRIES * quota if open_moments else 0):
        if len(found) >= quota:
            break
        moment = rng.choice(open_moments)
        add("random", moment, random_choice(model, moment, rng))
    chosen = list(found.values())
    rng.shuffle(chosen)  # so that the first N are a fair sample
    return chosen


def systematic(model: Model, moment: int, n_pairs: int = MAX_PAIRS) -> Iterator[tuple[str, Choice]]:
    """Yield the small subsets at a moment.

    After an operation only those in which it reached storage are new; after a mark all of them are, for now a save
    has returned, and more is asked for.
    """
    last = model.trace.ops[moment - 1] if moment else None
    pending = model.pending[moment]
    if last is not None and last.kind == "sync":
        return  # fewer states than a moment ago
    yield "all kept", model.losing(moment, ())
    if last is None or last.kind == "mark":
        yield from _subsets(model, moment, {}, pending, n_pairs)
        return
    others = tuple(number for number in pending if number != last.number)
    yield from _subsets(model, moment, {last.number: WHOLE}, others, n_pairs)
    if last.kind == "write":
        for label, part in _tears(model.trace, last):
            yield label, model.losing(moment, (), {last.number: part})
            yield label, model.keeping(moment, {last.number: part})


def _subsets(
    model: Model, moment: int, always: Mapping[int, Part], others: Sequence[int], n_pairs: int
) -> Iterator[tuple[str, Choice]]:
    yield "all lost", model.keeping(moment, always)
    for number in others:
        yield "one lost", model.losing(moment, (number,))
        yield "one kept", model.keeping(moment, {**always, number: WHOLE})
    for one, other in combinations(others[max(len(others) - n_pairs, 0) :], 2):
        yield "two lost", model.losing(moment, (one, other))
        yield "two kept", model.keeping(moment, {**always, one: WHOLE, other: WHOLE})
    names = [number for number in others if model.trace.ops[number].kind in NAME_KINDS]
    bytes_ = [number for number in others if model.trace.ops[number].kind in DATA_KINDS]
    for count in range(len(names)):
        yield "names in order, no bytes", model.losing(moment, [*names[count:], *bytes_])
        yield "names in order, all bytes", model.losing(moment, names[count:])


def _tears(trace: Trace, op: Op) -> Iterator[tuple[str, Part]]:
    """Yield ways in which a write reaches storage in part."""
    pages = range(op.offset // PAGE, (op.offset + op.nbytes - 1) // PAGE + 1)
    for kept in {frozenset(pages[:1]), frozenset(pages[1:]), frozenset(pages[:-1]), frozenset(pages[::2])}:
        if 0 < len(kept) < len(pages):
            yield "torn", Part(kept)
            yield "torn", Part(kept, grows=True)
    yield "size only", Part(NONE, grows=True)
    yield "stale blocks", Part(NONE, _stale(trace, op), grows=True)
    yield "spoiled", Part(NONE, GARBAGE, grows=True, spoils=True)
    yield "sectors", Part(frozenset(pages[:1]), sector=512)


def _stale(trace: Trace, op: Op) -> bytes:
    """Return what another file had written: the blocks that this one got may still hold it."""
    older = [other for other in trace.ops[: op.number] if other.kind == "write" and other.node != op.node]
    return older[-1].data[:PAGE] if older else GARBAGE


def random_choice(model: Model, moment: int, rng: random.Random) -> Choice:
    """Return a random subset of what is pending, some of it in parts."""
    # Names and bytes apart: where names are missing, the bytes cannot be seen.
    share = {True: rng.choice((0.5, 0.85, 1.0)), False: rng.choice((0.15, 0.5, 0.85))}
    lost, torn = [], {}
    for number in model.pending[moment]:
        op = model.trace.ops[number]
        if op.kind == "write" and rng.random() < 0.4:
            torn[number] = _random_part(model.trace, op, rng)
        elif rng.random() > share[op.kind in NAME_KINDS]:
            lost.append(number)
    return model.losing(moment, lost, torn)


def _random_part(trace: Trace, op: Op, rng: random.Random) -> Part:
    pages = range(op.offset // PAGE, (op.offset + op.nbytes - 1) // PAGE + 1)
    kept = frozenset(page for page in pages if rng.random() < 0.5)
    return Part(kept, rng.choice((b"", _stale(trace, op))), grows=rng.random() < 0.5)
