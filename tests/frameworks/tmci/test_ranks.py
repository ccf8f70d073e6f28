"""Under mpirun each rank calls its own plugin, and is told by name what became of that."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcckpt import native
from hpcckpt.native import plugins
from tests.support.mpi.launch import find_mpirun, mpirun
from tests.support.paths import TESTS

HERE = Path(__file__).parent
FAULTY = TESTS / "unit" / "native" / "plugins" / "faulty.cpp"
EXPECTED = {
    "fails": ["BackendError", "[rank {}] faulty.Save failed (code 7): the disk is tired"],
    "throws": ["BackendError", "[rank {}] faulty.Save failed (code -1): the network is away"],
    "throws while loading": ["BackendError", "[rank {}] faulty.Load failed (code -1): the network is away"],
    "cannot be made": ["BackendError", "[rank {}] faulty.Create failed (code -1): no licence for this host"],
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Run the job on two ranks; return what each was told."""
    compiler = shutil.which("c++") or pytest.skip("needs a compiler")
    if find_mpirun() is None or "posix" not in plugins.available():
        pytest.skip("needs mpirun and the samples")
    folder = tmp_path_factory.mktemp("ranks")
    flags = ["-std=c++17", "-shared", "-fPIC", f"-I{Path(native.__file__).parent / 'include'}"]
    subprocess.run([compiler, *flags, str(FAULTY), "-o", str(folder / "libfaulty.so")], check=True)
    job = (str(HERE / "job_failures.py"), str(folder / "libfaulty.so"), str(folder))
    ended = mpirun(2, "-W", "ignore", *job, timeout_s=180)
    assert ended.code == 0, ended.err
    return [json.loads((folder / f"rank-{rank}.json").read_bytes()) for rank in range(2)]


@pytest.mark.usefixtures("ops")
def test_every_rank_is_told_what_its_plugin_failed_of(told: list[dict[str, Any]]) -> None:
    for rank, cases in enumerate(told):
        assert {name: cases[name] for name in EXPECTED} == {
            name: [kind, text.format(rank)] for name, (kind, text) in EXPECTED.items()
        }
        kind, text = cases["returns short data"]
        assert kind == "CorruptError"
        assert f"[rank {rank}] posix.Load failed (code -4): " in text
        assert f"rank-{rank:05d}.posix is damaged" in text
        kind, text = cases["is missing"]
        assert kind == "BackendNotFoundError"
        assert "'nobody' not found; known: " in text
        assert "backends in Python: " in text


@pytest.mark.usefixtures("ops")
def test_a_rank_whose_plugin_did_its_work_goes_on(told: list[dict[str, Any]]) -> None:
    assert [cases["fails on rank 1"] is None for cases in told] == [True, False]
