"""``hpcckpt doctor``."""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.core.mounts import Mount, mount_of
from hpcckpt.tools.doctor import devices, hardware, mpi, probe, quota, software, storage, tf_builds

Cli = Callable[..., Any]


def by_topic(result: Any) -> dict[str, dict[str, str]]:
    return {finding["topic"]: finding for finding in result.json["findings"]}


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that these distributions are installed and no others."""

    def pretend(**installed: str) -> None:
        def version_of(*names: str) -> tuple[str, str] | None:
            return next(((name, installed[name]) for name in names if name in installed), None)

        monkeypatch.setattr(software, "version_of", version_of)
        monkeypatch.setattr(mpi, "version_of", version_of)
        monkeypatch.setattr(devices, "FRAMEWORKS", ())

    return pretend


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the installation alone: no child processes."""
    monkeypatch.setattr(software, "findings", lambda **_: iter(()))
    monkeypatch.setattr(mpi, "findings", lambda: iter(()))
    monkeypatch.setattr(tf_builds, "findings", lambda: iter(()))
    monkeypatch.setattr(devices, "FRAMEWORKS", ())


def test_findings_about_the_installation(cli: Cli) -> None:
    result = cli("doctor", "--json")
    found = by_topic(result)
    assert {"hpcckpt", "Python", "NumPy", "TensorFlow", "Keras", "Horovod", "h5py", "mpi4py", "launcher", "native part",
            "checksums", "cores", "backends", "scratch", "started by", "time left"} <= set(found)  # fmt: skip
    assert {each.topic for each in devices.FRAMEWORKS if probe.package_folder(each.package)} <= set(found)
    assert all(set(finding) == {"topic", "level", "message", "remedy", "ranks"} for finding in found.values())
    assert result.code == (0 if result.json["ok"] else 1)


def test_a_job_script_gets_its_answer_at_once(spawn: Cli, tmp_path: Path) -> None:
    """Without other programs being started: with nothing on the PATH the answer is the same."""
    script = tmp_path / "scontrol"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n", encoding="utf-8")
    script.chmod(0o755)

    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = spawn("doctor", tmp_path, "--quick", "--json", PATH=str(tmp_path), SLURM_JOB_ID="7")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert result.code == 0, result.out
        assert {"hpcckpt", "directory", "space", "file locks", "scratch", "time left"} <= set(by_topic(result))
        return used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime

    assert any(cpu_seconds() < 1.0 for _ in range(10)), "other children may have been buried meanwhile"
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("variables", "level", "words"),
    [
        ({}, "note", "nothing says when this job ends"),
        ({"HPCCKPT_JOB_END": "+7200"}, "ok", "HPCCKPT_JOB_END"),
        ({"SLURM_JOB_END_TIME": "+100"}, "warning", "SLURM_JOB_END_TIME"),
        ({"SLURM_JOB_END_TIME": "+-100"}, "warning", "; ignored"),
        ({"HPCCKPT_JOB_END": "soon"}, "problem", "HPCCKPT_JOB_END"),
    ],
)
def test_the_time_that_is_left(
    variables: dict[str, str], level: str, words: str, quick: None, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HPCCKPT_JOB_END", "SLURM_JOB_END_TIME", "COBALT_ENDTIME", "PBS_WALLTIME", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(int(time.time()) + int(value[1:])) if value.startswith("+") else value)
    found = by_topic(cli("doctor", "--json", "--quick"))["time left"]
    assert (found["level"], words in found["message"]) == (level, True), found


def test_what_is_asked_about_is_not_imported(environment: Callable[..., dict[str, str]]) -> None:
    names = ("tensorflow", "keras", "horovod", "mpi4py", "h5py")
    code = (
        "import json, sys; from hpcckpt.cli import main; main(['doctor', '-q']); "
        f"print(json.dumps([name for name in {names!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize(
    ("installed", "topic", "remedy"),
    [
        ({"numpy": "2.1.0", "tensorflow": "2.15.1"}, "NumPy", "numpy<2"),
        ({"numpy": "1.26.4", "tensorflow": "2.15.1", "keras": "3.5.0"}, "Keras", "keras==2.15.*"),
        ({"numpy": "2.1.0", "tensorflow": "2.21.0", "keras": "2.15.0"}, "Keras", "keras>=3"),
    ],
)
def test_versions_that_do_not_go_together(
    installed: dict[str, str], topic: str, remedy: str, versions: Callable[..., None], cli: Cli
) -> None:
    versions(**installed)
    result = cli("doctor", "--json")
    assert result.code == 1
    assert by_topic(result)[topic]["level"] == "problem"
    assert remedy in by_topic(result)[topic]["remedy"]
    text = cli("doctor", "-q").out
    assert f"problem  {topic}" in text
    assert "ok  " not in text


@pytest.mark.parametrize("tensorflow", ["2.15.1", "2.21.0"])
def test_versions_that_do(tensorflow: str, versions: Callable[..., None]) -> None:
    versions(numpy="1.26.4", tensorflow=tensorflow, keras="2.15.0" if tensorflow < "2.16" else "3.15.1")
    assert (software._numpy().level, software._tensorflow().level, software._keras().level) == ("ok", "ok", "ok")


def test_nothing_else_installed_is_no_problem(versions: Callable[..., None], cli: Cli) -> None:
    versions(numpy="2.3.0")
    found = by_topic(cli("doctor", "--json"))
    assert {found[topic]["level"] for topic in ("TensorFlow", "Keras", "Horovod", "h5py", "mpi4py")} == {"note"}


def fake_horovod(folder: Path, built_for: str, content: bytes) -> None:
    (folder / "tensorflow").mkdir(parents=True)
    (folder / "metadata.json").write_text(json.dumps({"tensorflow": built_for}), encoding="utf-8")
    (folder / "tensorflow" / "mpi_lib.cpython-311-x86_64-linux-gnu.so").write_bytes(content)


@pytest.mark.parametrize(
    ("built_for", "content", "level", "words"),
    [
        ("2.15.1", b"\0libc.so.6\0libmpi.so.40\0", "ok", "with MPI (libmpi.so.40)"),
        ("2.15.1", b"\0libmpi.so.12\0libnccl.so.2\0N4gloo\0", "ok", "with MPI (libmpi.so.12), NCCL, Gloo"),
        ("2.14.0", b"\0libmpi.so.40\0", "problem", "but TensorFlow is 2.15.1"),
        ("2.15.1", b"\0N4gloo7Context\0", "warning", "with Gloo"),
    ],
)
def test_what_horovod_was_built_with(
    built_for: str, content: bytes, level: str, words: str, tmp_path: Path,
    versions: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    versions(horovod="0.28.1", tensorflow="2.15.1")
    fake_horovod(tmp_path, built_for, content)
    monkeypatch.setattr(software, "package_folder", lambda _name: tmp_path)
    finding = software._horovod()
    assert finding.level == level
    assert words in finding.message


def test_horovod_without_tensorflow(
    tmp_path: Path, versions: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions(horovod="0.28.1")
    monkeypatch.setattr(software, "package_folder", lambda _name: tmp_path)
    assert software._horovod().level == "problem"


@pytest.mark.parametrize(("soname", "level"), [("libmpi.so.40", "ok"), ("libmpi.so.12", "problem")])
def test_two_mpi_libraries(soname: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_horovod(tmp_path, "2.15.1", b"\0" + soname.encode() + b"\0")
    monkeypatch.setattr(mpi, "package_folder", lambda _name: tmp_path)
    (finding,) = mpi._horovod_library(["/usr/lib/libmpi.so.40.30.4"])
    assert (finding.topic, finding.level) == ("one MPI", level)


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("mpirun (Open MPI) 4.1.4", "Open MPI"),
        ("Open MPI v4.1.4, package: Debian", "Open MPI"),
        ("HYDRA build details:", "MPICH"),
        ("MPICH Version: 4.2", "MPICH"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", "Intel MPI"),
        ("slurm 23.02", ""),
    ],
)
def test_vendors(text: str, vendor: str) -> None:
    assert mpi.vendor(text) == vendor


def test_a_launcher_of_another_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "mpirun"
    script.write_text("#!/bin/sh\necho HYDRA build details:\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    finding = mpi._launcher("Open MPI v4.1.4")
    assert finding.level == "problem"
    assert "every rank would be alone" in finding.message


def test_mpi4py_without_a_library(versions: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    versions(mpi4py="4.1.2")
    monkeypatch.setattr(mpi, "ask_python", lambda _code: {"error": "cannot load MPI library"})
    (finding,) = mpi.findings()
    assert finding.level == "problem"
    assert "cannot load MPI library" in finding.message


def test_mpi_that_does_not_start(versions: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    versions(mpi4py="4.1.2")
    answers = {mpi._CODE: {"library": "Open MPI v4.1.4", "paths": []}, mpi._INIT_CODE: {"error": "no PMI here"}}
    monkeypatch.setattr(mpi, "ask_python", answers.__getitem__)
    (finding,) = [finding for finding in mpi.findings() if finding.topic == "thread level"]
    assert (finding.level, finding.message) == ("problem", "MPI does not start: no PMI here")


def test_what_a_site_sets_for_mpi_counts_and_the_cause_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", "no-such-agent")
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1.0;tcp://192.0.2.1:1")  # of a launcher: asked outside its job
    (finding,) = [finding for finding in mpi.findings() if finding.topic == "thread level"]
    assert finding.level == "problem"
    assert "plm_rsh_agent: no-such-agent" in finding.message


def test_the_error_of_python_counts_more_than_a_warning_of_open_mpi() -> None:
    rule = "-" * 74
    warning = f"{rule}\nsome transport is not used\n{rule}"
    code = f"import sys; print({warning!r}, file=sys.stderr); raise ImportError('libmpi')"
    assert probe.ask_python(code) == {"error": "ImportError: libmpi"}


@pytest.mark.parametrize(
    ("installed", "level", "expected"),
    [({}, "SINGLE", "ok"), ({"horovod": "0.28.1"}, "MULTIPLE", "ok"), ({"horovod": "0.28.1"}, "FUNNELED", "warning")],
)
def test_thread_levels(installed: dict[str, str], level: str, expected: str, versions: Callable[..., None]) -> None:
    versions(**installed)
    assert mpi.thread_level(level).level == expected


def test_another_mpi_in_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h5p.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\0libmpi.so.12\0")
    monkeypatch.setattr(mpi, "package_folder", lambda _name: tmp_path)
    assert [finding.level for finding in mpi._hdf5_library(["/usr/lib/libmpi.so.40.30.4"])] == ["problem"]
    assert list(mpi._hdf5_library(["/usr/lib/libmpi.so.12.1.8"])) == []


def test_children_never_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ModuleNotFoundError" in probe.ask_python("import no_such_module")["error"]
    assert probe.ask_python("pass") == {"error": "no answer"}
    assert probe.run(["/no/such/program"]).returncode == 127
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.2)
    assert "no answer within" in probe.ask_python("import time; time.sleep(30)")["error"]


@pytest.mark.parametrize(
    ("text", "level"),
    [("flags\t\t: fpu sse4_2 avx\n", "ok"), ("flags\t: fpu sse4_1\n", "warning"), (None, "note")],
)
def test_checksums(text: str | None, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    assert hardware._checksums(tmp_path / "cpuinfo").level == level


# -- a directory ---------------------------------------------------------------------------------


def test_a_sound_directory(quick: None, cli: Cli, saved: Path) -> None:
    found = by_topic(cli("doctor", saved, "--json"))
    assert found["lock"]["message"] == "free"
    assert found["checkpoints"]["message"] == "3, the newest is step 30"
    assert found["directory"]["level"] == "ok"
    assert "space" in found


def test_a_directory_that_does_not_exist_yet(quick: None, cli: Cli, tmp_path: Path) -> None:
    found = by_topic(cli("doctor", tmp_path / "a" / "b", "--json"))
    assert "would be made" in found["directory"]["message"]


def test_a_file_is_no_directory(quick: None, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    result = cli("doctor", tmp_path / "file", "--json")
    assert (result.code, by_topic(result)["directory"]["level"]) == (1, "problem")


def test_a_held_and_a_left_lock(quick: None, cli: Cli, busy: Path) -> None:
    assert "held by process" in by_topic(cli("doctor", busy, "--json"))["lock"]["message"]
    lock = busy / ".lock"
    document = json.loads(lock.read_text(encoding="utf-8"))
    lock.write_text(
        json.dumps({**document, "started": "1"}), encoding="utf-8"
    )  # the number belongs to another process now
    assert "which is dead" in by_topic(cli("doctor", busy, "--json"))["lock"]["message"]


def test_damage_and_leftovers(quick: None, cli: Cli, saved: Path, damage: Any) -> None:
    (saved / ".step-0000000040.tmp-abc").mkdir()
    damage.cut(damage.first_file(saved / "step-0000000030"))
    found = by_topic(cli("doctor", saved, "--json"))
    assert found["checkpoints"]["level"] == "warning"
    assert "step 30 cannot be restored; a restart would use step 20" in found["checkpoints"]["message"]
    assert found["left over"]["remedy"] == f"hpcckpt prune {saved}"
    assert found["left over"]["message"] == "1 directory left by killed jobs, 0 B"
    for step in (10, 20):
        damage.cut(damage.first_file(saved / f"step-00000000{step}"))
    result = cli("doctor", saved, "--json")
    assert (result.code, by_topic(result)["checkpoints"]["level"]) == (1, "problem")


@pytest.mark.parametrize(
    ("free", "level"), [(0, "problem"), (1, "problem"), (8, "warning"), (1 << 20, "ok")], ids=lambda value: str(value)
)
def test_space(free: int, level: str, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        f_bavail, f_frsize, f_blocks, f_files, f_favail = free, 4096, 1 << 30, 0, 0

    monkeypatch.setattr("os.statvfs", lambda _path: Held)
    (finding,) = storage._space(saved, saved)
    assert finding.level == level


def test_inodes(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        f_bavail, f_frsize, f_blocks, f_files, f_favail = 1 << 30, 4096, 1 << 30, 1 << 20, 3

    monkeypatch.setattr("os.statvfs", lambda _path: Held)
    assert [finding.level for finding in storage._space(saved, saved)] == ["ok", "problem"]


@pytest.mark.parametrize(
    ("kind", "options", "level"),
    [
        ("ext4", "rw", "ok"), ("lustre", "rw", "ok"), ("gpfs", "rw", "ok"), ("xfs", "ro,relatime", "problem"),
        ("tmpfs", "rw", "warning"), ("nfs4", "rw", "warning"), ("overlay", "rw", "warning"),
        ("fuse.sshfs", "rw", "warning"),
    ],
)  # fmt: skip
def test_file_systems(kind: str, options: str, level: str) -> None:
    finding = storage._file_system(Mount("/scratch", kind, "source", options))
    assert finding.level == level
    assert bool(finding.remedy) == (level != "ok")


def test_the_mount_table(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "23 22 0:20 / /lustre rw - lustre 10.0.0.1@o2ib:/fs rw,flock\n"
        "24 23 0:21 / /lustre/with\\040space rw - tmpfs tmpfs rw\n"
        "nonsense\n",
        encoding="utf-8",
    )
    assert mount_of(Path("/lustre/project"), table) == Mount("/lustre", "lustre", "10.0.0.1@o2ib:/fs", "rw")
    assert mount_of(Path("/lustre/with space/run"), table) == Mount("/lustre/with space", "tmpfs", "tmpfs", "rw")
    assert mount_of(Path("/lustrefake"), table) == Mount("/", "ext4", "/dev/sda1", "rw,relatime")
    assert mount_of(Path("/x"), tmp_path / "absent") is None


LFS = "/lustre  95* 80 100 6d23h59m 10 0 0 -\n"
QUOTA = """Disk quotas for user me (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
server:/home/me   120*     100     110       0      50       0       0       0
"""


def test_quotas() -> None:
    assert quota.parse(LFS, ("/lustre",)) == quota.Quota(95, 100, 10, 0)
    assert quota.parse(QUOTA, ("server:/home/me", "/home/me")) == quota.Quota(120, 110, 50, 0)
    assert quota.parse(QUOTA, ("/elsewhere",)) is None
    assert quota.parse("none\n", ("none",)) is None
    assert quota.parse("/lustre [900]* 0 800 - [5] 0 9 -", ("/lustre",)) == quota.Quota(900, 800, 5, 9)


def test_a_user_without_a_name_has_a_quota_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lfs").write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    (tmp_path / "lfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("os.getuid", lambda: 98765)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert quota._ask(Mount("/lustre", "lustre", "s", "rw")) == "quota -q -u 98765 /lustre\n"


@pytest.mark.parametrize(
    ("text", "levels"), [(LFS, ["warning"]), ("/lustre 120 0 100 - 5 0 9 -", ["problem", "ok"]), ("", [])]
)
def test_quota_findings(text: str, levels: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "_ask", lambda _mount: text)
    assert [finding.level for finding in quota.findings(Mount("/lustre", "lustre", "s", "rw"))] == levels


# -- devices ---------------------------------------------------------------------------------------

CPU, GPU = ["CPU:0", ""], ["GPU:0", "NVIDIA A100"]


@pytest.mark.parametrize(
    ("found", "has_gpu_code", "n_nvidia", "environ", "level", "words"),
    [
        ([CPU], False, 0, {}, "ok", "CPU:0"),
        ([CPU, GPU], True, 4, {}, "ok", "CPU:0, GPU:0 (NVIDIA A100)"),
        ([CPU], True, 4, {"CUDA_VISIBLE_DEVICES": "-1"}, "note", "CUDA_VISIBLE_DEVICES='-1' hides the GPUs"),
        ([CPU], False, 4, {}, "warning", "this host has 4 NVIDIA devices, and this TensorFlow is for CPUs"),
        ([CPU], True, 1, {}, "warning", "this host has 1 NVIDIA device, which TensorFlow cannot use"),
    ],
)
def test_devices_that_a_framework_does_not_see_are_a_warning(
    found: list[list[str]], has_gpu_code: bool, n_nvidia: int, environ: dict[str, str], level: str, words: str
) -> None:
    answer = {"devices": found, "has_gpu_code": has_gpu_code}
    finding = devices.judge(devices.FRAMEWORKS[0], answer, n_nvidia, environ)
    assert finding.level == level
    assert words in finding.message
    assert bool(finding.remedy) == (level == "warning")


def test_a_framework_that_does_not_answer_in_time_is_a_note_and_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    slow = dataclasses.replace(devices.FRAMEWORKS[0], package="json", code=code)
    monkeypatch.setattr(devices, "FRAMEWORKS", (slow,))
    monkeypatch.setattr(devices, "WAIT_S", 0.0)
    monkeypatch.setattr(devices, "MORE_S", 0.0)
    with devices.asked() as found:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text(encoding="utf-8"):
            time.sleep(0.01)
        (finding,) = found()
    assert (finding.level, finding.message) == ("note", "not known: no answer in time")
    assert not Path("/proc", (tmp_path / "pid").read_text(encoding="utf-8")).exists()
    with devices.asked(is_quick=True) as found:
        assert list(found()) == []
