"""``hpcckpt copy --overwrite`` where the same save exists already: it is verified, and copied again if it is rotten."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.format import layout
from hpcckpt.rundir import discovery
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tiers.copy import Rules, copy_step
from hpcckpt.tools.inspect import check_step

Cli = Callable[..., Any]
STEP = layout.step_dirname(1)
FILES = ("rank-00000.safetensors", "rank-00001.safetensors")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    def body(comm: Any) -> None:
        with hc.Checkpointer(tmp_path / "run", comm=comm) as ckpt:
            ckpt.save(1, {"w": np.arange(60_000.0)}).result()

    run_ranks(2, body)
    return tmp_path / "run"


def rot(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position, os.SEEK_END if position < 0 else os.SEEK_SET)
        file.write(b"rot")


def identities(step: Path) -> list[int]:
    return [(step / "data" / name).stat().st_ino for name in FILES]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("position", [-10, 100], ids=["data", "header"])
def test_a_rotten_copy_is_kept_aside_and_copied_again(
    cli: Cli, run: Path, tmp_path: Path, file: str, position: int
) -> None:
    out = tmp_path / "out"
    assert cli("copy", run, out).code == 0
    rot(out / STEP / "data" / file, position)
    assert cli("copy", run, out).code == 0, "it is there, whatever its bytes are"
    assert cli("verify", out).code == 3
    done = cli("copy", run, out, "--overwrite")
    assert (done.code, done.out.startswith("copied step 1")) == (0, True)
    assert cli("verify", out).code == 0
    (evidence,) = out.glob(".bad-*")
    assert not check_step(evidence).is_whole
    assert sorted(os.listdir(out)) == sorted([evidence.name, STEP])


def test_a_copy_that_is_as_it_was_saved_is_verified_and_left_alone(cli: Cli, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    cli("copy", run, out)
    before = identities(out / STEP)
    done = cli("copy", run, out, "--overwrite")
    assert (done.code, done.out) == (0, "")
    assert "already, verified" in done.err
    assert identities(out / STEP) == before
    assert cli("copy", run, out, "--overwrite", "--json").json["steps"][0]["state"] == "there"


def test_a_rotten_source_does_not_take_the_place_of_a_rotten_copy(cli: Cli, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    cli("copy", run, out)
    for place in (run, out):
        rot(place / STEP / "data" / FILES[0], -10)
    assert cli("copy", run, out, "--overwrite").code == 3
    assert os.listdir(out) == [STEP]


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_what_one_rank_finds_rotten_all_ranks_copy_again(run: Path, tmp_path: Path, n_ranks: int) -> None:
    out = tmp_path / "out"

    def copy(comm: Any) -> tuple[bool, int]:
        done = copy_step(comm, run / STEP, out, Rules(is_replacing=True))
        return done.is_new, done.written_nbytes

    assert run_ranks(n_ranks, copy)[0][0]
    assert run_ranks(n_ranks, copy) == [(False, 0)] * n_ranks
    rot(out / STEP / "data" / FILES[1], -10)
    results = run_ranks(n_ranks, copy)
    assert results == [(True, sum((run / STEP / "data" / name).stat().st_size for name in FILES))] * n_ranks
    assert check_step(out / STEP).is_whole
    assert discovery.step_numbers(out) == [1]


def test_where_other_saves_stand_in_the_way_of_all_nothing_is_called_corrupt(
    cli: Cli, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with hc.Checkpointer(out) as ckpt:
        ckpt.save(1, {"w": np.ones(3)})
    done = cli("copy", run, out, "all", "--json")
    assert (done.code, done.json["steps"][0]["kind"]) == (1, "step-exists")
    assert cli("copy", run, out, "all", "--overwrite").code == 0
