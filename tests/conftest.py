"""What all tests share: ranks as threads or as MPI processes, fault injection, and ways to damage files.

Under plain pytest a test that takes ``ranks`` runs with 2 threads, or with the numbers of its mark ``counts``; under
``-m "not slow"``, as `make test` says it, with 2.  Under ``mpirun -n N pytest --with-mpi`` it runs once, on N
processes, and only such tests run.  A parametrized test is one case (see `tests.support.tables`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from hpcckpt import native
from hpcckpt.core import failpoints
from hpcckpt.testing.groups import MpiRanks, ThreadRanks, is_with_mpi, make_ranks
from tests import levels
from tests.support import caller, tables
from tests.support.paths import TESTS
from tests.support.tier_fixtures import holding, nodes, places, trap  # noqa: F401 - fixtures

LONG_FIRST = (
    "schedulers/slurm", "schedulers/jobs", "frameworks/train/functional", "frameworks/train/run", "frameworks/horovod",
    "frameworks/lms", "frameworks/keras", "campaign", "mpi",
)  # fmt: skip
"""Directories whose tests take long, or wait: at the end of a run in parallel nothing long is to be left."""

MARKERS = (
    "counts(*n): how many threads as ranks, where the number matters",
    "one_case: the tests of this file are parts of one promise, rows of one case",
    "threads: acts on what all ranks share, or counts what they do: never on processes",
    "under_mpi: `make test-all` runs it on processes; set by conftest.py",
)

settings.register_profile("default", max_examples=60, deadline=None, derandomize=True, database=None)
settings.register_profile("quick", parent=settings.get_profile("default"), max_examples=15)
settings.register_profile("nightly", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# -- ranks ---------------------------------------------------------------------------------------


def _mpi_size(config: pytest.Config) -> int:
    if not is_with_mpi(config):
        return 1
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.Get_size())


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare our markers, and forget the caller's environment; not in a process that only deals out the tests."""
    if is_with_mpi(config) and config.option.basetemp is None:
        _take_own_directory(config)
    if getattr(config.option, "dist", "no") == "no":
        caller.forget(is_under_mpi=is_with_mpi(config))
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    if not config.pluginmanager.hasplugin("pytest_mpi"):
        config.addinivalue_line("markers", "mpi(min_size): runs under mpirun only (pytest-mpi)")


def _take_own_directory(config: pytest.Config) -> None:
    """Keep each rank's temporary files apart: pytest's cleanup fails at times where processes do it at once."""
    from mpi4py import MPI

    config.option.basetemp = tempfile.mkdtemp(prefix=f"hpcckpt-rank-{MPI.COMM_WORLD.Get_rank()}-")

    def remove() -> None:
        MPI.COMM_WORLD.Barrier()  # all ranks work in the directory of rank 0
        shutil.rmtree(config.option.basetemp, ignore_errors=True)

    config.add_cleanup(remove)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that takes ``ranks`` its rank counts."""
    if "ranks" in metafunc.fixturenames:
        asked = metafunc.definition.get_closest_marker("counts")
        counts: list[Any] = _marked(asked.args if asked else (levels.QUICK_COUNT,))
        if is_with_mpi(metafunc.config):
            counts = ["mpi"]
        metafunc.parametrize("ranks", counts, indirect=True, ids=lambda n: f"n={n}")


def _marked(counts: tuple[int, ...]) -> list[Any]:
    """Return rank counts, slow those that `make test` leaves out."""
    quick = levels.QUICK_COUNT if levels.QUICK_COUNT in counts else min(counts)
    return [n if n == quick else pytest.param(n, marks=pytest.mark.slow) for n in counts]


# -- what is slow --------------------------------------------------------------------------------


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what `make test` leaves out: importing is most of the work of a collection."""
    if config.option.markexpr != levels.QUICK or not collection_path.is_relative_to(TESTS):
        return None
    return None if levels.has_quick(collection_path.relative_to(TESTS).as_posix()) else True


_COLLECTED = pytest.StashKey[set[str]]()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what the tables call slow and nightly; what is nightly is slow."""
    if item.path.is_relative_to(TESTS):
        path, test = item.path.relative_to(TESTS).as_posix(), item.nodeid.partition("::")[2]
        name = f"{path}::{test}"
        item.config.stash.setdefault(_COLLECTED, set()).add(name)
        if levels.is_nightly(name):
            item.add_marker(pytest.mark.nightly)
        if levels.is_slow(name) or item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)
        if _is_for_processes(item, path):
            item.add_marker(pytest.mark.under_mpi)


def _is_for_processes(item: pytest.Item, path: str) -> bool:
    """Return whether `make test-all` runs a test on three processes, which prove what two or three threads do."""
    if not path.startswith(levels.UNDER_MPI) or _is_for_threads(item):
        return False
    taken = set(getattr(item, "fixturenames", ()))
    if "suite_ranks" in taken:
        return getattr(item.getparent(pytest.Class).cls, "counts", ()) == (levels.MPI_COUNT,)
    return "ranks" in taken and item.get_closest_marker("counts") is None


def _is_for_threads(item: pytest.Item) -> bool:
    """Return whether a test needs its ranks in one process."""
    return item.get_closest_marker("threads") is not None or "trap" in getattr(item, "fixturenames", ())


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail if the tables name a row that does not exist in a file that was collected: it would run nowhere."""
    if not session.config.option.markexpr or any("::" in each for each in session.config.args):
        return
    if unknown := levels.unknown_rows(session.config.stash.get(_COLLECTED, set())):
        raise pytest.UsageError(f"tests/levels.py names rows that do not exist: {', '.join(unknown)}")


# -- what runs, and when -------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under MPI run what is about ranks, and nothing else; without it leave out what needs it. Long ones first."""

    def is_kept(item: pytest.Item) -> bool:
        if is_with_mpi(config):
            return (
                not _is_for_threads(item)
                and bool({"ranks", "group", "suite_ranks"} & set(getattr(item, "fixturenames", ())))
            ) or any(item.iter_markers("mpi"))
        return not any(item.iter_markers("mpi"))

    config.hook.pytest_deselected(items=[item for item in items if not is_kept(item)])
    items[:] = sorted((item for item in items if is_kept(item)), key=_turn)


def _turn(item: pytest.Item) -> int:
    """Return when the tests of a directory have their turn; within it nothing changes places."""
    directory = item.path.parent.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
    return LONG_FIRST.index(directory) if directory in LONG_FIRST else len(LONG_FIRST)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Look for no garbage while tests are collected: there is none, and it takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _collects_its_own_garbage() -> None:
    """Let ``gc.collect()`` look at what this file's tests make, not at TensorFlow and models: 0.35 s each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _starts_programs_outside_mpi(request: pytest.FixtureRequest) -> None:
    """Start programs outside MPI, also after an earlier test has loaded MPI in this process."""
    if not is_with_mpi(request.config):
        caller.forget_launch_by_libraries()


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> ThreadRanks | MpiRanks:
    """Ranks to run a body on: ``ranks(body)``, ``ranks.sub(n, body)``, ``ranks.size``."""
    return make_ranks(request.param)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Callable[[int, Callable[[Any], Any]], list[Any]]:
    """For tests that choose rank counts themselves: ``group(n, body)`` runs a body on `n` ranks."""
    return (MpiRanks() if is_with_mpi(request.config) else ThreadRanks(1)).sub


@pytest.fixture
def run_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run directory, not made yet, that all ranks share."""
    if not is_with_mpi(request.config):
        return tmp_path / "run"
    shared: Path = request.getfixturevalue("mpi_tmp_path")
    return shared / "run"


# -- rows of a table are subtests of one test ------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_collection_modifyitems")
def pytest_put_rows_together(items: list[pytest.Item]) -> Iterator[None]:
    """Put rows together when every conftest.py and plugin has marked, selected and sorted them."""
    yield
    items[:] = tables.gather(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run the rows of a table, one after another."""
    if not isinstance(item, tables.Table):
        return None
    item.run_protocol(nextitem)
    return True


# A rank that fails must not leave the others waiting for it: print why, and end the job.


def _fail_skipped(item: pytest.Item, report: pytest.TestReport) -> None:
    """Let a test fail that `make test-all` would run nowhere."""
    if _mpi_size(item.config) == levels.MPI_COUNT and not isinstance(report, pytest.SubtestReport):
        report.outcome = "failed"
        report.longrepr = f"skipped on {levels.MPI_COUNT} processes, and run nowhere else: give it the mark counts"


def _abort_job(config: pytest.Config, text: str) -> None:
    if _mpi_size(config) < 2:
        return
    from mpi4py import MPI

    sys.__stderr__.write(f"\n[rank {MPI.COMM_WORLD.Get_rank()}] {text}\n")
    sys.__stderr__.flush()
    MPI.COMM_WORLD.Abort(1)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Abort the MPI job on the first failure of any rank."""
    report = yield
    table = item.stash.get(tables.Table.key, None)
    if table is not None:
        report = table.taken(item, report)
    if is_with_mpi(item.config) and tables.is_skipped(report) and "under_mpi" in item.keywords:
        _fail_skipped(item, report)
    if report.failed:
        _abort_job(item.config, f"{item.nodeid} failed in {call.when}:\n{report.longreprtext}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Abort the MPI job if a test file cannot be imported."""
    report = yield
    if report.failed:
        _abort_job(collector.config, f"{collector.nodeid} cannot be collected:\n{report.longreprtext}")
    return report


# -- faults --------------------------------------------------------------------------------------


class Faults:
    """Things that happen while a save or a restore is under way; see also `hpcckpt.testing.faults`."""

    @contextlib.contextmanager
    def calling(self, phase: str, fn: Callable[[], Any], rank: int = 0) -> Iterator[None]:
        """Call `fn` once, when `rank` reaches `phase` for the first time."""
        assert phase in failpoints.PHASES
        calls = [fn]

        def hook(name: str, at_rank: int) -> None:
            if name == phase and at_rank == rank and calls:
                calls.pop()()

        failpoints.install_hook(hook)
        try:
            yield
        finally:
            failpoints.install_hook(None)


@pytest.fixture
def faults() -> Faults:
    """Calls at phases."""
    return Faults()


@pytest.fixture(params=[True, False], ids=["in the background", "at once"])
def saving(request: pytest.FixtureRequest) -> dict[str, bool]:
    """Options for saves that go on in the background, and for saves that are done when they return."""
    return {"async_save": request.param}


@pytest.fixture
def debris() -> Callable[[Any], list[str]]:
    """What is half done in the directory of a checkpointer, beside what its job keeps prepared. Collective."""

    def find(ckpt: Any) -> list[str]:
        session = ckpt._session
        return session.comm.on_root("debris", session.rundir.workspace.leftovers)

    return find


class Damage:
    """Ways in which files go bad."""

    def flip(self, path: Path, offset: int, mask: int = 0x01) -> None:
        """Change one byte; a negative offset counts from the end."""
        with path.open("r+b") as file:
            file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
            (byte,) = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ mask]))

    def cut(self, path: Path, nbytes: int = 1) -> None:
        """Take bytes off the end."""
        os.truncate(path, path.stat().st_size - nbytes)

    def reseal(self, path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
        """Change what a manifest says, and give it a checksum that fits."""
        document = json.loads(path.read_bytes())
        change(document)
        self.seal(path, document)

    def seal(self, path: Path, document: Any) -> None:
        """Write a manifest of any content with a checksum that fits."""
        text = json.dumps({"crc32c": "00000000", **{k: v for k, v in document.items() if k != "crc32c"}}, indent=1)
        raw = text.encode()
        path.write_bytes(raw[:14] + b"%08x" % native.crc32c(raw) + raw[22:])

    def first_file(self, step: Path) -> Path:
        """Return the data file of rank 0."""
        return step / "data" / "rank-00000.safetensors"


@pytest.fixture
def damage() -> Damage:
    """Ways to damage files."""
    return Damage()
