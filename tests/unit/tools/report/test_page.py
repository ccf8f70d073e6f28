"""The report's page: what is on it, that nothing on it is markup of a stranger, and what a browser makes of it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.tools.report.charts import charts_of
from hpcckpt.tools.report.figure_files import AMBER, BLUE, GREEN, GREY, RED, drawing, new_figure
from hpcckpt.tools.report.html_page import page_of
from hpcckpt.tools.report.picture import picture_of
from hpcckpt.tools.report.read_history import read_run_history
from tests.support.report import browsing
from tests.support.report.made_runs import BEGAN, MadeRun, long_run, short_run

NOW = BEGAN + 10 * 86400
EVIL = "</title></text><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;\x00\x1b[31m\u202e"
needs_browser = pytest.mark.skipif(browsing.browser() is None, reason="there is no Chromium on this machine")


class Page(HTMLParser):
    """The tags, the attributes and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data + " "


def page(run: Path) -> Page:
    return Page(page_of(read_run_history(run), NOW))


def standing_run(directory: Path) -> Path:
    """A run of which steps exist: the best, a pinned one, the latest, and one that is damaged."""
    with hc.Checkpointer(directory, max_to_keep=2, keep_best="loss") as ckpt:
        for step in range(1, 9):
            ckpt.save(step, {"w": np.zeros(1000)}, metrics={"loss": abs(step - 5) + 0.5})
            if step == 3:
                ckpt.wait()
                ckpt.pin(3)
    next((directory / "step-0000000007" / "data").iterdir()).write_bytes(b"cut")
    return directory


def drawn(run: Path, title: str) -> Any:
    """Return the axes of a chart, drawn."""
    (chart,) = (chart for chart in charts_of(read_run_history(run)) if chart.title == title)
    with drawing():
        axes = new_figure(10, chart.height).subplots()
        chart.draw(axes)
    return axes


def bars(axes: Any) -> Counter[str]:
    """Return how many bars there are of each colour; those that are framed have "none"."""
    from matplotlib.colors import to_hex

    shapes = [(each, len(each.get_paths())) for each in axes.collections] + [(each, 1) for each in axes.patches]
    found: Counter[str] = Counter()
    for each, count in shapes:
        colours = np.atleast_2d(each.get_facecolor())
        found[to_hex(colours[0]) if len(colours) and colours[0][3] else "none"] += count
    return found


def titles(run: Path) -> list[str]:
    return [chart.title for chart in charts_of(read_run_history(run))]


# -- what is on it -----------------------------------------------------------------------------


def test_three_hundred_saves_of_four_jobs_are_all_there(tmp_path):
    run = long_run(tmp_path / "run")
    found = page(run)
    jobs = bars(drawn(run, "Time line"))
    assert (jobs[RED], jobs[AMBER], jobs.total()) == (2, 1, 4)
    assert bars(drawn(run, "Stall: how long each save delayed the program"))[BLUE] == 296
    assert len(drawn(run, "Bandwidth of each save").lines[0].get_xdata()) == 296
    sizes = bars(drawn(run, "Size per step"))
    assert (sizes[GREY], sizes.total()) == (sum(save.state == "removed" for save in read_run_history(run).saves), 296)
    for words in (
        "died without reporting it",
        "ended with an error",
        "RuntimeError",
        "the job ends in 0:04:12",
        "8 → 4",
    ):
        assert words in found.text
    assert "Saves that failed (4)" in found.text
    assert "no room: 3.2 GiB are needed" in found.text


def test_it_says_which_steps_stand_and_why(tmp_path):
    run = standing_run(tmp_path / "run")
    found, axes = page(run), drawn(run, "Size per step")
    sizes = bars(axes)
    assert (sizes[GREEN], sizes[GREY], sizes[RED]) == (3, 4, 1)
    assert {text.get_text() for text in axes.texts} == {"★", "●", "✕", "▾"}
    for words in ("kept, best", "kept, latest", "kept, pinned", "kept, damaged"):
        assert words in found.text
    assert "bytes instead of" in found.text, "what is wrong with the damaged one"


@pytest.mark.parametrize("metrics", [{}, None])
def test_metrics_are_drawn_where_there_are_any(tmp_path, metrics):
    run = short_run(tmp_path / "run", metrics)
    assert {"loss", "accuracy"} & set(titles(run)) == (set() if metrics == {} else {"loss", "accuracy"})
    assert ("Metrics" in page(run).text) == (metrics is None)
    assert bars(drawn(run, "Stall: how long each save delayed the program"))[BLUE] == 3


def test_what_is_not_finite_is_a_gap_in_its_curve(tmp_path):
    run = MadeRun(tmp_path / "run")
    run.start()
    for value in (1.0, 2.0, "nan", 3.0, 4.0, "inf", 5.0):
        run.train(1, metrics={"loss": value, "never": "nan"})
    directory = run.write()
    (curve,) = drawn(directory, "loss").lines
    assert np.isfinite(curve.get_ydata()).tolist() == [True, True, False, True, True, False, True]
    assert "never a finite value" in page(directory).text


def test_a_curve_has_a_gap_where_the_run_resumed_from_an_older_step(tmp_path):
    run = MadeRun(tmp_path / "run")
    run.start()
    run.train(3)
    run.start(restored=500)
    run.train(2)
    (curve,) = drawn(run.write(), "loss").lines
    assert np.isfinite(curve.get_ydata()).tolist() == [True, True, True, False, True, True]


def test_a_run_of_cycles_has_the_metrics_of_its_epochs_and_the_saves_of_all(tmp_path):
    for number in (1, 2):
        short_run(tmp_path / "run" / f"cycle-{number}")
    lines = [
        f'{{"time": "2026-11-20T1{n}:00:00Z", "event": "epoch", "cycle": {1 + n // 3}, "epoch": {n % 3 + 1}, '
        f'"step": {n % 3 * 500}, "metrics": {{"val_auc": 0.{n}}}}}\n'
        for n in range(6)
    ]
    (tmp_path / "run" / "log.jsonl").write_text("".join(lines), encoding="utf-8")
    found = page(tmp_path / "run")
    assert "val_auc (cycle-1)" in found.text
    assert "val_auc (cycle-2)" in found.text
    assert bars(drawn(tmp_path / "run", "Stall: how long each save delayed the program"))[BLUE] == 6
    assert len(drawn(tmp_path / "run", "Time line").patches) == 1, "one job worked in both"


def test_without_a_journal_the_steps_that_stand_are_shown(tmp_path):
    run = standing_run(tmp_path / "run")
    (run / "journal.jsonl").unlink()
    assert "There is no journal" in page(run).text
    assert bars(drawn(run, "Size per step"))[GREEN] == 3
    assert "Time line" not in titles(run)


def test_each_chart_has_a_name_and_a_description(tmp_path):
    history = read_run_history(long_run(tmp_path / "run"))
    found = Page(page_of(history, NOW))
    names = [value for name, value in found.attributes if name == "aria-label" and ": " in (value or "")]
    assert names == [f"{chart.title}: {chart.description}" for chart in charts_of(history)]
    assert found.tags.count("svg") == found.tags.count("desc") == len(names) == 6
    assert "4 jobs, 2 of them died, in 1 d 2 h" in found.text


def test_the_same_run_makes_the_same_page(tmp_path):
    history = read_run_history(long_run(tmp_path / "run", 40))
    assert page_of(history, NOW) == page_of(history, NOW)


def test_charts_name_their_axis_and_a_run_without_metrics_has_no_best_step(tmp_path):
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"w": np.zeros(10)})
    for title in ("Size per step", "Bandwidth of each save"):
        assert drawn(tmp_path / "run", title).get_xlabel() == "step"
    assert "Best step" not in page(tmp_path / "run").text
    assert "Best step" in page(standing_run(tmp_path / "other")).text


def test_settings_of_matplotlib_change_nothing(tmp_path):
    import matplotlib as mpl

    history = read_run_history(short_run(tmp_path / "run"))
    expected = page_of(history, NOW)
    with mpl.rc_context({"xtick.direction": "in", "svg.fonttype": "path", "font.size": 30}):
        assert page_of(history, NOW) == expected
        assert mpl.rcParams["font.size"] == 30


def test_without_matplotlib_the_page_has_its_tables_and_names_the_extra(tmp_path, monkeypatch):
    run = long_run(tmp_path / "run", 40)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    found = page(run)
    assert "svg" not in found.tags
    assert found.tags.count("table") == 3
    assert "pip install 'hpcckpt[plot]'" in found.text
    assert "ended with an error" in found.text
    with pytest.raises(hc.errors.ConfigError, match=r"pip install 'hpcckpt\[plot\]'"):
        picture_of(read_run_history(run))


@pytest.mark.parametrize("line", ['{"event": "saved"}', '{"event": "saved", "time": 1e9, "step": -1}', "null", "", "{",
                                  '{"event": "saved", "time": 1e999, "step": 1}', '{"event": "start", "time": "x"}',
                                  '{"event": "removed", "time": 1.0, "steps": {"a": 1}}',
                                  '{"event": ["saved"], "time": 1}',
                                  '{"event": "saved", "time": 1e9, "step": 2, "bytes": "many", "metrics": [1]}',
                                  '{"event": "saved", "time": "9999-12-31T23:59:59-14:00", "step": 1}',
                                  '{"event": "saved", "time": "0001-01-01T00:00:00+14:00", "step": 1}',
                                  '{"event": "saved", "time": 1e9, "step": 2, "seconds": -3, "stall_seconds": true}',
                                  '{"event": "cost", "time": 1e9, "step": 2}'])  # fmt: skip
def test_a_journal_of_nonsense_makes_a_page_all_the_same(tmp_path, line):
    (tmp_path / "journal.jsonl").write_text(f"{line}\n" * 2, encoding="utf-8")
    assert "Made by hpcckpt" in page(tmp_path).text


# -- nothing is markup of a stranger ---------------------------------------------------------------


def hostile_run(directory: Path) -> Path:
    run = MadeRun(directory)
    start = {"job": EVIL, "scheduler": EVIL, "host": EVIL, "version": EVIL, "backend": EVIL, "n_ranks": 2}
    run.note("start", **start)
    run.train(4, metrics={EVIL: 1.0, "x" * 5000: 2.0, "$\\frac{1}{0}$": 3.0, "精度": 4.0})
    run.note("failed", step=9, phase=EVIL, kind=EVIL, message=EVIL)
    run.note("removed", steps=["7", True, -1, 10**40, 7], n_steps=EVIL, by=EVIL)
    run.note("copied", step=3, by=EVIL, **{"from": EVIL})
    run.stop(EVIL)
    return run.write()


def test_names_and_messages_are_text_and_nothing_else(tmp_path):
    text = page_of(read_run_history(hostile_run(tmp_path / "<script>alert(3)<")), NOW)
    found = Page(text)
    assert {"script", "img"} & set(found.tags) == set()
    assert [name for name, _ in found.attributes if name.startswith("on")] == []
    assert "<script>alert(1)</script>" in found.text
    assert not re.search(r"[\x00-\x08\x1b\u202e]", text)


def test_what_was_changed_by_hand_is_told_as_far_as_it_has_the_form_of_an_entry(tmp_path):
    changes = read_run_history(hostile_run(tmp_path)).changes
    assert [(change.steps, change.n_steps, change.source == EVIL) for change in changes] == [
        ((7,), 1, False),
        ((3,), 1, True),
    ]


def test_a_picture_survives_hostile_names(tmp_path):
    assert picture_of(read_run_history(hostile_run(tmp_path / "run"))).startswith(b"\x89PNG")


def test_it_asks_for_nothing_from_anywhere(tmp_path):
    text = page_of(read_run_history(long_run(tmp_path / "run")), NOW)
    found = Page(text)
    links = [value for name, value in found.attributes if name in {"src", "href", "srcset", "action"}]
    assert [value for value in links if not (value or "").startswith("#")] == []
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


# -- in a browser ----------------------------------------------------------------------------------


@needs_browser
def test_the_console_of_a_browser_that_has_something_to_complain_of_is_seen(tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<!DOCTYPE html><script>console.error('woe'); nothing.there()</script>", encoding="utf-8")
    console = browsing.browse(bad, "--dump-dom").console
    assert any("woe" in line for line in console)
    assert any("nothing is not defined" in line for line in console)


@needs_browser
@pytest.mark.parametrize("make", [long_run, short_run, hostile_run, standing_run])
def test_a_browser_finds_no_fault(tmp_path, make):
    file = tmp_path / "report.html"
    file.write_text(page_of(read_run_history(make(tmp_path / "run")), NOW), encoding="utf-8")
    seen = browsing.browse(file, "--dump-dom")
    assert seen.console == []
    dom = Page(seen.out)
    assert "script" not in dom.tags
    assert dom.tags.count("svg") >= 3
    assert "Made by hpcckpt" in dom.text


@needs_browser
@pytest.mark.parametrize(
    ("scheme", "paper", "green"), [("light", (255, 255, 255), (26, 127, 75)), ("dark", (20, 24, 29), (76, 195, 138))]
)
def test_a_screenshot_shows_its_colours_by_day_and_by_night(tmp_path, scheme, paper, green):
    from matplotlib import image

    file, shot = tmp_path / "report.html", tmp_path / "shot.png"
    file.write_text(page_of(read_run_history(standing_run(tmp_path / "run")), NOW), encoding="utf-8")
    night = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    browsing.browse(file, f"--screenshot={shot}", "--window-size=1100,1400", *night)
    pixels = (image.imread(shot)[:, :, :3] * 255).round().astype(int)
    assert tuple(pixels[5, 5]) == paper
    assert (abs(pixels - np.array(green)).sum(axis=2) < 12).sum() > 2000, "bars of the steps that stand"
