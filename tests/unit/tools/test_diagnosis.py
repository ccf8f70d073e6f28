"""What the doctor looks at, piece by piece: scratch, builds, locks, stripes, launchers, ranks that differ."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcckpt.collective import launchers
from hpcckpt.core.mounts import Mount
from hpcckpt.native import tf_ops
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tools.doctor import all_ranks, file_system, launch, scratch, shared_directory, storage, stripe, tf_builds
from hpcckpt.tools.doctor.all_ranks import RankFindings, join, look, ranks_text
from hpcckpt.tools.doctor.finding import Finding
from hpcckpt.tools.doctor.launch import RankLocation
from hpcckpt.tools.doctor.probe import package_folder, version_of
from hpcckpt.tools.doctor.software import TENSORFLOW
from hpcckpt.tools.doctor.stripe import Stripe

pytestmark = pytest.mark.one_case

# -- scratch -----------------------------------------------------------------------------------------


def on(kind: str) -> Mount:
    return Mount("/x", kind, "source", "rw")


@pytest.fixture
def types(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The types of file systems, by the last part of a directory; ext4 otherwise."""
    found: dict[str, str] = {}
    monkeypatch.setattr(scratch, "mount_of", lambda path: on(found.get(path.name, "ext4")))
    return found


def directories(tmp_path: Path, *names: str) -> list[str]:
    for name in names:
        (tmp_path / name).mkdir()
    return [str(tmp_path / name) for name in names]


def test_scratch_is_the_first_that_will_do(tmp_path: Path, types: dict[str, str]) -> None:
    own, tmpdir, snic = directories(tmp_path, "own", "tmpdir", "snic")
    environ = {"HPCCKPT_SCRATCH": own, "TMPDIR": tmpdir, "SNIC_TMP": snic}
    assert scratch.find_scratch(environ) == scratch.ScratchChoice(Path(own), "$HPCCKPT_SCRATCH")
    types["own"] = "tmpfs"
    assert scratch.find_scratch(environ).chosen == Path(tmpdir)
    types["tmpdir"] = "lustre"
    choice = scratch.find_scratch(environ)
    assert (choice.chosen, choice.source) == (Path(snic), "$SNIC_TMP")
    assert [(each.source, each.reason) for each in choice.rejected] == [
        ("$HPCCKPT_SCRATCH", "tmpfs: that is memory of the job"),
        ("$TMPDIR", "lustre: shared with other nodes"),
    ]


def test_the_order_of_scratch_directories() -> None:
    environ = {"USER": "ada", "SNIC_TMP": "/c", "TMPDIR": "/b", "HPCCKPT_SCRATCH": "/a"}
    assert [str(path) for path, _ in scratch.candidates(environ)] == [
        "/a", "/b", "/c", "/local/scratch", "/mnt/bb/ada", "/tmp",
    ]  # fmt: skip


def test_what_the_user_names_may_be_shared(tmp_path: Path, types: dict[str, str]) -> None:
    (own,) = directories(tmp_path, "own")
    types["own"] = "dvs"
    assert scratch.find_scratch({"HPCCKPT_SCRATCH": own}).chosen == Path(own)


def test_scratch_must_have_space(tmp_path: Path, types: dict[str, str]) -> None:
    (own,) = directories(tmp_path, "own")
    choice = scratch.find_scratch({"HPCCKPT_SCRATCH": own}, needed_nbytes=1 << 60)
    assert choice.chosen is None
    assert "1024.00 PiB needed" in choice.rejected[0].reason


@pytest.mark.parametrize(("value", "reason"), [("relative", "not an absolute path"), ("/no/such", "no such directory")])
def test_scratch_that_is_none(value: str, reason: str) -> None:
    assert scratch.find_scratch({"HPCCKPT_SCRATCH": value}).rejected[0].reason == reason
    (finding,) = scratch.findings({"HPCCKPT_SCRATCH": value})
    assert finding.level in {"warning", "note"}
    assert reason in finding.message


def test_read_only_is_no_scratch() -> None:
    assert scratch.why_not_local(Mount("/x", "ext4", "s", "ro,relatime"), is_wanted=True) == "mounted read-only"


# -- what was compiled for TensorFlow ----------------------------------------------------------------


@pytest.fixture
def tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of TensorFlow 2.15.1 with today's C++ strings, and an empty directory for ops."""
    (tmp_path / "tf").mkdir()
    (tmp_path / "tf" / "libtensorflow_framework.so.2").write_bytes(b"\0_ZNSt7__cxx1112basic_stringIcE\0")
    versions = {"tensorflow": "2.15.1", "numpy": "1.26.4"}
    monkeypatch.setattr(
        tf_builds,
        "version_of",
        lambda *names: next(((name, versions[name]) for name in names if name in versions), None),
    )
    monkeypatch.setattr(tf_builds, "package_folder", lambda name: tmp_path / "tf" if name == "tensorflow" else None)
    monkeypatch.setenv("HPCCKPT_TF_OPS_DIR", str(tmp_path / "ops"))
    (tmp_path / "ops").mkdir()
    return tmp_path


def made_for(tensorflow: str, abi: str) -> str:
    python = str(sys.implementation.cache_tag).replace("-", "")
    return tf_ops.Target(tensorflow, abi, python, "1", tf_ops.sources_digest()).filename


def of(topic: str) -> Finding:
    return next(finding for finding in tf_builds.findings() if finding.topic == topic)


@pytest.mark.parametrize(
    ("made", "level", "words"),
    [
        (("2.15.1", "1"), "ok", "_GLIBCXX_USE_CXX11_ABI=1"),
        (("2.15.1", "0"), "warning", "built for _GLIBCXX_USE_CXX11_ABI 0, and 1 is installed"),
        (("2.14.0", "1"), "warning", "built for TensorFlow 2.14.0, and 2.15.1 is installed"),
        (None, "note", "not built for TensorFlow 2.15.1"),
    ],
)
def test_ops_that_match_tensorflow(made: tuple[str, str] | None, level: str, words: str, tensorflow: Path) -> None:
    if made:
        (tensorflow / "ops" / made_for(*made)).touch()
    finding = of("TF ops")
    assert finding.level == level
    assert words in finding.message
    assert bool(finding.remedy) == (level != "ok")


def test_the_abi_is_that_of_the_files(tensorflow: Path) -> None:
    assert "_GLIBCXX_USE_CXX11_ABI=1" in of("C++ ABI").message
    (tensorflow / "tf" / "libtensorflow_framework.so.2").write_bytes(b"\0_ZNSsC1EPKc\0")
    assert "_GLIBCXX_USE_CXX11_ABI=0" in of("C++ ABI").message


def test_horovod_of_another_abi(tensorflow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tensorflow / "hvd" / "tensorflow").mkdir(parents=True)
    (tensorflow / "hvd" / "tensorflow" / "mpi_lib.so").write_bytes(b"\0_ZNSsC1EPKc\0")
    folders = {"tensorflow": tensorflow / "tf", "horovod": tensorflow / "hvd"}
    monkeypatch.setattr(tf_builds, "package_folder", folders.get)
    assert of("C++ ABI").level == "problem"


def test_the_abi_is_what_tensorflow_said_when_the_ops_were_built() -> None:
    """Their name has what ``tf.sysconfig`` says; TensorFlow itself takes long to import."""
    folder, version = package_folder("tensorflow"), version_of(*TENSORFLOW)
    made = [found for path in tf_ops.PACKAGE.glob("_tf_ops-*.so") if (found := tf_ops.Target.of_filename(path.name))]
    said = {each.cxx11_abi for each in made if version is not None and each.tensorflow == version[1]}
    if folder is None or not said:
        pytest.skip("needs TensorFlow, and ops built for it")
    assert said == {tf_builds.cxx11_abi(folder / "libtensorflow_framework.so.2")}


# -- locks, links ------------------------------------------------------------------------------------


def levels(findings: Iterator[Finding]) -> dict[str, str]:
    return {finding.topic: finding.level for finding in findings}


def test_a_good_file_system_leaves_nothing_to_say_and_no_trace(tmp_path: Path) -> None:
    assert levels(file_system.findings(tmp_path)) == {"writing": "ok", "file locks": "ok", "hard links": "ok"}
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_no_file_system_takes_is_a_finding(tmp_path: Path) -> None:
    assert storage.existing_part(tmp_path / "a" / "b") == tmp_path
    (found,) = storage.findings(tmp_path / ("long" * 100) / "run")
    assert (found.topic, found.level, "File name too long" in found.message) == ("directory", "problem", True)


def test_what_may_not_be_looked_at_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_directory, "PATIENCE_S", 0.0)
    assert not shared_directory._appears(tmp_path / ("long" * 100))


def fail(code: int) -> object:
    def failing(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return failing


@pytest.mark.parametrize(
    ("name", "code", "topic", "level"),
    [
        ("fcntl.flock", errno.ENOLCK, "file locks", "warning"),
        ("fcntl.lockf", errno.EAGAIN, "file locks", "warning"),
        ("os.link", errno.EPERM, "hard links", "warning"),
        ("os.fsync", errno.EIO, "writing", "problem"),
        ("os.rename", errno.EXDEV, "writing", "problem"),
    ],
)
def test_what_a_file_system_cannot_do(
    name: str, code: int, topic: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(name, fail(code))
        found = {finding.topic: finding for finding in file_system.findings(tmp_path)}
    assert found[topic].level == level
    assert errno.errorcode[code] in found[topic].message
    assert found[topic].remedy
    assert list(tmp_path.iterdir()) == []


# -- stripes -----------------------------------------------------------------------------------------

ONE = "/lus\nstripe_count:  1 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1\n"
PROGRESSIVE = """/lus
  lcm_layout_gen:    0
  lcm_entry_count:   2
      stripe_count:  1       stripe_size:   1048576
      stripe_count:  -1       stripe_size:   4194304
"""


def test_what_lfs_says() -> None:
    assert stripe.parse(ONE) == Stripe(1, 1 << 20)
    assert stripe.parse(PROGRESSIVE) == Stripe(1, 1 << 20, is_progressive=True)
    assert stripe.parse("lfs: no such file\n") is None


@pytest.mark.parametrize(
    ("layout", "level"),
    [(Stripe(1, 1 << 20), "ok"), (Stripe(4, 1 << 20), "ok"), (Stripe(-1, 1 << 20), "warning"),
     (Stripe(64, 1 << 20), "warning"), (Stripe(1, 1 << 20, is_progressive=True), "ok")],
)  # fmt: skip
def test_stripes(layout: Stripe, level: str) -> None:
    assert stripe.check_stripe(layout).level == level


def test_only_lustre_has_stripes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lfs").write_text(f"#!/bin/sh\ncat <<'END'\n{PROGRESSIVE}END\n", encoding="utf-8")
    (tmp_path / "lfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert list(stripe.findings(tmp_path, on("ext4"))) == []
    (finding,) = stripe.findings(tmp_path, on("lustre"))
    assert "progressive" in finding.message


# -- launchers ---------------------------------------------------------------------------------------

MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}


@pytest.mark.parametrize(
    ("environ", "n_ranks", "level", "words"),
    [
        ({}, 1, "ok", "no launcher"),
        (MPIRUN, 2, "ok", "Open MPI's mpirun: 2 ranks"),
        (MPIRUN, 1, "problem", "started 2 ranks (OMPI_COMM_WORLD_SIZE=2), MPI connects 1"),
        ({"PMIX_RANK": "3"}, 1, "problem", "started several ranks (PMIX_RANK=3), MPI connects 1"),
        ({"ALPS_APP_PE": "0"}, 4, "ok", "aprun: 4 ranks"),
        ({**MPIRUN, **STEP}, 2, "problem", "SLURM_STEP_NUM_TASKS=4"),
    ],
)
def test_who_started_it(environ: dict[str, str], n_ranks: int, level: str, words: str) -> None:
    (finding,) = launch.findings(n_ranks, launchers.read(environ))
    assert finding.level == level
    assert words in finding.message


def test_hosts_are_counted_against_what_launchers_say() -> None:
    places = [RankLocation("n1", 2, 2), RankLocation("n1", 2, 2), RankLocation("n2", 1, 2)]
    found = launch.hosts(places)
    assert (found.level, found.message) == ("ok", "3 ranks on 2 hosts (n1 2, n2 1)")
    wrong = launch.hosts([*places[:2], RankLocation("n2", 3, 2)])
    assert "rank 2 expects 3 ranks on its node, n2 has 1" in wrong.message
    assert "rank 0 expects 3 nodes, there are 2" in launch.hosts([RankLocation("n1", 2, 3), *places[1:]]).message


# -- many ranks --------------------------------------------------------------------------------------


def test_ranks_that_differ_are_named() -> None:
    same, old, new = Finding("Python", "ok", "3.11"), Finding("NumPy", "ok", "1.26"), Finding("NumPy", "ok", "2.1")
    last = Finding("cores", "ok", "2")
    found = join([[same, old, last], [same, new, last], [same, old, last]])
    assert found == [RankFindings(same), RankFindings(old, (0, 2)), RankFindings(new, (1,)), RankFindings(last)]


def test_free_space_that_changes_meanwhile_is_no_difference() -> None:
    space = [[Finding("space", "ok", f"{free} of 9 free", gist="9")] for free in (3, 4)]
    assert join(space) == [RankFindings(space[0][0])]


@pytest.mark.parametrize(("numbers", "text"), [([0, 1, 2, 3], "0-3"), ([0, 2, 3, 7], "0,2-3,7"), ([5], "5")])
def test_ranks_in_short(numbers: list[int], text: str) -> None:
    assert ranks_text(numbers) == text


def test_the_first_rank_of_a_host_looks_for_all_of_it() -> None:
    looked: list[int] = []

    def of_rank(comm: object) -> list[RankFindings]:
        rank = comm.rank  # type: ignore[attr-defined]
        host = "n1" if rank < 2 else "n2"

        def at_host() -> list[Finding]:
            looked.append(rank)
            return [Finding("library", "ok", f"that of {host}")]

        return all_ranks.gather(comm, host, at_host, lambda: [Finding("cores", "ok", "2")])  # type: ignore[arg-type]

    found = run_ranks(3, of_rank)
    assert sorted(looked) == [0, 2]
    library = [("that of n1", (0, 1)), ("that of n2", (2,))]
    assert [(each.finding.message, each.ranks) for each in found[0]] == [*library, ("2", ())]
    assert found[1:] == [[], []]


def test_a_check_that_breaks_hides_no_other() -> None:
    def checks() -> Iterator[Finding]:
        yield Finding("Python", "ok", "3.11")
        raise ZeroDivisionError("oh")

    assert [(finding.topic, finding.level) for finding in look(checks)] == [("Python", "ok"), ("doctor", "warning")]


def test_a_directory_that_some_ranks_do_not_share_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_directory, "PATIENCE_S", 0.2)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    shared = run_ranks(3, lambda comm: list(shared_directory.findings(comm, tmp_path)))
    assert [[finding.level for finding in found] for found in shared] == [["ok"], [], []]
    local = run_ranks(
        3, lambda comm: list(shared_directory.findings(comm, tmp_path / ("b" if comm.rank == 2 else "a")))
    )
    assert (local[0][0].level, "rank 2 does not see" in local[0][0].message) == ("problem", True)
    assert list(tmp_path.glob("*/*")) == []
