"""The directory of one step in place of the run's: verbs that concern the run refuse it and change nothing in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.errors import OptionError

Cli = Callable[..., Any]
OF_A_RUN = [
    ["list"], ["prune", "--yes"], ["rm", "latest", "--yes"], ["rm", "10", "--yes"], ["pin", "latest"], ["pin", "10"],
    ["unpin", "10"], ["halt"], ["halt", "--cancel"], ["watch", "--once"], ["report", "--json"], ["advise"],
]  # fmt: skip
OF_A_STEP = [["info"], ["tensors"], ["verify"]]


def names(path: Path) -> list[str]:
    return sorted(os.path.join(where, name) for where, *below in os.walk(path) for name in (*below[0], *below[1]))


@pytest.mark.parametrize("verb", OF_A_RUN, ids=" ".join)
def test_a_verb_of_a_run_names_the_run(cli: Cli, saved: Path, verb: list[str]) -> None:
    step = saved / "step-0000000010"
    before = names(saved)
    result = cli(verb[0], step, *verb[1:])
    assert (result.code, names(saved)) == (4, before)
    assert f"is the directory of one step: give that of the run, {saved}" in result.err


@pytest.mark.parametrize("verb", [["pin", "latest"], ["halt"], ["prune", "--yes"]], ids=" ".join)
def test_a_step_without_its_manifest_and_one_with_another_name_are_steps_too(
    cli: Cli, saved: Path, verb: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (saved / "step-0000000010" / "manifest.json").unlink()
    shutil.copytree(saved / "step-0000000020", saved.parent / "kept")
    monkeypatch.chdir(saved / "step-0000000010")
    for step in (".", "../../kept"):
        result = cli(verb[0], step, *verb[1:])
        assert (result.code, "is the directory of one step" in result.err) == (4, True)


@pytest.mark.parametrize("verb", OF_A_STEP, ids=" ".join)
def test_a_verb_of_a_step_takes_it(cli: Cli, saved: Path, verb: list[str]) -> None:
    assert cli(verb[0], saved / "step-0000000010", *verb[1:]).code == 0


TO_A_RUN = [
    ["copy", "{other}", "{step}"], ["copy", "{other}", "{step}", "--dry-run"],
    ["reshard", "{other}", "--files", "1", "--drop-per-rank", "--out", "{step}"],
    ["reshard", "{other}", "--files", "1", "--drop-per-rank", "--out", "{step}", "--dry-run"],
    ["convert", "{file}", "{step}", "--step", "3", "--to", "hpcckpt"],
]  # fmt: skip


@pytest.mark.parametrize("verb", TO_A_RUN, ids=" ".join)
def test_nothing_is_written_into_the_directory_of_a_step(
    cli: Cli, save: Any, saved: Path, tmp_path: Path, verb: list[str]
) -> None:
    np.savez(tmp_path / "file.npz", w=np.ones(3))
    places = {"other": save(tmp_path / "other", (7,)), "step": saved / "step-0000000010", "file": tmp_path / "file.npz"}
    before = names(saved)
    result = cli(*(word.format(**places) for word in verb))
    assert (result.code, names(saved)) == (4, before)
    assert f"is the directory of one step: give that of the run, {saved}" in result.err


def test_a_checkpointer_refuses_the_directory_of_a_step_and_names_the_run(saved: Path) -> None:
    before = names(saved)
    with (
        pytest.raises(OptionError, match=f"is the directory of one step: give that of the run, {saved}"),
        hc.Checkpointer(saved / "step-0000000010") as ckpt,
    ):
        ckpt.save(1, {"w": np.ones(3)})
    assert names(saved) == before


def test_the_directory_of_a_step_means_this_step_whatever_is_in_it(cli: Cli, saved: Path) -> None:
    step = saved / "step-0000000010"
    shutil.copytree(saved / "step-0000000030", step / "step-0000000030")
    assert cli("info", step, "--json").json["step"] == 10
