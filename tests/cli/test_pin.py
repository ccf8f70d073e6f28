"""``hpcckpt pin`` and ``hpcckpt unpin``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.rundir.pins import pins
from tests.cli.conftest import save_run
from tests.support.small_disk import disk_of_size, fill

pytestmark = pytest.mark.one_case

Cli = Callable[..., Any]


def test_pin_and_unpin(cli: Cli, saved: Path) -> None:
    result = cli("pin", saved, 10, "best", "--json")
    assert (result.code, result.json["pinned"], result.json["pins"]) == (0, [10, 20], [10, 20])
    result = cli("unpin", saved, 10, "--json")
    assert (result.code, result.json["unpinned"], result.json["pins"]) == (0, [10], [20])


def test_a_step_that_is_named_twice_is_pinned_once(cli: Cli, saved: Path) -> None:
    assert cli("pin", saved, "latest", 30, "--json").json["pinned"] == [30]


def test_messages(cli: Cli, saved: Path) -> None:
    assert cli("pin", saved, "latest").err == "pinned 30; pinned now: 30\n"
    assert cli("unpin", saved, 30).err == "unpinned 30; pinned now: none\n"
    assert cli("pin", saved, "latest", "-q").err == ""


def test_an_absent_step_exits_with_4_and_pins_nothing(cli: Cli, saved: Path) -> None:
    assert cli("pin", saved, 10, 99).code == 4
    assert cli("list", saved, "--json").json["checkpoints"][0]["tags"] == []


def test_unpinning_what_is_not_pinned_exits_with_4(cli: Cli, saved: Path) -> None:
    cli("pin", saved, 10)
    result = cli("unpin", saved, 10, 20, "--json")
    assert (result.code, result.json["unpinned"]) == (4, [10])
    assert "not pinned: 20" in result.err
    assert cli("unpin", saved, "best").code == 2


def test_a_pin_outlives_retention(cli: Cli, saved: Path, save: Callable[..., Path]) -> None:
    cli("pin", saved, 10)
    cli("prune", saved, "--keep-last", 1, "--yes")
    assert [step["step"] for step in cli("list", saved, "--json").json["checkpoints"]] == [10, 30]


def test_a_pin_that_cannot_be_written_does_not_hold(cli: Cli, tmp_path: Path) -> None:
    with disk_of_size(tmp_path / "disk") as disk:
        run = save_run(disk / "run")
        cli("pin", run, 20)  # the directory of pins is there
        fill(disk / "filler")
        result = cli("pin", run, 10)
        assert result.code == 7
        assert "No space left" in result.err
        assert pins(run) == {20}


def test_unpin_in_a_run_of_cycles_names_the_places_below(cli: Cli, save: Any, tmp_path: Path) -> None:
    run = save(tmp_path / "cycles" / "cycle-1", (10,)).parent
    result = cli("unpin", run, 10)
    assert (result.code, f"its checkpoints are in {run / 'cycle-1'}" in result.err) == (4, True)
