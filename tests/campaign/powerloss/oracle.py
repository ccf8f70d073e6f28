"""What must be there after a loss of power, what is there, and whether the next job can go on."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import hpcckpt as hc
from hpcckpt.errors import HpcckptError, NewerStepError
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import lock, pins as run_pins
from tests.campaign.powerloss.reference import expected, is_same, state_of
from tests.campaign.powerloss.trace import Op

Save = tuple[int, int]
"""A step's number, and which save of that number it is."""


@dataclass(slots=True)
class Promise:
    """What a job had been told, and what it had begun, at some moment.

    Attributes
    ----------
    begun : dict
        Every save -> ranks, and whether the state is a big one.
    returned : dict
        Step -> version of the last save of that number whose outcome was known to be good.
    limit : int, optional
        How many of the newest steps retention leaves at least; ``None``: all.
    abandoned : dict
        Steps above the one that the run went back to: these may be moved aside, and nothing else.
    base : int, optional
        The step that the run went back to.
    damaged, pinned : set of int
        Steps that were damaged before; steps that users had pinned.
    two_renames : bool
        Whether the file system cannot exchange names: then a step that is being replaced may have another name.
    """

    begun: dict[Save, tuple[int, bool]] = field(default_factory=dict)
    returned: dict[int, int] = field(default_factory=dict)
    limit: int | None = None
    abandoned: dict[int, int] = field(default_factory=dict)
    base: int | None = None
    damaged: set[int] = field(default_factory=set)
    pinned: set[int] = field(default_factory=set)
    two_renames: bool = False

    def note(self, text: str) -> None:
        """Take in what a mark says."""
        mark = json.loads(text)
        what, step = mark["what"], mark.get("step", -1)
        if what == "begun":
            self.begun[step, mark["version"]] = (mark["ranks"], mark["big"])
        elif what == "returned":
            self.returned[step] = mark["version"]
        elif what == "limit":
            self.limit = mark["count"]
        elif what == "aside":
            self.base = mark["above"]
            self.abandoned = {s: v for s, v in self.returned.items() if s > mark["above"]}
            self.returned = {s: v for s, v in self.returned.items() if s <= mark["above"]}
        elif what == "damaged":
            self.damaged.add(step)
            del self.returned[step]
        elif what == "pinned":
            self.pinned.add(step)
        elif what == "unpinned":
            self.pinned.discard(step)
        elif what == "two renames":
            self.two_renames = True
        else:
            assert what == "restored", text


def promise_after(earlier: Iterable[str], ops: Iterable[Op]) -> Promise:
    """Return what had been promised when these operations had taken place."""
    promise = Promise()
    for text in [*earlier, *(op.text for op in ops if op.kind == "mark")]:
        promise.note(text)
    return promise


# -- what is there -------------------------------------------------------------------------------


@dataclass(slots=True)
class View:
    """What a run directory holds.

    Attributes
    ----------
    whole : dict
        Visible step -> version, of those that load, verified, and are what was saved.
    torn : dict
        Visible step -> what is wrong, of the others.
    hidden : set of Save
        Good steps that were moved aside or wait for their name.
    lies : list of str
        Directories of any other name whose manifest and headers agree, though their bytes are others.
    """

    whole: dict[int, int] = field(default_factory=dict)
    torn: dict[int, str] = field(default_factory=dict)
    hidden: set[Save] = field(default_factory=set)
    lies: list[str] = field(default_factory=list)
    n_bad: int = 0
    latest: int | None = None
    pins: set[int] = field(default_factory=set)


def _load(path: Path, begun: dict[Save, tuple[int, bool]]) -> Save:
    """Return which save a step directory holds; raise if it is none of those begun, bit for bit."""
    loaded = hc.load(path)
    save: Save = tuple(loaded["identity"].tolist())
    ranks, is_big = begun[save]
    if not is_same(loaded, expected(*save, ranks, is_big=is_big)):
        raise AssertionError(f"{path.name} loads, but is not what was saved")
    return save


def _is_lie(path: Path) -> bool:
    """Return True if a directory out of sight looks like a checkpoint until its bytes are read."""
    if not (path / layout.MANIFEST).is_file():
        return False
    try:
        reader = open_step(path)
    except HpcckptError:
        return False
    return bool(reader.verify())


def look(run: Path, begun: dict[Save, tuple[int, bool]]) -> View:
    """Load everything that a run directory shows."""
    view = View()
    for name in sorted(os.listdir(run)) if run.is_dir() else []:
        step = layout.parse_step(name)
        if step is None and not name.startswith((".aside-", ".replaced-")):
            view.n_bad += name.startswith(".bad-")
            view.lies += [name] if _is_lie(run / name) else []
            continue
        try:
            found, version = _load(run / name, begun)
        except (HpcckptError, AssertionError, KeyError) as error:
            if step is not None:
                view.torn[step] = f"{type(error).__name__}: {error}"
            continue
        if step is None:
            view.hidden.add((found, version))
        elif step == found:
            view.whole[step] = version
        else:
            view.torn[step] = f"holds step {found}"
    latest = hc.latest_checkpoint(run)
    view.latest = None if latest is None else layout.parse_step(latest.name)
    view.pins = run_pins.pins(run)
    return view


# -- whether that is what was promised -----------------------------------------------------------


def judge(view: View, promise: Promise) -> list[str]:
    """Say what of a promise was broken; each begins with ``lost`` or ``wrong``."""
    problems = [
        f"wrong: step {step} is visible, but {text}"
        for step, text in view.torn.items()
        if step not in promise.damaged or step in promise.returned
    ]
    newest = max(view.whole, default=None)
    if view.latest != newest:
        problems.append(f"wrong: the latest is said to be {view.latest}, and is {newest}")
    problems += [text for step in promise.returned if (text := _missing(step, view, promise))]
    problems += _aside_problems(view, promise)
    if promise.damaged - set(view.torn) and not view.n_bad:
        problems.append("lost: the damaged step was to be kept as evidence")
    problems += [f"wrong: {name} looks like a checkpoint, and holds other bytes" for name in view.lies]
    problems += [f"lost: the pin of step {step}" for step in promise.pinned - view.pins]
    return problems


def _missing(step: int, view: View, promise: Promise) -> str:
    """Say that a step whose save had returned is gone, unless retention may have taken it."""
    version = view.whole.get(step)
    if version is None and promise.two_renames and (step, promise.returned[step]) in view.hidden:
        return ""
    if version is not None and version >= promise.returned[step]:
        return ""
    n_newer = sum(other > step for other in view.whole)
    if version is None and promise.limit and n_newer >= promise.limit and step not in promise.pinned:
        return ""
    there = ", ".join(map(str, view.whole)) or "none"
    return f"lost: step {step}, save {promise.returned[step]} of it, had returned; there are {there}"


def _aside_problems(view: View, promise: Promise) -> list[str]:
    """Say which abandoned steps are neither visible nor aside, or visible above a step of the new branch."""
    abandoned = promise.abandoned.items()
    visible = [save for save in abandoned if save in view.whole.items()]
    problems = [f"lost: step {save[0]} is not even aside" for save in set(abandoned) - set(visible) - view.hidden]
    new = [
        step for step, version in view.whole.items() if step > (promise.base or 0) and (step, version) not in visible
    ]
    if promise.abandoned and visible and new:
        problems.append(f"wrong: step {new[0]} is there, and step {visible[0][0]} of the abandoned branch too")
    return problems


# -- whether the next job can go on --------------------------------------------------------------

_KEPT = re.compile(r"step-\d{10,}|\.bad-[0-9a-f]{12}|\.aside-step-.*|\.pins|journal\.jsonl")
_NONCE = re.compile(r"[0-9a-f]{12}|\d{10,}")
AFTER = 900
"""The version that the next job saves."""


def go_on(run: Path, view: View, promise: Promise) -> list[str]:
    """Restore, save the next step, and load all; say what went wrong."""
    # The time of change of a leftover cannot be set; a lock whose content was lost is watched for two beats.
    with mock.patch.multiple(lock, LEFTOVER_S=-1.0, HEARTBEAT_S=0.005):
        return _go_on(run, view, promise)


def _go_on(run: Path, view: View, promise: Promise) -> list[str]:
    step = max([*view.whole, *view.torn, *(save[0] for save in view.hidden)], default=0) + 1
    try:
        problems = _restore_and_save(run, view, promise, step)
    except NewerStepError:
        if not promise.two_renames:
            raise
        # A step that waited for its name got it back with the first save: the next restore finds it.
        view = look(run, promise.begun)
        problems = _restore_and_save(run, view, promise, step)
    begun = {**promise.begun, (step, AFTER): (1, False)}
    after = look(run, begun)
    if after.latest != step:
        problems.append(f"wrong: step {step} was saved after the crash, and the latest is {after.latest}")
    missing = view.whole.items() - after.whole.items()
    problems += [f"lost: step {lost[0]} was there after the crash, and not after the next save" for lost in missing]
    problems += [f"wrong: after the next save step {torn} is {text}" for torn, text in after.torn.items()
                 if torn not in view.torn]  # fmt: skip
    return problems


def _restore_and_save(run: Path, view: View, promise: Promise, step: int) -> list[str]:
    problems = []
    newest = max(view.whole, default=None)
    with hc.Checkpointer(run, max_to_keep=None) as ckpt:
        if newest is not None:
            is_big = promise.begun[newest, view.whole[newest]][1]
            state = state_of(None, 0, 0, is_big=is_big)
            restored = ckpt.restore(state)
            wanted = state_of(None, newest, view.whole[newest], is_big=is_big)
            same = all(state[name].tobytes() == wanted[name].tobytes() for name in ("identity", "w", "b", "frozen"))
            if restored.step != newest or not same:
                problems.append(f"wrong: restored step {restored.step} instead of {newest}, or other values")
        ckpt.save(step, state_of(None, step, AFTER, is_big=False)).result()
    return problems


def debris(run: Path) -> Counter[str]:
    """Count what was not asked to be kept, by kind of name."""
    names = [name for name in os.listdir(run) if not _KEPT.fullmatch(name)]
    pins = run / layout.PINS
    names += [f"{layout.PINS}/{name}" for name in os.listdir(pins) if "." in name] if pins.is_dir() else []
    return Counter(re.sub(r"reader-.*", "reader-*", _NONCE.sub("*", name)) for name in names)
