"""The report of a run as one HTML page that needs nothing else: no script, no network, no other file. Pure.

All that comes from a run, names and messages of anybody, goes in as text through :mod:`hpcckpt.tools.report.markup`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcckpt._version import __version__
from hpcckpt.tools.report.charts import Chart, charts_of
from hpcckpt.tools.report.figure_files import NEEDED, drawing, dress, has_matplotlib, new_figure, svg_of
from hpcckpt.tools.report.history import JobHistory, RunHistory, Save
from hpcckpt.tools.report.markup import Element, as_html, element
from hpcckpt.tools.report.statistics import RunStatistics, figures_of
from hpcckpt.tools.report.style import STYLE
from hpcckpt.tools.report.text import (
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


def page_of(history: RunHistory, now: float) -> str:
    """Return the page of a history. Pure."""
    figures = figures_of(history)
    title = f"Run {history.directory}"
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
        element("header", element("h1", title), element("p", _subtitle(history, now))),
        element("main", _cards(history, figures), *_notes(history), *_sections(history)),
        element(
            "footer",
            f"Made by hpcckpt {__version__} report, {moment_words(now)}, from the run's journal and its steps.",
        ),
    )
    return as_html(element("html", head, body, lang="en"))


def _subtitle(history: RunHistory, now: float) -> str:
    times = [job.began for job in history.jobs] + [save.time for save in history.saves]
    ends = [job.last for job in history.jobs] + [save.time for save in history.saves]
    if not times:
        return "Nothing was saved yet."
    period = f"{moment_words(min(times))} to {moment_words(max(ends))}"
    state = (
        f"now written by {history.writing}"
        if history.writing
        else f"last activity {duration_words(max(0.0, now - max(ends)))} ago"
    )
    return f"{period} ({duration_words(max(ends) - min(times))}); {state}"


# -- the figures at the top ----------------------------------------------------------------------


def _cards(history: RunHistory, figures: RunStatistics) -> Element:
    standing = [save for save in history.saves if save.state == "kept"]
    deaths = f"{figures.n_deaths} died" if figures.n_deaths else "none died"
    failed = f"{figures.n_failed} failed" if figures.n_failed else "none failed"
    share = f"{percent_words(figures.stall_part)} of the time" if figures.stall_part is not None else ""
    cards = [
        ("Latest step", *_tagged(history, "latest")),
        *([("Best step", *_tagged(history, "best"))] if any("best" in save.tags for save in history.saves) else []),
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


def _tagged(history: RunHistory, tag: str) -> tuple[str, str]:
    found = [save for save in history.saves if tag in save.tags]
    if not found:
        return "-", ""
    save = found[-1]
    epoch = f"epoch {save.epoch}" if save.epoch is not None else ""
    return f"{save.step:,}", ", ".join(filter(None, [save.part, epoch]))


def _notes(history: RunHistory) -> list[Element]:
    notes = [element("div", problem, class_="note bad", role="note") for problem in history.problems[:20]]
    if history.asked:
        notes.append(element("div", f"The job is asked to stop: {history.asked}", class_="note", role="note"))
    if not history.has_journal:
        text = "There is no journal: neither the jobs nor what retention took are known."
        notes.append(element("div", text, class_="note", role="note"))
    if charts_of(history) and not has_matplotlib():
        notes.append(element("div", f"{NEEDED}. The tables have what they would show.", class_="note", role="note"))
    return notes


# -- the charts ----------------------------------------------------------------------------------


def _sections(history: RunHistory) -> list[Element | None]:
    return [
        *_charts(history),
        _jobs_table(history.jobs),
        _failures_table(history),
        _changes_table(history),
        _usage_table(history),
        _saves_table(history),
    ]


def _charts(history: RunHistory) -> list[Element]:
    if not has_matplotlib():
        return []
    charts = charts_of(history)
    figures = [element("figure", _drawn(chart, f"chart {number}")) for number, chart in enumerate(charts)]
    found: list[Element] = []
    metrics = element("div", class_="pair")
    for chart, figure in zip(charts, figures, strict=True):
        if chart.is_metric:
            figure.insert(0, element("figcaption", chart.title))
            metrics.append(figure)
        else:
            key = element("p", chart.key) if chart.key else None
            figure.attrib.update({"class": "scroll", "tabindex": "0"})  # legible on a phone
            found.append(element("section", element("h2", chart.title), key, figure))
    return found + ([element("section", element("h2", "Metrics"), metrics)] if len(metrics) else [])


def _drawn(chart: Chart, salt: str) -> Element:
    with drawing(salt):
        figure = new_figure(4.8 if chart.is_metric else 10, chart.height)
        axes = figure.subplots()
        dress(axes)
        chart.draw(axes)
        return svg_of(figure, chart.title, chart.description)


# -- the tables ----------------------------------------------------------------------------------


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[int] = ()) -> Element:
    """Return a table; columns whose cells are numbers are aligned to the right."""
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


def _jobs_table(jobs: Sequence[JobHistory]) -> Element | None:
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


_ENDS = {"died": "died without reporting it", "failed": "ended with an error"}


def _ranks(job: JobHistory) -> str:
    is_other = job.ranks_before not in {None, 0, job.n_ranks}
    return f"{job.ranks_before} → {job.n_ranks}" if is_other else str(job.n_ranks or "-")


def _failures_table(history: RunHistory) -> Element | None:
    if not history.failures:
        return None
    rows = [
        (moment_words(each.time), f"{each.step:,}", each.kind, each.message)
        for each in history.failures[-MAX_FAILURES:]
    ]
    table = _table("Saves that failed", ("When", "Step", "Kind", "What"), rows, texts=(3,))
    return element("section", element("h2", f"Saves that failed ({len(history.failures):,})"), table)


def _changes_table(history: RunHistory) -> Element | None:
    if not history.changes:
        return None
    rows = [(moment_words(each.time), change_words(each)) for each in history.changes[-MAX_ROWS:]]
    table = _table("Changed by hand", ("When", "What"), rows, texts=(1,))
    return element("section", element("h2", "Changed by hand"), table)


def _usage_table(history: RunHistory) -> Element | None:
    if not history.other:
        return None
    rows = [
        (each.words, str(each.count), size_words(each.nbytes), moment_words(each.oldest), each.removed_by)
        for each in history.other
    ]
    heads = ("What", "Directories", "Size", "Since", "Removed by")
    table = _table("Other directories", heads, rows, texts=(0, 4))
    return element("section", element("h2", "Other directories that take space"), table)


def _saves_table(history: RunHistory) -> Element | None:
    if not history.saves:
        return None
    has_parts = history.parts != ("",)
    heads = (
        *(("Cycle",) if has_parts else ()), "Step", "Epoch", "When", "Size", "Stall", "Total", "Bandwidth", "State",
    )  # fmt: skip
    rows = [(*((save.part,) if has_parts else ()), *_save_cells(save)) for save in reversed(history.saves[-MAX_ROWS:])]
    standing = [
        row for row, save in zip(rows, reversed(history.saves[-MAX_ROWS:]), strict=True) if save.state == "kept"
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
