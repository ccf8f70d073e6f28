"""One MPI library in a process, and the launcher's own; anything else is an error that names both."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.mpi.launch import PROGRAMS, mpirun, run_python

MAPS = """\
7f10-7f20 r-xp 00000000 fe:00 101 /usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4
7f20-7f30 r--p 00010000 fe:00 101 /usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4
7f30-7f40 r-xp 00000000 fe:00 102 /usr/lib/x86_64-linux-gnu/libmpi_cxx.so.40.30.1
7f40-7f50 rw-p 00000000 00:00 0
7f50-7f60 rw-p 00000000 00:00 0 [heap]
7f60-7f70 r-xp 00000000 fe:00 103 /a place/mpi4py/MPI.mpich.so
"""
OTHER = "7f70-7f80 r-xp 00000000 fe:00 104 /opt/a site's/mpich/lib/libmpich.so.12.1.8\n"

CHECK = """\
import sys
from mpi4py import MPI
from hpcckpt.collective.mpi import check_one_library
try:
    check_one_library(MPI.COMM_WORLD, sys.argv[1])
except Exception as error:
    print("error", type(error).__name__, error)
else:
    print("fine")
"""


def checked(maps: Path | str, **env: str) -> str:
    ended = run_python("-c", CHECK, str(maps), **env)
    assert ended.code == 0, ended.err
    return ended.out


def test_one_library_is_fine(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(MAPS, encoding="utf-8")
    assert checked(maps) == "fine\n"
    assert checked("/proc/self/maps") == "fine\n"
    assert checked(tmp_path / "absent") == "fine\n"


def test_two_libraries_are_an_error_that_names_both(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(MAPS + OTHER, encoding="utf-8")
    said = checked(maps)
    assert said.startswith("error MpiError two MPI libraries")
    assert "/usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4" in said
    assert "/opt/a site's/mpich/lib/libmpich.so.12.1.8" in said


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_a_launcher_of_another_mpi_is_an_error(tmp_path: Path, variable: str) -> None:
    program = f"import hpcckpt as hc; hc.Checkpointer({str(tmp_path)!r}, comm=None)"
    ended = run_python("-c", program, **{variable: "2"})
    assert ended.code != 0
    assert "MpiError" in ended.err
    assert "the launcher started 2 ranks" in ended.err
    assert "sees 1" in ended.err


def test_a_program_without_a_launcher_is_one_rank(tmp_path: Path) -> None:
    program = f"import hpcckpt as hc, sys; print(hc.Checkpointer({str(tmp_path)!r}).comm.size, 'mpi4py' in sys.modules)"
    assert run_python("-c", program).out == "1 False\n"


@pytest.mark.horovod
@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not installed")
def test_horovod_and_mpi4py_share_one_library(tmp_path: Path) -> None:
    ended = mpirun(2, str(PROGRAMS / "job_horovod.py"), str(tmp_path))
    assert ended.code == 0, ended.err
    found = ended.lines("horovod")
    assert len(found) == 2
    for rank, said in enumerate(sorted(found, key=lambda said: said["rank"])):
        assert said == {"rank": rank, "size": 2, "sum": 3.0, "restored": 3.0, "libraries": said["libraries"]}
        assert len(said["libraries"]) == 1
