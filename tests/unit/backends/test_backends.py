"""Backends are found by name; one that is absent, doubled, broken or different is an error that says so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.backends import registry
from hpcckpt.backends.plugin import sidecar
from hpcckpt.backends.rankfile import format as codec
from hpcckpt.core.plan import WriteReport
from hpcckpt.format import layout
from hpcckpt.native import plugins
from hpcckpt.saving import write as writing

COPY = """
from hpcckpt.backends.rankfile.backend import RankfileBackend
class Backend(RankfileBackend):
    name = "mine"
"""


@pytest.fixture
def install(tmp_path, monkeypatch, ranks):
    """Install a fake distribution that provides a backend: ``install("dist", "name", "module:Class", source)``."""

    def put(dist: str, name: str, target: str, source: str = "") -> None:
        where = tmp_path / dist
        info = where / f"{dist}-0.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 0.1\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[hpcckpt.backends]\n{name} = {target}\n", encoding="utf-8")
        if source:
            (where / f"{target.partition(':')[0]}.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(str(where))

    yield put
    for module in ("one_backend", "two_backend", "broken_backend"):
        sys.modules.pop(module, None)


def open_with(ranks: Any, run_dir: Path, backend: str, expected: type[errors.HpcckptError]) -> str:
    def body(comm: Any) -> str:
        with pytest.raises(expected) as caught:
            hc.Checkpointer(run_dir, comm=comm, backend=backend)
        return str(caught.value)

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    return results[0]


def test_an_unknown_backend_is_answered_with_those_that_exist(ranks, run_dir):
    text = open_with(ranks, run_dir, "hdf", errors.BackendNotFoundError)
    assert "'hdf' is not one of" in text
    assert "rankfile" in text


def test_a_backend_of_another_package_saves_and_restores(ranks, run_dir, install):
    install("one", "mine", "one_backend:Backend", COPY)

    def body(comm):
        state = {"w": np.zeros(100)}
        with hc.Checkpointer(run_dir, comm=comm, backend="mine") as ckpt:
            assert ckpt.save(1, {"w": np.ones(100)}).result().backend == "mine"
            ckpt.restore(state)
        return state["w"].sum()

    assert ranks(body) == [100.0] * ranks.size
    assert hc.load(run_dir)["w"].sum() == 100


def test_the_backend_that_wrote_a_step_reads_it_whatever_writes_now(ranks, run_dir, install):
    install("one", "mine", "one_backend:Backend", COPY)

    def body(comm):
        state = {"w": np.zeros(100)}
        with hc.Checkpointer(run_dir, comm=comm, backend="mine") as ckpt:
            ckpt.save(1, {"w": np.ones(100)})
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.restore(state)
        return state["w"].sum()

    assert ranks(body) == [100.0] * ranks.size


def test_a_step_whose_backend_is_not_installed_says_which(ranks, run_dir, install, monkeypatch):
    install("one", "mine", "one_backend:Backend", COPY)

    def save(comm):
        with hc.Checkpointer(run_dir, comm=comm, backend="mine") as ckpt:
            ckpt.save(1, {"w": np.ones(100)})

    def restore(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.BackendNotFoundError, match="'mine'"):
            ckpt.restore({"w": np.zeros(100)})

    ranks(save)
    monkeypatch.undo()
    ranks(restore)


def test_a_name_that_two_packages_provide_is_refused_with_both(ranks, run_dir, install):
    install("one", "mine", "one_backend:Backend", COPY)
    install("two", "mine", "two_backend:Backend", COPY)
    text = open_with(ranks, run_dir, "mine", errors.BackendConflictError)
    assert "one (one_backend:Backend)" in text
    assert "two (two_backend:Backend)" in text


def test_a_package_that_takes_a_built_in_name_is_refused(ranks, run_dir, install):
    install("one", "rankfile", "one_backend:Backend", COPY)
    assert "one (one_backend:Backend)" in open_with(ranks, run_dir, "rankfile", errors.BackendConflictError)


BROKEN = {
    "a module that is absent": ("broken_backend:Backend", "", "ModuleNotFoundError"),
    "a module that fails": ("broken_backend:Backend", "raise ValueError('no license')", "ValueError: no license"),
    "a module that cannot be parsed": ("broken_backend:Backend", "def", "SyntaxError"),
    "a class that is absent": ("broken_backend:Backend", "x = 1", "AttributeError"),
    "something that is no class": ("broken_backend:Backend", "Backend = 7", "not a Backend class"),
    "a class of another kind": ("broken_backend:Backend", "class Backend: pass", "not a Backend class"),
    "no class at all": ("broken_backend", "x = 1", "cannot be loaded"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_backend_is_named_with_its_package_and_what_is_wrong(ranks, run_dir, install, case):
    target, source, text = BROKEN[case]
    install("broken", "bad", target, source)
    message = open_with(ranks, run_dir, "bad", errors.BackendError)
    assert "backend 'bad' of broken" in message
    assert text in message


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_backend_breaks_nothing_else(ranks, run_dir, install, case):
    target, source, text = BROKEN[case]
    install("broken", "bad", target, source)
    assert text in {info.name: info.problem for info in registry.known_backends()}["bad"]

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.save(1, {"w": np.ones(3)}).result().backend

    assert ranks(body) == ["rankfile"] * ranks.size


def test_backends_are_listed_sorted_and_unloaded(ranks, install):
    install("one", "zz", "one_backend:Backend", "raise AssertionError")
    install("two", "aa", "two_backend:Backend", "raise AssertionError")
    found = [info.name for info in registry.discover()]
    assert found == sorted(found)
    assert {"aa", "rankfile", "zz"} <= set(found)
    assert "one_backend" not in sys.modules


def test_a_backend_that_differs_on_one_rank_is_refused(ranks, run_dir, monkeypatch):
    if ranks.size == 1:
        pytest.skip("one rank agrees with itself")
    from hpcckpt.checkpointer import open as opening

    find = registry.find_backend
    calls = []

    def find_otherwise(name):
        info = find(name)
        calls.append(name)
        return info if len(calls) == 1 else registry.BackendInfo(info.name, "elsewhere", "other:Class")

    def body(comm):
        if comm.rank == 0:
            calls.clear()
        with pytest.raises(errors.BackendConflictError, match="elsewhere"):
            hc.Checkpointer(run_dir, comm=comm)

    monkeypatch.setattr(opening, "find_backend", find_otherwise)
    ranks(body)


# -- a backend that does not do what it says -------------------------------------------------------


@pytest.mark.counts(1, 2, 5)
def test_a_rank_that_wrote_less_than_planned_publishes_nothing(ranks, run_dir, monkeypatch):
    from hpcckpt.backends.rankfile.backend import RankfileBackend

    write = RankfileBackend.write

    def write_less(self, job, path, rank, payloads, base=None):
        report = write(self, job, path, rank, payloads, base)
        return WriteReport(report.files, report.shared_nbytes - (rank == job.n_ranks - 1))

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            with pytest.raises(errors.StorageError, match=f"rank {comm.size - 1} wrote"):
                ckpt.save(1, {"w": np.ones(1000)}).result()
            comm.barrier()
            return ckpt.all_steps()

    monkeypatch.setattr(RankfileBackend, "write", write_less)
    assert ranks(body) == [[]] * ranks.size


def assert_nothing_is_committed(ranks: Any, run_dir: Path, error: str) -> None:
    def body(comm: Any) -> list[int]:
        with hc.Checkpointer(run_dir, comm=comm, backend="mine") as ckpt:
            with pytest.raises(errors.BackendError, match=error):
                ckpt.save(1, {"w": np.ones(1000)}).result()
            comm.barrier()
            return ckpt.all_steps()

    assert ranks(body) == [[]] * ranks.size


WRONG = {
    "another size": ("replace(report, files=(replace(report.files[0], nbytes=7),))", "reported 7 bytes for data/"),
    "a file that is not there": (
        "replace(report, files=(replace(report.files[0], path='data/x'),))",
        "data/x: No such",
    ),
    "nothing": ("None", r"write\(\) returned NoneType, not a WriteReport"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_foreign_backend_that_reports_what_it_did_not_write_commits_nothing(ranks, run_dir, install, case):
    returned, text = WRONG[case]
    source = f"""{COPY}
    def write(self, *args):
        report = super().write(*args)
        return {returned}
"""
    install("one", "mine", "one_backend:Backend", f"from dataclasses import replace\n{source}")
    assert_nothing_is_committed(ranks, run_dir, f"backend 'mine': .*{text}")


@pytest.mark.parametrize(
    ("method", "returned", "text"),
    [
        ("read", "None", r"read\(\) returned NoneType, not a list of DamagedBlock"),
        ("read", "[7]", r"read\(\) returned list, not a list of DamagedBlock"),
        ("index", "None", r"index\(\) returned NoneType, not entries by name"),
    ],
)
def test_a_foreign_backend_that_does_not_report_what_it_read_is_refused(
    ranks, run_dir, install, method, returned, text
):
    source = f"""{COPY}
    def {method}(self, *args):
        super().{method}(*args)
        return {returned}
"""
    install("one", "mine", "one_backend:Backend", source)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, backend="mine") as ckpt:
            ckpt.save(1, {"w": np.ones(1000)}).result()
            with pytest.raises(errors.BackendError, match=f"backend 'mine': {text}"):
                ckpt.restore({"w": np.zeros(1000)})

    ranks(body)


@pytest.mark.counts(2)
def test_a_file_that_two_ranks_report_without_sharing_files_commits_nothing(ranks, run_dir, install):
    source = f"""{COPY}
    def write(self, job, path, rank, payloads, base=None):
        report = super().write(job, path, rank, payloads, base)
        with open(path / "data/all", "ab") as file:  # which is never empty again, unlike with "wb"
            file.truncate(4)
        return replace(report, files=(*report.files, FileRecord("data/all", 4, 0)))
"""
    imports = "from dataclasses import replace\nfrom hpcckpt.core.plan import FileRecord\n"
    install("one", "mine", "one_backend:Backend", f"{imports}{source}")
    assert_nothing_is_committed(ranks, run_dir, "backend 'mine': ranks 0 and 1 both reported data/all")


REFUSED = {
    "a directory": "replace(file, path='data/sub/x')",
    "a blank": "replace(file, path='data/a b')",
    "not in data": "replace(file, path='x')",
    "no size": "replace(file, nbytes=-1)",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_backend_that_reports_a_file_which_readers_refuse_commits_nothing(ranks, run_dir, install, case):
    source = f"""{COPY}
    def seal(self, *args):
        return tuple({REFUSED[case]} for file in super().seal(*args))
"""
    install("one", "mine", "one_backend:Backend", f"from dataclasses import replace\n{source}")
    assert_nothing_is_committed(ranks, run_dir, r"backend 'mine': files\[0\]: .*; nothing was committed")


def test_a_step_that_appears_meanwhile_is_not_overwritten(ranks, run_dir, faults):
    path = run_dir / layout.step_dirname(1)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.StorageError, match="appeared while"):
            ckpt.save(1, {"w": np.ones(10)}).result()

    with faults.calling("4-durable", path.mkdir):
        ranks(body)
    assert ranks.on_root(lambda: list(path.iterdir())) == []


# -- what no reader would take, and what not all ranks are ready for -------------------------------


@pytest.mark.parametrize("backend", ["rankfile", "plugin:posix"])
def test_more_tensors_than_readers_take_are_refused_on_all_ranks_without_a_loss(ranks, run_dir, backend, monkeypatch):
    if backend == "plugin:posix" and "posix" not in plugins.available():
        pytest.skip("the samples are not built")
    monkeypatch.setattr(codec, "MAX_HEADER_BYTES", 20_000)
    monkeypatch.setattr(sidecar, "MAX_BYTES", 20_000)

    def body(comm):
        few, many = ({f"layer-{n}": hc.PerRank(np.ones(2)) for n in range(count)} for count in (3, 200))
        with hc.Checkpointer(run_dir, comm=comm, backend=backend) as ckpt:
            ckpt.save(1, few).result()
            with pytest.raises(errors.StateError, match="more than readers take") as caught:
                ckpt.save(2, many).result()
            assert sorted(caught.value.failures) == list(range(comm.size))
            ckpt.save(3, few).result()
            return ckpt.all_steps()

    assert ranks(body) == [[1, 3]] * ranks.size


TOGETHER = """
from hpcckpt.backends.rankfile.backend import RankfileBackend
written = []
class Backend(RankfileBackend):
    name = "mine"
    features = frozenset({"partial-read", "collective"})
    def write(self, job, path, rank, payloads, base=None):
        written.append(job.step)
        return super().write(job, path, rank, payloads, base)
"""


def test_a_rank_that_fails_when_it_holds_its_state_keeps_all_from_a_collective_write(
    ranks, run_dir, install, monkeypatch
):
    install("one", "mine", "one_backend:Backend", TOGETHER)
    really = writing._replicas

    def failing(run, this, tree):
        if this.request.step == 2 and run.comm.rank == run.comm.size - 1:
            raise ZeroDivisionError("a bug")
        return really(run, this, tree)

    monkeypatch.setattr(writing, "_replicas", failing)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, backend="mine") as ckpt:
            ckpt.save(1, {"w": np.ones(100)}).result()
            with pytest.raises(errors.CollectiveError, match=rf"\[rank {comm.size - 1}\] ZeroDivisionError: a bug"):
                ckpt.save(2, {"w": np.ones(100)}).result()
            ckpt.save(3, {"w": np.ones(100)}).result()

    ranks(body)
    assert set(sys.modules["one_backend"].written) == {1, 3}
