"""Under real MPI: saved on N ranks and restored on M, and every byte written once."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpcckpt as hc
from tests.support.mpi.launch import PROGRAMS, mpirun


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], list[str]]:
    """What differed after each pair of rank counts."""
    ended = mpirun(5, str(PROGRAMS / "job_pairs.py"), str(tmp_path_factory.mktemp("pairs")))
    assert ended.code == 0, ended.err
    return {(saved_on, n_ranks): found for saved_on, n_ranks, found in ended.lines("pair")}


@pytest.mark.parametrize("n_ranks", range(1, 6))
@pytest.mark.parametrize("saved_on", range(1, 6))
def test_saved_on_n_ranks_restored_on_m_is_bit_exact(
    pairs: dict[tuple[int, int], list[str]], saved_on: int, n_ranks: int
) -> None:
    assert pairs[saved_on, n_ranks] == []


@pytest.mark.parametrize("n_ranks", [1, 3, 8])
def test_replicated_state_is_written_once_and_evenly(tmp_path: Path, n_ranks: int) -> None:
    nbytes = 64 << 20
    ended = mpirun(n_ranks, str(PROGRAMS / "job_bytes.py"), str(tmp_path), str(nbytes))
    assert ended.code == 0, ended.err
    (counted,) = ended.lines("bytes")
    assert abs(counted["unique"] - nbytes) < 1024
    assert sum(counted["ranks"]) <= 1.02 * counted["unique"]
    assert max(counted["ranks"]) <= 1.05 * sum(counted["ranks"]) / n_ranks
    on_disk = [file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()]
    assert sum(on_disk) <= 1.02 * counted["unique"]
    assert sum(array.nbytes for array in hc.load(tmp_path).values()) == counted["unique"]
