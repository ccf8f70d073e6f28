"""Damage to steps on storage: every way to read must notice it, and restore() must find the newest good step.

One case: a copy of a real run, one fault in one or two of its steps, and every way to read it.  What a step must give
follows from its bytes alone: if they are those that were saved, its values, else a CorruptError that names the place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hpcckpt as hc
from hpcckpt import cli, errors
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.state.tree import PerRank, RootOnly, Sharded
from hpcckpt.testing.ranks import run_ranks
from tests.campaign import _damage
from tests.campaign._checkpoints import STEPS, Run, make_runs, picture, same, same_all
from tests.campaign._common import Campaign, Case, Outcome
from tests.campaign._reference_state import Variable

Picture = dict[str, Any]


@dataclass
class Prepared:
    """What all cases of a worker start from."""

    runs: list[Run]
    twins: list[Run]
    pictures: list[Picture] = field(default_factory=list)


def prepare(scratch: Path) -> Prepared:
    """Make the runs, and of each a twin: the same values saved by another run."""
    (scratch / "runs").mkdir()
    (scratch / "twins").mkdir()
    prepared = Prepared(make_runs(scratch / "runs"), make_runs(scratch / "twins"))
    prepared.pictures = [picture(run.path) for run in prepared.runs]
    return prepared


def run(case: Case) -> Outcome:
    """Damage a copy of a run, and read it in every way."""
    prepared: Prepared = case.prepared
    chosen = case.rng.randrange(len(prepared.runs))
    pristine, run, twin = prepared.pictures[chosen], prepared.runs[chosen], prepared.twins[chosen]
    where = run.copy(case.scratch / "run")
    kind = _harm(_damage.Scene(case.rng, where, twin.path, case.scratch, 30), pristine)
    damaged = picture(where)
    problems = [*_read_each_step(run, where, pristine, damaged), *_restore_newest(run, where, pristine, damaged)]
    if {name: found for name, found in picture(where).items() if not name.startswith(".damaged")} != damaged:
        problems.append("reading changed what was there")
    if problems:
        text = "\n".join([f"{kind} in a copy of {run.shape.name!r}", *_changes(pristine, damaged), *problems])
        return Outcome("lost" if any("LOST" in problem for problem in problems) else "wrong", kind, text)
    return Outcome("detected", kind)


def _harm(scene: _damage.Scene, pristine: Picture) -> str:
    """Damage the newest step, now and then another one or two; return the kind of the damage."""
    rng = scene.rng
    for step in rng.choices([(30,), (30, 20), (20,), (10,)], [12, 2, 1, 1])[0]:
        kind = rng.choice(_damage.KINDS)
        while not kind.harm(dataclasses.replace(scene, step=step)) or picture(scene.run) == pristine:
            kind = rng.choice(_damage.KINDS)  # this one cannot be done here: files swapped where there is one only
    return kind.name


def _changes(pristine: Picture, damaged: Picture) -> list[str]:
    names = [name for name in sorted({*pristine, *damaged}) if pristine.get(name) != damaged.get(name)]
    return [f"changed: {', '.join(names)}"]


# -- what must be there --------------------------------------------------------------------------


def _part(step: int, whole: Picture) -> Picture:
    name = layout.step_dirname(step)
    return {path: content for path, content in whole.items() if path == name or path.startswith(name + "/")}


def _is_good(step: int, pristine: Picture, damaged: Picture) -> bool:
    """Return True if a step is as it was saved: nothing of it is changed, whatever was added."""
    before, after = _part(step, pristine), _part(step, damaged)
    return all(after.get(path) == content for path, content in before.items())


def _places(step: int, pristine: Picture, damaged: Picture) -> set[str]:
    """Return names, one of which a message about the damage must have."""
    before, after = _part(step, pristine), _part(step, damaged)
    changed = {path for path in before if after.get(path) != before[path]}
    names = {Path(path).name for path in changed}
    if layout.MANIFEST in names:
        names.add("not the file that the manifest names")  # a manifest and files that are whole, but not of one save
    if layout.step_dirname(step) not in after:
        names.add(f"step {step}")
    return names | {layout.step_dirname(step)}


# -- reading one step ----------------------------------------------------------------------------


def _read_each_step(run: Run, where: Path, pristine: Picture, damaged: Picture) -> list[str]:
    problems = []
    for step in STEPS:
        if _is_good(step, pristine, damaged):
            problems += _check_good(run, where, step)
        else:
            problems += _check_damaged(run, where, step, _places(step, pristine, damaged))
    for step in set(step_numbers(where)) - set(STEPS):
        names = {Path(path).name for path in _part(step, damaged)}  # it is another step's, and may be damaged besides
        problems += _check_damaged(run, where, step, names)
    return problems


def _check_good(run: Run, where: Path, step: int) -> list[str]:
    try:
        loaded = hc.load(where / layout.step_dirname(step))
    except errors.HpcckptError as error:
        return [f"step {step} is whole: FALSE ALARM of load: {error}"]
    return [] if same_all(loaded, run.loaded[step]) else [f"step {step} is whole, and was loaded otherwise"]


def _check_damaged(run: Run, where: Path, step: int, places: set[str]) -> list[str]:
    path = where / layout.step_dirname(step)
    problems = []
    if not path.is_symlink():  # the path that a user names may be a link; a step within a run may not
        problems += _must_fail(f"load of step {step}", places, lambda: hc.load(path))
        problems += _must_fail(f"verify of step {step}", places, lambda: _verify(path))
    problems += _must_fail(f"restore of step {step}", places, lambda: _restore(run, where, step))
    code, text = _verify_by_command(where, step)
    if code != (3 if step in step_numbers(where) else 4):
        problems.append(f"hpcckpt verify of step {step} ended with {code}: {text}")
    return problems


def _must_fail(what: str, places: set[str], read: Any) -> list[str]:
    try:
        read()
    except errors.OlderStepError as error:
        return [] if any(place in str(error) for place in places) else [f"{what}: no place in {error}"]
    except errors.HpcckptError as error:
        return [f"{what}: {type(error).__name__} does not say that it is damaged: {error}"]
    return [f"{what}: UNDETECTED"]


def _verify(path: Path) -> None:
    damaged = open_step(path).verify()
    if damaged:
        raise errors.CorruptError("; ".join(map(str, damaged)))


def _verify_by_command(where: Path, step: int) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = cli.main(["verify", "--quiet", str(where), str(step)])
    return code, out.getvalue()


# -- restoring -----------------------------------------------------------------------------------


def _restore(run: Run, where: Path, step: int | None) -> list[tuple[hc.Restored, dict[str, Any]]]:
    def body(comm: Any) -> tuple[hc.Restored, dict[str, Any]]:
        state = run.blank(comm.rank)
        with hc.Checkpointer(where, comm=comm, max_to_keep=None, **dict(run.shape.options)) as ckpt:
            return ckpt.restore(state, step), state

    return run_ranks(run.shape.n_ranks, body)


def _restore_newest(run: Run, where: Path, pristine: Picture, damaged: Picture) -> list[str]:
    """Check that restore() takes the newest good step, and says which it left out."""
    good = [step for step in STEPS if _is_good(step, pristine, damaged)]
    if not good:  # one file of all steps
        return _must_fail("restore()", {"no restorable step"}, lambda: _restore(run, where, None))
    newest = max(good)
    try:
        results = _restore(run, where, None)
    except errors.HpcckptError as error:
        return [f"LOST: restore() found nothing, though {good} are whole: {error}"]
    problems = []
    for rank, (restored, state) in enumerate(results):
        if restored.step != newest:
            problems.append(f"LOST: restore() took step {restored.step} instead of {newest}")
            continue
        there = [step for step in step_numbers(where) if step > newest]
        problems += [f"no warning of step {step}" for step in there if f"step {step} was" not in str(restored.warnings)]
        problems += _differences(state, run.shape.state(newest, rank, run.shape.n_ranks))
    return problems


def _differences(state: dict[str, Any], expected: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in expected.items():
        if isinstance(value, dict):
            found += _differences(state[name], value, f"{prefix}{name}/")
        elif isinstance(value, RootOnly):
            pass  # rank 0's value, which load is checked for
        elif not _equal(state[name], value):
            found.append(f"{prefix}{name} was restored with other values")
    return found


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, PerRank):
        return _equal(a.value, b.value)
    if isinstance(a, Sharded):
        return _equal(a.array, b.array)
    if isinstance(a, Variable):
        return same(a.view(), b.view())
    return same(a, b) if hasattr(a, "dtype") else a == b


CAMPAIGN = Campaign(
    "corruption",
    "Every change of a byte, a file or a directory of a step is detected by every way to read it, and restore() takes "
    "the newest good step.",
    full=10_000,
    run=run,
    prepare=prepare,
    jobs=2,
    in_memory=True,
)
