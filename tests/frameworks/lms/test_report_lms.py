"""What `lms.report()` says: a table, JSON, a picture, the histogram's file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import histogram
from hpcckpt.lms.planner.distance_planner import plan_by_distance
from hpcckpt.lms.report import plots
from hpcckpt.lms.report.report import HEADER, Memory, Report, Traffic, write_histogram
from hpcckpt.lms.settings import Parameters
from tests.support.lms.graphs import hourglass

pytestmark = pytest.mark.one_case

CONTEXT = GraphContext(hourglass(6, (64, 64)))
PLAN = plan_by_distance(CONTEXT, Parameters(2, 0, 1))
REPORT = Report(
    mode="pass",
    target="__inference_train_function_7",
    plan=PLAN.summary(),
    n_ops=len(CONTEXT.graph.ops),
    n_edges=CONTEXT.graph.n_edges,
    n_levels=len(CONTEXT.levels),
    memory_budget=64 << 10,
    peak=48 << 10,
    n_attempts=1,
    memory=Memory((1, 5, 3), (1, 2, 1), ((0.0, 0), (0.1, 48 << 10))),
    histogram=histogram(CONTEXT.graph, CONTEXT.levels),
    traffic=(Traffic("lms/swapin_f00_0", 16384, 2_000_000),),
    stalls={"b00": 3_000_000},
    notes=("something to know",),
)


def test_the_table_says_which_path_ran_and_what_was_done() -> None:
    text = str(REPORT)
    for word in (
        "native pass",
        "__inference_train_function_7",
        "12 ops",
        "distance (",
        "swap-outs",
        "something to know",
    ):
        assert word in text, word


def test_the_table_says_what_was_verified() -> None:
    assert re.search(r"measured peak +│ 48.00 KiB in the step that was measured", str(REPORT))
    assert re.search(r"verified +│ the budget was kept", str(REPORT))
    assert "NOT kept" in str(Report(memory_budget=1, peak=2))
    assert Report(memory_budget=1).is_verified is None


def test_the_table_has_the_swaps_and_who_waited_for_them() -> None:
    text = str(REPORT)
    assert re.search(r"lms/swapin_f00_0 .* 16.00 KiB .* 2\.0 ms", text)
    assert "1 of 1 swap-ins, bytes and time in total over all steps so far" in text
    assert "Ops that waited for swap-ins: 3.0 ms in total over all steps so far" in text
    assert re.search(r"b00 .* 3\.0 ms", text)


def test_the_report_fits_a_terminal_of_80_columns_and_keeps_brackets() -> None:
    note = "give LMS to model.fit(callbacks=[lms]) :warning: [bold]now[/bold] " + 40 * "word "
    long = [Traffic(f"lms/swapin_{'scope/' * 20}{number}", 1 << 30, 10**12) for number in range(3)]
    waited = {f"{'scope/' * 20}{number}": 10**15 for number in range(3)}
    text = str(replace(REPORT, notes=(note,), target="f" * 120, traffic=tuple(long), stalls=waited))
    assert max(map(len, text.splitlines())) <= 80
    assert "callbacks=[lms]" in text
    assert ":warning: [bold]now[/bold]" in re.sub(r"\s*│\n│\s*│\s*", " ", text)


def test_one_and_many_are_told_apart_in_the_report() -> None:
    plan = {**PLAN.summary(), "n_swap_outs": 1, "n_swap_ins": 2}
    assert re.search(r"1 swap-out \(.*2 swap-ins \(", re.sub(r"\s*│\n│\s*│\s*", " ", str(replace(REPORT, plan=plan))))


def test_the_table_is_text_in_a_jupyter_notebook_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "Large Model Support" in str(Report())


def test_json_holds_all_of_it() -> None:
    told = json.loads(REPORT.to_json())
    assert (told["mode"], told["is_verified"], told["peak"]) == ("pass", True, 48 << 10)
    assert told["plan"]["digest"] == PLAN.digest
    assert told["peaks"] == {"simulated_without": 5, "simulated_with": 2, "measured": 48 << 10}
    assert sum(told["histogram"].values()) == CONTEXT.graph.n_edges


def test_nothing_planned_is_said_so() -> None:
    assert "it did not act" in str(Report())
    assert json.loads(Report().to_json())["mode"] == "none"


def test_the_histogram_file_is_that_of_the_original_and_sums_to_the_edges(tmp_path: Path) -> None:
    path = write_histogram(REPORT.histogram, tmp_path / ".lms")
    assert path.parent.name == ".lms"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert lines[0] == HEADER == "#distance\tfrequency\n"
    pairs = [tuple(map(int, line.split("\t"))) for line in lines[1:]]
    assert pairs == sorted(pairs)
    assert sum(count for _, count in pairs) == CONTEXT.graph.n_edges


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="Matplotlib is not installed")
def test_the_picture_is_drawn_with_and_without_a_run_to_compare_with(tmp_path: Path) -> None:
    written = REPORT.save(tmp_path)
    assert [path.name for path in written] == ["report.json", "report.png"]
    assert written[1].read_bytes().startswith(b"\x89PNG")
    assert plots.draw(REPORT, tmp_path / "two.png", without=REPORT).stat().st_size > 10_000
    assert plots.draw(Report(), tmp_path / "empty.png").exists()


def test_without_matplotlib_the_rest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "is_possible", lambda: False)
    assert [path.name for path in REPORT.save(tmp_path)] == ["report.json"]
