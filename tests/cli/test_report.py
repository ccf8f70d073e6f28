"""``hpcckpt report``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.report.made_runs import long_run, short_run

Cli = Callable[..., Any]


def test_a_page_is_written_where_it_is_asked_for(cli: Cli, saved: Path, tmp_path: Path) -> None:
    result = cli("report", saved, "-o", tmp_path / "out.html")
    assert (result.code, result.out) == (0, "")
    assert result.err == f"wrote {tmp_path / 'out.html'}\n"
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("kept, latest") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "run"]


def test_by_default_it_is_report_html(cli: Cli, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("report", saved, "-q").err == ""
    assert (tmp_path / "report.html").is_file()
    assert "report.html" not in {path.name for path in saved.iterdir()}, "nothing is written into the run"


def test_a_dash_is_the_standard_output(cli: Cli, saved: Path) -> None:
    assert cli("report", saved, "-o", "-").out.rstrip().endswith("</html>")


def test_a_picture_is_drawn_too(cli: Cli, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    run = long_run(tmp_path / "run", 60)
    assert cli("report", run, "-o", tmp_path / "a.html", "--png", tmp_path / "a.png").code == 0
    assert image.imread(tmp_path / "a.png").shape[1] > 1000


def test_json_has_the_figures_and_all_events(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = cli("report", long_run(tmp_path / "run", 100), "--json").json
    assert found["written"] == []
    assert [job["end"] for job in found["jobs"]] == ["died", "preempted", "failed", "ended"]
    assert (found["figures"]["n_saves"], found["figures"]["n_failed"], found["figures"]["n_deaths"]) == (96, 4, 2)
    assert found["figures"]["interval_s"] == pytest.approx(300)
    assert len(found["saves"]) == 96
    assert json.dumps(found)


def test_best_is_what_the_metric_says(cli: Cli, saved: Path) -> None:
    def best(*words: str) -> list[int]:
        saves = cli("report", saved, "--json", *words).json["saves"]
        return [save["step"] for save in saves if "best" in save["tags"]]

    assert best() == [20]
    assert best("--metric", "max:acc") == [30]


def test_a_new_report_takes_the_place_of_an_older_one(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "r.html").write_text("old", encoding="utf-8")
    cli("report", short_run(tmp_path / "run"), "-o", tmp_path / "r.html")
    assert "Time line" in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [["--png", "a.jpg"], ["--json", "-o", "-"], ["-o", "no/such/place.html"]])
def test_what_makes_no_sense_writes_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short_run(tmp_path / "run")
    assert cli("report", "run", *words).code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_no_run_is_said_so(cli: Cli, tmp_path: Path) -> None:
    assert cli("report", tmp_path / "none").code == 4


def test_a_page_and_a_picture_of_one_name_are_a_usage_error(
    cli: Cli, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli("report", saved, "-o", "y.png", "--png", tmp_path / "y.png")
    assert (result.code, "--png and -o" in result.err) == (2, True)
    assert not (tmp_path / "y.png").exists()


def test_a_pipe_is_refused_before_anything_is_written(
    cli: Cli, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkfifo("pipe.png")
    for words in (["-o", "pipe", "--png", "new.png"], ["-o", "new.html", "--png", "pipe.png"]):
        result = cli("report", saved, *words)
        assert (result.code, " is a pipe; give the name of a file" in result.err) == (2, True), result.err
    assert (Path("pipe").is_fifo(), Path("pipe.png").is_fifo()) == (True, True)
    assert sorted(os.listdir()) == ["pipe", "pipe.png", "run"]


def test_a_link_is_kept_and_its_target_is_replaced(cli: Cli, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to("page.html")
    assert cli("report", saved, "-o", tmp_path / "link.html").code == 0
    assert (tmp_path / "link.html").is_symlink()
    assert "Time line" in (tmp_path / "page.html").read_text(encoding="utf-8")
