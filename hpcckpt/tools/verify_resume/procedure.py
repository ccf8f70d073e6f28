"""How a resume is verified: run straight, draw when to kill, run and kill, resume, compare."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpcckpt.errors import CodeError, ConfigError, StepNotFoundError
from hpcckpt.rundir import discovery
from hpcckpt.tools.verify_resume.child_program import Program, tail_of
from hpcckpt.tools.verify_resume.compare_runs import compare_files, compare_losses, compare_metrics, compare_steps
from hpcckpt.tools.verify_resume.results import (
    PLACEHOLDER,
    Compared,
    Kill,
    ObservedStep,
    ProgramRun,
    VerifyResult,
    VerifySettings,
)
from hpcckpt.tools.verify_resume.watch_commits import CommitWatch, newest

REQUEUE = 75
_LOOK_EVERY_S = 0.005
_MAX_TRIES = 3
_MAX_REQUEUES = 100

Log = Callable[[str], None]


def verify(settings: VerifySettings, log: Log = lambda _: None) -> VerifyResult:
    """Run a training straight through, and killed and resumed; compare what came of both. Independent.

    Raises
    ------
    StepNotFoundError
        If the training saves nothing in the directory that it is given.
    ConfigError
        If it cannot be run.
    CodeError
        If it fails, hangs, or is over before it can be killed.
    """
    if settings.n_kills < 1 or not settings.command:
        raise ConfigError("there is nothing to verify: give a command, and at least one kill")
    if not settings.variable or "=" in settings.variable:
        raise ConfigError(f"--env: {settings.variable!r} cannot be the name of an environment variable")
    straight = _straight(settings, log)
    for number in range(_MAX_TRIES):
        kills = list(draw_kills(settings, straight.seen, straight.seconds, number))
        directory = settings.place / (f"interrupted-{number + 1}" if number else "interrupted")
        runs = _interrupted(settings, directory, kills, log)
        if runs[-1].name == "resumed":
            return _judged(settings, (straight, *runs), directory)
        log("it was over before it was to be killed; once more, killed earlier")
    raise CodeError(
        f"the training was over before it could be killed, {_MAX_TRIES} times: let it save earlier, or train longer"
    )


def draw_kills(
    settings: VerifySettings, seen: Sequence[ObservedStep], seconds: float, number: int = 0
) -> Iterator[Kill]:
    """Yield when to kill: after which steps that the straight run saved, and how long after them. Pure.

    It follows from the seed and from the steps, not from how long anything takes: after a step that is drawn among all
    but the last, by a part of the time to the next one. A second try is drawn from the first half of them, and so on.
    """
    rng = random.Random(f"{settings.seed}/{number}")
    steps = sorted({each.step for each in seen})
    if settings.kill_after is not None:
        chosen = [step for step in steps if step >= settings.kill_after][: settings.n_kills]
        if len(chosen) < settings.n_kills:
            raise ConfigError(f"--kill-after: no run gets to step {settings.kill_after}; the last one is {steps[-1]}")
    else:
        early = steps[: max(1, (len(steps) - 1) >> number)]
        chosen = sorted(rng.sample(early, min(settings.n_kills, len(early))))
    gap_s = max(0.0, (seconds - seen[0].elapsed_s) / max(1, len(steps)))
    yield from (Kill(step, round(rng.random() * gap_s / (1 << number), 4)) for step in chosen)


def _straight(settings: VerifySettings, log: Log) -> ProgramRun:
    directory = settings.place / "straight"
    log(f"straight: {' '.join(settings.command)}")
    run = _finished(settings, directory, "straight")
    if not run.seen:
        raise StepNotFoundError(
            f"the training saved no step in {directory}; write {PLACEHOLDER} in its arguments where it takes its run "
            f"directory, or let it read the environment variable {settings.variable}"
        )
    log(f"straight: {len(run.seen)} steps saved in {run.seconds:.1f} s, the last one {run.newest}")
    return run


def _interrupted(settings: VerifySettings, directory: Path, kills: Sequence[Kill], log: Log) -> list[ProgramRun]:
    """Run, kill, and resume; a run that ends too early ends the list."""
    runs = []
    for kill in kills:
        run = _one(settings, directory, "killed", kill)
        runs.append(run)
        if run.code >= 0:
            if run.code != REQUEUE:  # it wants to be run again, and was to be killed then
                _check(run, directory)
            return runs
        log(f"killed: {kill.later_s:g} s after step {kill.after}, {run.seconds:.1f} s from the start")
    run = _finished(settings, directory, "resumed")
    log(f"resumed: from step {run.began_at}, {len(run.seen)} steps saved in {run.seconds:.1f} s")
    return [*runs, run]


def _finished(settings: VerifySettings, directory: Path, name: str) -> ProgramRun:
    """Run to the end; a training that exits with 75 is started again."""
    first = run = _one(settings, directory, name)
    seen, seconds = run.seen, run.seconds
    for _ in range(_MAX_REQUEUES):
        if run.code != REQUEUE:
            break
        run = _one(settings, directory, name)
        seen, seconds = (*seen, *run.seen), seconds + run.seconds
    _check(run, directory)
    return ProgramRun(name, run.code, seconds, first.began_at, seen)


def _check(run: ProgramRun, directory: Path) -> None:
    if run.code != 0:
        log = directory.with_suffix(".log")
        text = tail_of(log)
        raise CodeError(f"the training ended with {run.code} ({run.name} run); the end of {log}:\n{text}")


def _one(settings: VerifySettings, directory: Path, name: str, kill: Kill | None = None) -> ProgramRun:
    """Run once; kill it at the planned time."""
    command = [word.replace(PLACEHOLDER, str(directory)) for word in settings.command]
    watch, began_at = CommitWatch(directory), newest(directory)
    program = Program(command, directory.with_suffix(".log"), {settings.variable: str(directory)})
    due: float | None = None
    try:
        while (code := program.code()) is None:
            watch.look(program.elapsed_s)
            if kill is not None and due is None and watch.seen and watch.seen[-1].step >= kill.after:
                due = program.elapsed_s + kill.later_s
            if due is not None and program.elapsed_s >= due:
                code = program.kill()
                break
            if settings.timeout_s is not None and program.elapsed_s > settings.timeout_s:
                raise CodeError(f"the training did not end within {settings.timeout_s:g} s ({name} run)")
            time.sleep(_LOOK_EVERY_S)
    finally:
        program.kill()
    watch.look(program.elapsed_s)
    return ProgramRun(name, code, program.elapsed_s, began_at, tuple(watch.seen), kill)


# -- what came of it -----------------------------------------------------------------------------


def _judged(settings: VerifySettings, runs: tuple[ProgramRun, ...], directory: Path) -> VerifyResult:
    straight, *others = runs
    places = settings.place / "straight", directory
    ends = tuple(newest(place) for place in places)
    compared: list[Compared] = []
    if ends[0] is not None or ends[1] is not None:
        compared += compare_steps(places, ends, settings.patterns, settings.rtol)
    compared += [compare_metrics(straight, others, settings.rtol)]
    compared += [compare_losses(places, name, settings.rtol) for name in settings.losses]
    compared += [compare_files(places, name, settings.rtol) for name in settings.files]
    compared = [each for each in compared if each.n_all or each.differing]
    if not any(each.what not in {"metrics", *settings.losses} for each in compared):
        raise StepNotFoundError(
            f"both runs left neither a step in {places[0].parent} nor a file that --file names: keep the checkpoints "
            "in the end (delete_checkpoint=False), or name a file with the weights"
        )
    level = _level(places[0], ends[0])
    return VerifyResult(runs, ends[0] if ends[0] == ends[1] else None, level, tuple(compared), tuple(_notes(runs)))


def _level(directory: Path, step: int | None) -> str:
    manifest = None if step is None else discovery.inspect_step(directory, step).manifest
    return "" if manifest is None else manifest.level


def _notes(runs: Sequence[ProgramRun]) -> Iterator[str]:
    resumed = runs[-1]
    if resumed.began_at is not None and resumed.seen and resumed.seen[0].step <= resumed.began_at:
        yield (
            f"the resumed run saved step {resumed.seen[0].step} first, though step {resumed.began_at} was there when "
            "it began: it seems to have begun at the start, or gone back"
        )
    if resumed.began_at is None:
        yield "the killed run had saved nothing yet: the resumed one began at the start"
