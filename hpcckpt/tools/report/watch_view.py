"""What ``hpcckpt watch`` shows of a run at a moment: as data, as lines, and as a panel by rich. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcckpt.tools.report.history import Change, Epoch, FailedSave, JobHistory, RunHistory, Save
from hpcckpt.tools.report.statistics import figures_of
from hpcckpt.tools.report.text import change_words, count_words, duration_words, moment_words, rate_words, size_words

LATE_FACTOR = 3.0
"""A save is late when it is this many times the usual interval since the last one."""
SHOWN_SAVES = 8
SHOWN_METRICS = 12


@dataclass(frozen=True, slots=True)
class Frame:
    """A run at a moment; its fields are the keys of ``--json``.

    Attributes
    ----------
    directory : str
        The run directory.
    time : float
        The moment.
    state : str
        ``running``, ``stopped`` or ``ended``, ``died``, ``unknown``.
    state_words : str
        The same for people.
    writing, asked : str
        Who holds the lock, and what a file HALT asks.
    job : JobHistory or None
        The last job.
    n_jobs, n_deaths, n_saves, n_failed : int
        How many there were.
    last : Save or None
        The last save.
    saves : tuple of Save
        The last ones, the newest first.
    failure : FailedSave or None
        The last save, if it failed.
    change : Change or None
        What somebody changed by hand since the last save.
    interval_s, steps_per_second, bandwidth : float or None
        From one save to the next, and how fast training and saves are.
    next_s : float or None
        Seconds until the next save is expected; negative when it is overdue.
    is_late : bool
        Whether a save is long overdue.
    ends_at : float or None
        When the job has to end, if the environment of this command says so.
    metrics : mapping of str to float
        The last ones.
    standing, standing_nbytes : int
        Number of existing steps, and their bytes.
    problems : tuple of str
        What is wrong.
    """

    directory: str
    time: float
    state: str
    state_words: str
    writing: str
    asked: str
    job: JobHistory | None
    n_jobs: int
    n_deaths: int
    n_saves: int
    n_failed: int
    last: Save | None
    saves: tuple[Save, ...]
    failure: FailedSave | None
    change: Change | None
    interval_s: float | None
    steps_per_second: float | None
    bandwidth: float | None
    next_s: float | None
    is_late: bool
    ends_at: float | None
    metrics: Mapping[str, float]
    standing: int
    standing_nbytes: int
    problems: tuple[str, ...]


def frame_of(history: RunHistory, now: float, ends_at: float | None = None) -> Frame:
    """Return what a history shows at a moment. Pure."""
    figures = figures_of(history)
    job = history.jobs[-1] if history.jobs else None
    last = history.saves[-1] if history.saves else None
    is_running = bool(history.writing)
    next_s = last.time + figures.interval_s - now if is_running and last and figures.interval_s else None
    since = last.time if last is not None else 0.0
    failure = next((each for each in history.failures[-1:] if each.time >= since), None)
    change = next((each for each in history.changes[-1:] if each.time >= since), None)
    state = "running" if is_running else _STATES.get(job.end, "unknown") if job else "unknown"
    return Frame(
        directory=history.directory,
        time=now,
        state=state,
        state_words=_state_words(history, job, now),
        writing=history.writing,
        asked=history.asked,
        job=job,
        n_jobs=figures.n_jobs,
        n_deaths=figures.n_deaths,
        n_saves=figures.n_saves,
        n_failed=figures.n_failed,
        last=last,
        saves=tuple(reversed(history.saves[-SHOWN_SAVES:])),
        failure=failure,
        change=change,
        interval_s=figures.interval_s,
        steps_per_second=figures.steps_per_second,
        bandwidth=figures.bandwidth,
        next_s=next_s,
        is_late=next_s is not None and next_s < -(LATE_FACTOR - 1) * (figures.interval_s or 0.0),
        ends_at=ends_at if is_running else None,
        metrics=_last_metrics(history),
        standing=sum(save.state == "kept" for save in history.saves),
        standing_nbytes=figures.standing_nbytes,
        problems=history.problems,
    )


_STATES = {"ended": "ended", "halted": "stopped", "preempted": "stopped", "failed": "died", "died": "died"}


def _state_words(history: RunHistory, job: JobHistory | None, now: float) -> str:
    if history.writing:
        since = f" for {duration_words(max(0.0, now - job.began))}" if job is not None and job.end == "running" else ""
        return f"running{since}: {history.writing}"
    if job is None:
        return "no job writes here now, and there is no journal of earlier ones"
    ago = f"{duration_words(max(0.0, now - job.last))} ago"
    why = f" ({job.reason})" if job.reason else ""
    words = {
        "died": f"the last job died{f': {job.reason}' if job.reason else ''}; last activity {ago}",
        "failed": f"the last job ended with an error{why} {ago}",
        "halted": f"halted{why} {ago}",
        "preempted": f"preempted{why} {ago}",
    }
    return words.get(job.end, f"ended {ago}")


def _last_metrics(history: RunHistory) -> Mapping[str, float]:
    """Return the newest metrics, of an epoch or of a save."""
    every: tuple[Sequence[Epoch | Save], ...] = (history.epochs, history.saves)
    newest = [each for events in every for each in [event for event in events if event.metrics][-1:]]
    metrics = max(newest, key=lambda each: each.time).metrics if newest else {}
    return dict(list(metrics.items())[:SHOWN_METRICS])


# -- in words --------------------------------------------------------------------------------------


def lines_of(frame: Frame) -> list[tuple[str, str]]:
    """Return a frame as names and values. Pure."""
    found = [("run", frame.directory), ("state", frame.state_words)]
    if frame.asked:
        found.append(("asked", f"to stop: {frame.asked}"))
    if frame.job is not None:
        found.append(("job", _job_words(frame)))
    if frame.last is not None:
        ago = duration_words(max(0.0, frame.time - frame.last.time))
        found.append(("last save", f"{save_words(frame.last)}, {ago} ago"))
    if frame.failure is not None:
        found.append(("failed", f"step {frame.failure.step}: {frame.failure.message}"))
    if frame.change is not None:
        ago = duration_words(max(0.0, frame.time - frame.change.time))
        found.append(("by hand", f"{change_words(frame.change)}, {ago} ago"))
    if frame.next_s is not None:
        found.append(("next save", _next_words(frame)))
    if frame.steps_per_second is not None:
        found.append(("speed", f"{frame.steps_per_second:.3g} steps/s"))
    if frame.ends_at is not None:
        found.append(("time left", duration_words(max(0.0, frame.ends_at - frame.time))))
    if frame.metrics:
        found.append(("metrics", " ".join(f"{name}={value:.5g}" for name, value in frame.metrics.items())))
    found.append(("kept", f"{count_words(frame.standing, 'step')}, {size_words(frame.standing_nbytes)}"))
    return found + [("problem", problem) for problem in frame.problems]


def _job_words(frame: Frame) -> str:
    job = frame.job
    assert job is not None
    name = " ".join(filter(None, [job.scheduler, job.job])) or f"process on {job.host}"
    of = f"{count_words(frame.n_jobs, 'job')}, {frame.n_deaths} died"
    went_on = f", resumed from step {job.restored}" if job.restored is not None else ""
    return f"{name}, {count_words(job.n_ranks, 'rank')}{went_on}; {of}"


def _next_words(frame: Frame) -> str:
    assert frame.next_s is not None
    every = f"(every {duration_words(frame.interval_s)})"
    if frame.next_s >= 0:
        return f"in {duration_words(frame.next_s)} {every}"
    return f"{'LATE: ' if frame.is_late else ''}due {duration_words(-frame.next_s)} ago {every}"


def save_words(save: Save) -> str:
    """Return a save in a line: step, size, stall, duration, bandwidth. Pure."""
    words = [f"step {save.step}", *([f"epoch {save.epoch}"] if save.epoch is not None else []), size_words(save.nbytes)]
    if save.seconds is not None:
        words.append(f"stall {duration_words(save.stall_s)}, {duration_words(save.seconds)} in total")
        words.append(rate_words(save.bandwidth))
    return ", ".join([*([save.part] if save.part else []), *words])


def news(before: RunHistory | None, after: RunHistory) -> list[str]:
    """Return what happened between two looks, a line each, in the order of time. Pure."""
    seen = set(_events(before)) if before is not None else set()
    return [line for when, line in sorted(_events(after)) if (when, line) not in seen]


def _events(history: RunHistory) -> list[tuple[float, str]]:
    found = [(save.time, f"saved {save_words(save)}{_metrics_text(save.metrics)}") for save in history.saves]
    found += [(each.time, f"failed step {each.step}: {each.message}") for each in history.failures]
    found += [
        (job.began, f"job began: {job.scheduler} {job.job or job.host}, {count_words(job.n_ranks, 'rank')}")
        for job in history.jobs
    ]
    found += [(each.time, change_words(each)) for each in history.changes]
    found += [(each.time, f"restored step {each.step} in {duration_words(each.seconds)}") for each in history.restores]
    found += [
        (job.last, f"job {job.end}{f': {job.reason}' if job.reason else ''}")
        for job in history.jobs
        if job.end not in {"running", "died"}
    ]
    return [(when, f"{moment_words(when)} {line}") for when, line in found]


def _metrics_text(metrics: Mapping[str, float]) -> str:
    return "".join(f" {name}={value:.5g}" for name, value in list(metrics.items())[:4])


# -- on a terminal -----------------------------------------------------------------------------------


def panel_of(frame: Frame) -> Any:
    """Return a frame as rich draws it. Needs rich."""
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in lines_of(frame)[1:]:
        facts.add_row(name, Text(_plain(value), style=_style(name, frame)))
    saves = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("STEP", "EPOCH", "SIZE", "STALL", "IN ALL", "BANDWIDTH", "AGO"):
        saves.add_column(title, justify="right")
    saves.add_column("STATE")
    for save in frame.saves:
        saves.add_row(*_cells(save, frame.time), style="" if save.state == "kept" else "dim")
    shown: Sequence[Any] = [facts, saves] if frame.saves else [facts]
    colour = {"running": "green", "died": "red", "stopped": "yellow"}.get(frame.state, "blue")
    return Panel(
        Group(*shown), title=Text(_plain(frame.directory)), border_style=colour, subtitle=moment_words(frame.time)
    )


def _style(name: str, frame: Frame) -> str:
    if name in {"failed", "problem"} or (name == "next save" and frame.is_late):
        return "red"
    if name == "state":
        return {"running": "green", "died": "red", "stopped": "yellow"}.get(frame.state, "")
    return "yellow" if name == "asked" else ""


def _plain(text: str) -> str:
    """Return text that steers no terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _cells(save: Save, now: float) -> list[str]:
    return [
        f"{save.step:,}",
        "-" if save.epoch is None else str(save.epoch),
        size_words(save.nbytes),
        duration_words(save.stall_s),
        duration_words(save.seconds),
        rate_words(save.bandwidth),
        duration_words(max(0.0, now - save.time)),
        ", ".join([save.state, *save.tags]),
    ]
