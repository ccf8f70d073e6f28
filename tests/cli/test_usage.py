"""What takes space beside the steps: `list` and `report` show it, the log reports it, `prune` removes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.core import failpoints
from hpcckpt.format import layout
from tests.support.listing import listed

pytestmark = pytest.mark.one_case

Cli = Callable[..., Any]


@pytest.fixture
def used(tmp_path: Path, damage: Any) -> Path:
    """A run that went back from step 30 to 10 and saved 15, and that saved the damaged step 10 again."""
    run = tmp_path / "run"
    with hc.Checkpointer(run, max_to_keep=None) as ckpt:
        for step in (10, 20, 30):
            ckpt.save(step, {"w": np.full(1000, step)})
    with hc.Checkpointer(run, max_to_keep=None, on_newer="aside") as ckpt:
        ckpt.restore({"w": np.zeros(1000, int)}, 10)
        ckpt.save(15, {"w": np.full(1000, 15)})
    damage.cut(damage.first_file(run / layout.step_dirname(10)))
    with hc.Checkpointer(run, max_to_keep=None, on_newer="aside") as ckpt:
        ckpt.save(10, {"w": np.full(1000, 10)}, overwrite=True)
    return run


def kinds(cli: Cli, run: Path) -> dict[str, int]:
    return {each["kind"]: each["count"] for each in cli("list", run, "--json").json["other"]}


def test_list_shows_what_takes_space_with_count_size_age_and_what_removes_it(cli: Cli, used: Path) -> None:
    aside, bad = cli("list", used, "--json").json["other"]
    assert (aside["kind"], aside["count"], bad["kind"], bad["count"]) == ("aside", 3, "bad", 1)
    assert aside["nbytes"] > 3 * 8000
    assert abs(aside["oldest"] - next(used.glob(".aside-*")).stat().st_mtime) < 3600
    assert aside["removed_by"] == f"hpcckpt prune --aside {used}"
    text = cli("list", used).err
    assert "besides: 3 directories moved aside (the run went back, was extended, or began again), 37." in text
    assert f"removed by: hpcckpt prune --aside {used}" in text
    assert "besides: 1 directory damaged and replaced, kept as evidence, " in text


def test_where_no_step_is_left_list_says_what_takes_space(cli: Cli, used: Path) -> None:
    for name in listed(used):
        if name.startswith("step-"):
            os.rename(used / name, used / f".aside-{name}-0123456789ab")
    result = cli("list", used)
    assert result.code == 4
    assert "4 directories moved aside" in result.err


def test_report_shows_what_takes_space(cli: Cli, used: Path, tmp_path: Path) -> None:
    assert [each["kind"] for each in cli("report", used, "--json").json["other"]] == ["aside", "bad"]
    assert cli("report", used, "-o", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Other directories that take space" in page
    assert "hpcckpt prune --bad" in page


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ((), {"aside": 3, "bad": 1}),
        (("--aside",), {"bad": 1}),
        (("--bad",), {"aside": 3}),
        (("--aside", "--bad"), {}),
    ],
)
def test_prune_removes_the_kinds_that_are_named_and_no_others(
    options: tuple[str, ...], left: dict[str, int], cli: Cli, used: Path
) -> None:
    before = listed(used)
    dry = cli("prune", used, *options, "--dry-run", "--json").json
    assert listed(used) == before
    done = cli("prune", used, *options, "--yes", "--json")
    assert done.code == 0
    assert {each["path"] for each in dry["removed"]} == {each["path"] for each in done.json["removed"]}
    assert dry["nbytes"] == done.json["nbytes"]
    assert kinds(cli, used) == left
    assert [row["step"] for row in cli("list", used, "--json").json["checkpoints"]] == [10]


def test_prune_asks_with_what_and_how_much(cli: Cli, used: Path) -> None:
    result = cli("prune", used, "--aside", "--bad", answer="n\n")
    assert "Remove 3 moved aside and 1 damaged and replaced (" in result.err
    assert kinds(cli, used) == {"aside": 3, "bad": 1}


def test_beside_a_running_job_a_dry_run_shows_nothing_that_the_job_may_use(cli: Cli, busy: Path) -> None:
    for name in (".next-0123456789ab", ".retired-0123456789ab", ".aside-step-0000000040-0123456789ab"):
        (busy / name / "data").mkdir(parents=True)
        (busy / name / "data" / "file").write_bytes(b"x" * 100)
    removed = cli("prune", busy, "--aside", "--dry-run", "--json").json["removed"]
    assert [Path(each["path"]).name for each in removed] == [".aside-step-0000000040-0123456789ab"]
    assert cli("prune", busy, "--aside", "--yes").code == 8


def test_what_a_running_job_has_prepared_is_no_unfinished_save(cli: Cli, tmp_path: Path) -> None:
    state = {"w": np.ones(1000)}
    with hc.Checkpointer(tmp_path / "run", max_to_keep=1) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, state).result()
        assert list((tmp_path / "run").glob(".next-*"))
        shown = cli("list", tmp_path / "run")
        found = cli("list", tmp_path / "run", "--json").json
    assert [row["step"] for row in found["checkpoints"]] == [3]
    assert [each["kind"] for each in found["other"]] == ["prepared"]
    assert "saving" not in shown.out
    assert "NO" not in shown.out
    assert "a restart would use step 3" in shown.err


def test_a_step_that_is_written_now_is_neither_valid_nor_not(cli: Cli, tmp_path: Path) -> None:
    seen = []

    def look(phase: str, _rank: int) -> None:
        if phase == "4-sealed" and not seen:
            seen.append(cli("list", tmp_path / "run"))

    with hc.Checkpointer(tmp_path / "run", max_to_keep=None) as ckpt:
        ckpt.save(1, {"w": np.ones(1000)}).result()
        failpoints.install_hook(look)
        try:
            ckpt.save(2, {"w": np.ones(1000)}).result()
        finally:
            failpoints.install_hook(None)
    (shown,) = seen
    row = next(line for line in shown.out.splitlines() if line.endswith("saving"))
    assert "NO" not in row
    assert "1 valid, 1 being saved, " in shown.err


def test_the_log_reports_what_is_moved_aside_and_what_is_kept_as_evidence(
    tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    with hc.Checkpointer(run) as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"w": np.full(9, step)})
    assert caplog.text == ""
    damage.cut(damage.first_file(run / layout.step_dirname(1)))
    with hc.Checkpointer(run, on_newer="aside") as ckpt:
        ckpt.save(1, {"w": np.ones(9)}, overwrite=True)
    aside, bad = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert aside.startswith(f"hpcckpt: {run / layout.step_dirname(2)} is now .aside-step-0000000002-")
    assert "the run went back to an older step and saved step 1; 'hpcckpt prune --aside" in aside
    assert f"{run / layout.step_dirname(1)} is now .bad-" in bad
    assert "it is damaged (" in bad
    assert "bytes instead of" in bad
