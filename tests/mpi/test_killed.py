"""Whatever is killed, and wherever: a step is whole or absent, and the next job goes on."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import hpcckpt as hc
from hpcckpt.collective.communicator import Communicator
from hpcckpt.core.failpoints import PHASES
from hpcckpt.format import layout
from hpcckpt.rundir.discovery import scan
from hpcckpt.rundir.retention import leftovers
from hpcckpt.testing.ranks import run_ranks
from tests.support.mpi.kills import ROOT_ONLY, check_goes_on, check_holds, kill_at
from tests.support.mpi.states import state_of

SAVE_PHASES = [p for p in PHASES if p not in {"8-retired", "9-restore"}]
BETWEEN = PHASES[PHASES.index("5-published") : PHASES.index("7-outcome")]
"""Without a staging directory: the step has its name, and the next one is not prepared yet."""
PUBLISHED = PHASES[PHASES.index("5-published") :]


Way = tuple[int, tuple[int, ...], dict[str, Any]]
FIRST: Way = (2, (0,), {})
WAYS: dict[str, Way] = {
    "1": (1, (0,), {}),
    "2-all-at-once": (2, (0, 1), {"async_save": False}),
    "3-last": (3, (2,), {}),
}
"""Rank counts, victims and options: each choice of each is here; the campaign of kills draws from all of them."""


def cases() -> list[Any]:
    """Return every phase on two ranks of which root is killed, and in one of the other ways by turns."""
    first = [pytest.param(FIRST[0], phase, *FIRST[1:], id=f"2-first-{phase}") for phase in SAVE_PHASES]
    turns = zip(SAVE_PHASES, itertools.cycle(WAYS.items()), strict=False)
    return first + [
        pytest.param(n_ranks, phase, victims, options, id=f"{name}-{phase}")
        for phase, (name, (n_ranks, victims, options)) in turns
    ]


@pytest.mark.parametrize(("n_ranks", "phase", "victims", "options"), cases())
def test_killed_job_leaves_a_whole_newest_step(
    tmp_path: Path, n_ranks: int, phase: str, victims: tuple[int, ...], options: dict[str, Any]
) -> None:
    kill_at(tmp_path, n_ranks, phase, victims, options=options)
    is_root_hit = 0 in victims
    if not is_root_hit and phase in ROOT_ONLY - set(PUBLISHED):
        expected = {1: 1, 2: 2}  # root may still publish before the launcher ends it
    else:
        expected = {2: 2} if phase in PUBLISHED else {1: 1}
        assert hc.latest_checkpoint(tmp_path) == tmp_path / layout.step_dirname(*expected)
        if is_root_hit:  # else it may have gone on until the launcher ended it
            assert bool(leftovers(tmp_path)) == (phase not in {*BETWEEN, "8-retention"})
    check_goes_on(tmp_path, 1 + n_ranks % 3, expected)


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_a_job_killed_in_its_first_save_leaves_nothing(tmp_path: Path, n_ranks: int) -> None:
    kill_at(tmp_path, n_ranks, "4-durable", (0,), saves=[[1, 1, False]])
    assert hc.latest_checkpoint(tmp_path) is None
    assert leftovers(tmp_path)

    def body(comm: Communicator) -> int:
        with hc.Checkpointer(tmp_path, comm=comm) as ckpt:
            return ckpt.save(1, state_of(comm, 5)).result().step

    assert run_ranks(2, body) == [1, 1]
    check_holds(tmp_path, 3, 1, 5)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("n_ranks", [2])
@pytest.mark.parametrize(
    "phase", ["2-write", "2-synced", *[p for p in SAVE_PHASES if "4-manifest" <= p != "7-outcome"]]
)
def test_killed_overwrite_leaves_the_old_or_the_new_step(tmp_path: Path, n_ranks: int, phase: str) -> None:
    kill_at(tmp_path, n_ranks, phase, range(n_ranks), saves=[[1, 1, False], [2, 2, False], [2, 3, True]])
    check_goes_on(tmp_path, 1 + n_ranks % 3, {2: 3 if phase in PUBLISHED else 2})


@pytest.mark.parametrize("n_ranks", [3])
@pytest.mark.parametrize(("phase", "occurrence"), [("8-retention", 1), ("8-retired", 1), ("8-retired", 2)])
def test_killed_retention_loses_nothing_that_was_to_stay(
    tmp_path: Path, n_ranks: int, phase: str, occurrence: int
) -> None:
    saves = [[step, step, False] for step in range(1, 6)]
    fault = {"phase": phase, "occurrence": occurrence, "victims": list(range(n_ranks))}
    keep = {"options_before": {"max_to_keep": None}, "options": {"max_to_keep": 2}}
    kill_at(tmp_path, n_ranks, phase, range(n_ranks), saves=saves, fault=fault, **keep)
    n_retired = occurrence if phase == "8-retired" else 0
    assert [info.step for info in scan(tmp_path) if info.is_restorable] == list(range(1 + n_retired, 6))
    check_goes_on(tmp_path, 1 + n_ranks % 3, {5: 5})


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_killed_restore_changes_nothing(tmp_path: Path, n_ranks: int) -> None:
    kill_at(tmp_path, n_ranks, "9-restore", (n_ranks - 1,), restore=True)
    check_goes_on(tmp_path, 1 + n_ranks % 3, {2: 2})
