"""The report's page: what stands on it, that nothing on it is markup of a stranger, and what a browser makes of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import browsing
import numpy as np
import pytest
from made_runs import BEGAN, MadeRun, long_run, short_run

import hpcckpt as hc
from hpcckpt.reporting.page import page_of
from hpcckpt.reporting.picture import picture_of
from hpcckpt.reporting.reading import read_story

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
    return Page(page_of(read_story(run), NOW))


def standing_run(directory: Path) -> Path:
    """A run of which steps stand: the best, a pinned one, the latest, and one that is damaged."""
    with hc.Checkpointer(directory, max_to_keep=2, keep_best="loss") as ckpt:
        for step in range(1, 9):
            ckpt.save(step, {"w": np.zeros(1000)}, metrics={"loss": abs(step - 5) + 0.5})
            if step == 3:
                ckpt.wait()
                ckpt.pin(3)
    next((directory / "step-0000000007" / "data").iterdir()).write_bytes(b"cut")
    return directory


def marks(found: Page, name: str) -> int:
    return sum(key == "class" and name in (value or "").split() for key, value in found.attributes)


# -- what stands on it -----------------------------------------------------------------------------


def test_three_hundred_saves_of_four_jobs_are_all_there(tmp_path):
    found = page(long_run(tmp_path / "run"))
    assert marks(found, "lane") == 4
    assert (marks(found, "died"), marks(found, "preempted")) == (2, 1)  # one died, one in the legend
    assert marks(found, "stall") == 296 + 1
    assert marks(found, "bandwidth") == 296
    assert marks(found, "removed") == len([s for s in read_story(tmp_path / "run").saves if s.state == "removed"]) + 1
    for words in ("died without reporting it", "ended by an error", "RuntimeError", "the job ends in 0:04:12", "8 → 4"):
        assert words in found.text
    assert "Saves that failed (4)" in found.text
    assert "no room: 3.2 GiB are needed" in found.text


def test_it_says_which_steps_stand_and_why(tmp_path):
    found = page(standing_run(tmp_path / "run"))
    assert (marks(found, "removed"), marks(found, "bad")) == (4 + 1, 1 + 1)
    for words in ("stands, best", "stands, latest", "stands, pinned", "stands, damaged"):
        assert words in found.text
    assert marks(found, "stands") == 3 + 1
    assert "bytes instead of" in found.text, "what is wrong with the damaged one"


@pytest.mark.parametrize("metrics", [{}, None])
def test_metrics_are_drawn_where_there_are_any(tmp_path, metrics):
    found = page(short_run(tmp_path / "run", metrics))
    assert marks(found, "metric") == (0 if metrics == {} else 2)
    assert ("Metrics" in found.text) == (metrics is None)
    assert marks(found, "stall") == 3 + 1


def test_what_is_not_finite_is_a_gap_in_its_curve(tmp_path):
    run = MadeRun(tmp_path / "run")
    run.start()
    for value in (1.0, 2.0, "nan", 3.0, 4.0, "inf", 5.0):
        run.train(1, metrics={"loss": value, "never": "nan"})
    found = page(run.write())
    assert marks(found, "metric") == 2
    assert "never a finite value" in found.text


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
    assert marks(found, "stall") == 6 + 1
    assert marks(found, "lane") == 1, "one job worked in both"


def test_without_a_journal_the_steps_that_stand_are_shown(tmp_path):
    run = standing_run(tmp_path / "run")
    (run / "journal.jsonl").unlink()
    found = page(run)
    assert "There is no journal" in found.text
    assert marks(found, "stands") == 3 + 1
    assert marks(found, "lane") == 0


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
    run.train(4, metrics={EVIL: 1.0, "x" * 5000: 2.0, "$\\frac{1}{0}$": 3.0})
    run.note("failed", step=9, phase=EVIL, kind=EVIL, message=EVIL)
    run.note("removed", steps=["7", True, -1, 10**40, 7], n_steps=EVIL, by=EVIL)
    run.note("copied", step=3, by=EVIL, **{"from": EVIL})
    run.stop(EVIL)
    return run.write()


def test_names_and_messages_are_text_and_nothing_else(tmp_path):
    text = page_of(read_story(hostile_run(tmp_path / "<script>alert(3)<")), NOW)
    found = Page(text)
    assert {"script", "img"} & set(found.tags) == set()
    assert [name for name, _ in found.attributes if name.startswith("on")] == []
    assert "<script>alert(1)</script>" in found.text
    assert not re.search(r"[\x00-\x08\x1b\u202e]", text)


def test_what_was_changed_by_hand_is_told_as_far_as_it_has_the_form_of_an_entry(tmp_path):
    changes = read_story(hostile_run(tmp_path)).changes
    assert [(change.steps, change.n_steps, change.source == EVIL) for change in changes] == [
        ((7,), 1, False),
        ((3,), 1, True),
    ]


def test_a_picture_survives_hostile_names(tmp_path):
    pytest.importorskip("matplotlib")
    assert picture_of(read_story(hostile_run(tmp_path / "run"))).startswith(b"\x89PNG")


def test_it_asks_for_nothing_from_anywhere(tmp_path):
    text = page_of(read_story(long_run(tmp_path / "run")), NOW)
    found = Page(text)
    assert [value for name, value in found.attributes if name in {"src", "href", "srcset", "action"}] == []
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
    file.write_text(page_of(read_story(make(tmp_path / "run")), NOW), encoding="utf-8")
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
    image = pytest.importorskip("matplotlib.image")
    file, shot = tmp_path / "report.html", tmp_path / "shot.png"
    file.write_text(page_of(read_story(standing_run(tmp_path / "run")), NOW), encoding="utf-8")
    night = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    browsing.browse(file, f"--screenshot={shot}", "--window-size=1100,1400", *night)
    pixels = (image.imread(shot)[:, :, :3] * 255).round().astype(int)
    assert tuple(pixels[5, 5]) == paper
    assert (abs(pixels - np.array(green)).sum(axis=2) < 12).sum() > 2000, "bars of the steps that stand"
