"""Killed by SIGKILL at any place of a run of two cycles, and started again, it ends with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.train import pieces
from tests.support.train.launch import KINDS, Straight, completed, needs_mpirun, train

PLACES = {
    "in cycle 1": "1:7",
    "behind the last batch of cycle 1": "1:end",
    "between the cycles": "between",
    "in cycle 2": "2:5",
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_one_rank_that_is_killed_at_each_of_these_places_ends_with_the_same_bits(
    straight: Straight, tmp_path: Path
) -> None:
    run, config = tmp_path / "run", pieces.two_cycles(distributed="none")
    for place in PLACES.values():
        assert train(run, config, kill=place).code == -9, place
    completed(train(run, config))
    assert pieces.ends_with(run) == straight("none", 1)


VICTIMS = {"horovod": ("1:7@1", "between"), "mpi4py": ("1:end@1", "2:5@1")}
"""Rank 1, or both: each place once, for the place does not depend on who averages the gradients."""


@needs_mpirun
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_that_are_killed_at_two_of_these_places_end_with_the_same_bits(
    kind: str, straight: Straight, tmp_path: Path
) -> None:
    run, config = tmp_path / "run", pieces.two_cycles(distributed=kind)
    for victim in VICTIMS[kind]:
        assert train(run, config, 2, kill=victim).code != 0
    completed(train(run, config, 2))
    resumed = [entry["cycle"] for entry in pieces.log(run, "resumed")]
    expected = {"horovod": [[1]], "mpi4py": [[1, 2], [1]]}  # the first save of cycle 2 may be under way
    assert resumed in expected[kind]
    assert pieces.ends_with(run) == straight(kind, 2)


def test_a_custom_loop_that_is_killed_in_each_cycle_ends_with_the_same_bits(straight: Straight, tmp_path: Path) -> None:
    run, config = tmp_path / "run", pieces.two_cycles("TapeLoop", distributed="none")
    for place in ("1:7", "2:5"):
        assert train(run, config, kill=place).code == -9
    completed(train(run, config))
    assert pieces.ends_with(run) == straight("none", 1, "TapeLoop")


def test_the_level_of_these_runs_is_exact(run: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(pieces.two_cycles(distributed="none"), verbose=1)
    assert capfd.readouterr().err.count("level=exact") == 2
