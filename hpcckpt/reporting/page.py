"""The report of a run as one HTML page that needs nothing else: no script, no network, no other file. Pure.

All that comes from a run, names and messages of anybody, goes in as text through :mod:`hpcckpt.reporting.markup`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpcckpt._version import __version__
from hpcckpt.reporting import charts
from hpcckpt.reporting.figures import Figures, figures_of
from hpcckpt.reporting.markup import Element, as_html, element
from hpcckpt.reporting.metrics import curves_of
from hpcckpt.reporting.story import Job, Save, Story
from hpcckpt.reporting.style import STYLE
from hpcckpt.reporting.words import (
    change_words,
    count_words,
    duration_words,
    moment_words,
    percent_words,
    rate_words,
    size_words,
)

MAX_ROWS = 1000
MAX_FAILURES = 100
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page_of(story: Story, now: float) -> str:
    """Return the page of a story, as it is told now. Pure."""
    figures = figures_of(story)
    title = f"Run {story.directory}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("title", title),
        element("style", STYLE),
    )
    body = element(
        "body",
        element("header", element("h1", title), element("p", _subtitle(story, now))),
        element("main", _cards(story, figures), *_notes(story), *_sections(story)),
        element(
            "footer",
            f"Made by hpcckpt {__version__} report, {moment_words(now)}, from the run's journal and its steps.",
        ),
    )
    return as_html(element("html", head, body, lang="en"))


def _subtitle(story: Story, now: float) -> str:
    times = [job.began for job in story.jobs] + [save.time for save in story.saves]
    ends = [job.last for job in story.jobs] + [save.time for save in story.saves]
    if not times:
        return "Nothing was saved yet."
    period = f"{moment_words(min(times))} to {moment_words(max(ends))}"
    state = (
        f"now written by {story.writing}" if story.writing else f"last activity {duration_words(now - max(ends))} ago"
    )
    return f"{period} ({duration_words(max(ends) - min(times))}); {state}"


# -- the figures at the top ----------------------------------------------------------------------


def _cards(story: Story, figures: Figures) -> Element:
    standing = [save for save in story.saves if save.state == "stands"]
    deaths = f"{figures.n_deaths} died" if figures.n_deaths else "none died"
    failed = f"{figures.n_failed} failed" if figures.n_failed else "none failed"
    share = f"{percent_words(figures.stall_part)} of the time" if figures.stall_part is not None else ""
    cards = [
        ("Latest step", *_tagged(story, "latest")),
        ("Best step", *_tagged(story, "best")),
        ("Saves", f"{figures.n_saves:,}", f"{failed}; every {duration_words(figures.interval_s)}"),
        ("Stored steps", f"{len(standing):,}", size_words(figures.standing_nbytes)),
        ("Total stall", duration_words(figures.stall_s), share),
        ("Bandwidth", rate_words(figures.bandwidth), "median"),
        ("Jobs", f"{figures.n_jobs:,}", deaths),
    ]
    return element("dl", *[_card(*card) for card in cards], class_="cards")


def _card(name: str, value: str, more: str) -> Element:
    return element(
        "div", element("dt", name), element("dd", value), element("dd", more, class_="more") if more else None,
        class_="card",
    )  # fmt: skip


def _tagged(story: Story, tag: str) -> tuple[str, str]:
    found = [save for save in story.saves if tag in save.tags]
    if not found:
        return "-", ""
    save = found[-1]
    epoch = f"epoch {save.epoch}" if save.epoch is not None else ""
    return f"{save.step:,}", ", ".join(filter(None, [save.part, epoch]))


def _notes(story: Story) -> list[Element]:
    notes = [element("div", problem, class_="note bad", role="note") for problem in story.problems[:20]]
    if story.asked:
        notes.append(element("div", f"The job is asked to stop: {story.asked}", class_="note", role="note"))
    if not story.has_journal:
        text = "There is no journal: neither the jobs nor what retention took are known."
        notes.append(element("div", text, class_="note", role="note"))
    return notes


# -- the charts ----------------------------------------------------------------------------------


class _Key(NamedTuple):
    kind: str
    text: str
    sign: str = ""


def _sections(story: Story) -> list[Element | None]:
    saves = charts.shown_saves(story)
    at = charts.boundaries_of(story, saves)
    has_stall = any(save.stall_s is not None for save in saves)
    has_slower = any((save.cost_s or 0.0) > (save.stall_s or 0.0) for save in saves)
    return [
        _section("Time line", charts.time_line(story), _LANES) if story.jobs else None,
        _section("Size per step, and what stands", charts.size_chart(saves, at), _FATES) if saves else None,
        _section("Stall: how long each save delayed the program", charts.stall_chart(saves, at),
                 [_Key("stall", "stall"), *([_Key("faint", "slower batches besides")] if has_slower else [])])
        if has_stall else None,
        _section("Bandwidth of each save", charts.bandwidth_chart(saves, at), [])
        if any(save.bandwidth for save in saves) else None,
        _metrics(story),
        _jobs_table(story.jobs),
        _failures_table(story),
        _changes_table(story),
        _usage_table(story),
        _saves_table(story),
    ]  # fmt: skip


_LANES = [
    _Key("ended", "job"), _Key("stopped", "preempted or halted"), _Key("died", "died"), _Key("running", "running"),
    _Key("tick", "save", "|"), _Key("failed", "failed", "✕"), _Key("restore", "restored step", "▸"),
]  # fmt: skip
_FATES = [
    _Key("stands", "stands"), _Key("removed", "removed by retention, prune or rm"), _Key("gone", "gone"),
    _Key("best", "best", "★"), _Key("latest", "latest", "▾"), _Key("pinned", "pinned", "●"),
]  # fmt: skip


def _section(title: str, chart: Element, keys: Sequence[_Key]) -> Element:
    return element("section", element("h2", title), _legend(keys), element("figure", chart))


def _legend(keys: Sequence[_Key]) -> Element | None:
    if not keys:
        return None
    line = element("p", aria_hidden="true")
    for key in keys:
        mark = (
            element("span", key.sign, class_=f"sign {key.kind}")
            if key.sign
            else element("span", class_=f"key {key.kind}")
        )
        mark.tail = key.text
        line.append(mark)
    return line


def _metrics(story: Story) -> Element | None:
    curves = curves_of(story)
    if not curves:
        return None
    figures = [
        element("figure", element("figcaption", name), charts.metric_chart(name, points)) for name, points in curves
    ]
    return element("section", element("h2", "Metrics"), element("div", *figures, class_="pair"))


# -- the tables ----------------------------------------------------------------------------------


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[int] = ()) -> Element:
    """Return a table; columns whose cells are numbers stand to the right."""
    right = {
        number
        for number in range(len(heads))
        if rows and all(row[number][:1].isdigit() or row[number] == "-" for row in rows) and number not in texts
    }
    kind = {
        number: "number" if number in right else "text" if number in texts else None for number in range(len(heads))
    }
    head = element("tr", *[element("th", text, scope="col", class_=kind[n]) for n, text in enumerate(heads)])
    lines = [element("tr", *[element("td", text, class_=kind[n]) for n, text in enumerate(row)]) for row in rows]
    table = element("table", element("thead", head), element("tbody", *lines), aria_label=title)
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label=title)


def _jobs_table(jobs: Sequence[Job]) -> Element | None:
    if not jobs:
        return None
    heads = ("Job", "Where", "Began", "Ran", "Ranks", "From step", "End", "Why")
    rows = [
        (
            job.job or "-",
            " ".join(filter(None, [job.scheduler, job.host])) or "-",
            moment_words(job.began),
            duration_words(job.seconds),
            _ranks(job),
            "-" if job.restored is None else f"{job.restored:,}",
            _ENDS.get(job.end, job.end),
            job.reason,
        )
        for job in jobs[-MAX_ROWS:]
    ]
    return element("section", element("h2", "Jobs"), _table("Jobs", heads, rows, texts=(6, 7)))


_ENDS = {"died": "died without reporting it", "failed": "ended by an error"}


def _ranks(job: Job) -> str:
    is_other = job.ranks_before not in {None, 0, job.n_ranks}
    return f"{job.ranks_before} → {job.n_ranks}" if is_other else str(job.n_ranks or "-")


def _failures_table(story: Story) -> Element | None:
    if not story.failures:
        return None
    rows = [
        (moment_words(each.time), f"{each.step:,}", each.kind, each.message) for each in story.failures[-MAX_FAILURES:]
    ]
    table = _table("Saves that failed", ("When", "Step", "Kind", "What"), rows, texts=(3,))
    return element("section", element("h2", f"Saves that failed ({len(story.failures):,})"), table)


def _changes_table(story: Story) -> Element | None:
    if not story.changes:
        return None
    rows = [(moment_words(each.time), change_words(each)) for each in story.changes[-MAX_ROWS:]]
    table = _table("Changed by hand", ("When", "What"), rows, texts=(1,))
    return element("section", element("h2", "Changed by hand"), table)


def _usage_table(story: Story) -> Element | None:
    if not story.other:
        return None
    rows = [
        (each.words, str(each.count), size_words(each.nbytes), moment_words(each.oldest), each.removed_by)
        for each in story.other
    ]
    heads = ("What", "Directories", "Size", "Since", "Removed by")
    table = _table("Other directories", heads, rows, texts=(0, 4))
    return element("section", element("h2", "Other directories that take space"), table)


def _saves_table(story: Story) -> Element | None:
    if not story.saves:
        return None
    has_parts = story.parts != ("",)
    heads = (
        *(("Cycle",) if has_parts else ()), "Step", "Epoch", "When", "Size", "Stall", "In all", "Bandwidth", "State",
    )  # fmt: skip
    rows = [(*((save.part,) if has_parts else ()), *_save_cells(save)) for save in reversed(story.saves[-MAX_ROWS:])]
    standing = [
        row for row, save in zip(rows, reversed(story.saves[-MAX_ROWS:]), strict=True) if save.state == "stands"
    ]
    every = element(
        "details", element("summary", f"All {count_words(len(rows), 'save')}"), _table("Saves", heads, rows)
    )
    return element(
        "section",
        element("h2", "Stored steps"),
        _table("Stored steps", heads, standing) if standing else None,
        every,
    )


def _save_cells(save: Save) -> tuple[str, ...]:
    return (
        f"{save.step:,}",
        "-" if save.epoch is None else str(save.epoch),
        moment_words(save.time),
        size_words(save.nbytes),
        duration_words(save.stall_s),
        duration_words(save.seconds),
        rate_words(save.bandwidth),
        ", ".join([save.state, *save.tags]),
    )
