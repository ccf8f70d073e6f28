"""The libraries of TensorFlow ops need no second command: the first use builds them, once, come what may."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from hpcckpt.errors import BackendError
from hpcckpt.native import build, tf_ops, tfinfo
from hpcckpt.native.build_lock import BuildLock
from hpcckpt.native.tf_ops import Target
from tests.support.programs import open_files, python_path

WANTED = Target("2.15.1", "1", "cpython311", "1", tf_ops.sources_digest())
INFO = tfinfo.Guess("2.15.1", ["-D_GLIBCXX_USE_CXX11_ABI=1"], [])
LIMIT_S = 120
"""Guards against hanging, nothing else."""

PROGRAM = f"""
import sys
from hpcckpt.errors import BackendError
from hpcckpt.native import build, tf_ops, tfinfo
tf_ops.target = lambda library: tf_ops.Target{tuple(WANTED)!r}
tfinfo.resolve.__defaults__ = (None, {{}}, lambda: tfinfo.Guess{tuple(INFO)!r})
build._try = lambda library, made: None
try:
    print(tf_ops.find_or_build(tf_ops.OPS).read_text())
except BackendError as error:
    sys.exit(str(error))
"""
"""Find or build, with a TensorFlow 2.15.1 whatever is installed, and a library that need not load."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory for libraries, in this process and in others; and a TensorFlow 2.15.1."""
    place = tmp_path / "ops"
    monkeypatch.setenv("HPCCKPT_TF_OPS_DIR", str(place))
    monkeypatch.setenv("PYTHONPATH", python_path())
    monkeypatch.setattr(tf_ops, "target", lambda library: WANTED)
    monkeypatch.setattr(tfinfo.resolve, "__defaults__", (None, {}, lambda: INFO))
    monkeypatch.setattr(build, "_try", lambda library, made: None)
    place.mkdir()
    return place


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Have a compiler that does this, once "go" exists; return a file with a line for each of its calls."""

    def write(does: str) -> Path:
        script = f"""\
            #!/bin/sh
            echo $PPID >>{tmp_path}/calls
            while [ ! -e {tmp_path}/go ]; do sleep 0.02; done
            while [ "$1" != -o ]; do shift; done
            {does}
            """
        path = tmp_path / "cxx"
        path.write_text(textwrap.dedent(script), encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return tmp_path / "calls"

    return write


def start(errors: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def has_open(pid: int, suffix: str) -> bool:
    """Whether a process has the file of a lock open."""
    return any(path.endswith(suffix) for path in open_files(pid))


def calls(path: Path) -> list[int]:
    return [int(line) for line in path.read_text("utf-8").split()] if path.exists() else []


def libraries(place: Path) -> list[str]:
    """What there is but for the files of locks, which stay."""
    return [path.name for path in place.iterdir() if path.suffix not in {".lock", ".waiting"}]


def test_of_several_processes_one_builds_and_the_others_wait_for_it(
    place: Path, tmp_path: Path, compiler: Callable[[str], Path]
) -> None:
    called = compiler('echo built >"$2"')
    printed = tmp_path / "printed"
    with printed.open("a") as errors:  # at the end of the file, whichever process writes
        processes = [start(errors)]
        wait_for(lambda: calls(called))  # it has written its name into the lock, which the others read
        processes += [start(errors) for _ in range(2)]
    wait_for(lambda: "hpcckpt: waiting for the TensorFlow ops, which process" in printed.read_text("utf-8"))
    (tmp_path / "go").touch()
    outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    said = printed.read_text("utf-8")
    assert outputs == ["built\n\n"] * 3, said
    assert len(calls(called)) == 1
    assert libraries(place) == [WANTED.filename]
    assert f"hpcckpt: building the TensorFlow ops for TensorFlow 2.15.1, once, in {place}: about half a minute" in said
    assert "hpcckpt: built the TensorFlow ops in " in said


def test_of_all_that_wait_one_writes_a_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder, first = (place / f".{WANTED.filename}{suffix}" for suffix in (".lock", ".waiting"))
    monkeypatch.setenv("CXX", "/bin/true")
    with first.open("w") as speaker:  # locked until the process has ended: it may open the file long before it looks
        fcntl.flock(speaker, fcntl.LOCK_EX)
        with builder.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            second = start()
            wait_for(lambda: has_open(second.pid, ".waiting"))
            (place / WANTED.filename).write_text("built", encoding="utf-8")
        assert second.communicate(timeout=LIMIT_S) == ("built\n", "")


def test_after_a_killed_builder_another_one_builds_and_removes_what_it_left(
    place: Path, tmp_path: Path, compiler: Callable[[str], Path]
) -> None:
    called = compiler('echo built >"$2"')
    killed = start()
    wait_for(lambda: calls(called))
    waiting = start()
    wait_for(lambda: list(place.glob(".*.waiting")))
    killed.kill()
    killed.communicate(timeout=LIMIT_S)
    wait_for(lambda: len(calls(called)) == 2)
    (tmp_path / "go").touch()
    out, err = waiting.communicate(timeout=LIMIT_S)
    assert out == "built\n\n", err
    wait_for(lambda: libraries(place) == [WANTED.filename])  # its compiler may still be about to end


def test_who_waited_for_a_build_that_failed_gets_its_error_and_does_not_try_again(
    place: Path, tmp_path: Path, compiler: Callable[[str], Path]
) -> None:
    called = compiler("echo 'tensor.h: error: missing' >&2; exit 1")
    processes = [start() for _ in range(3)]
    wait_for(lambda: calls(called))
    wait_for(lambda: sum(has_open(process.pid, ".waiting") for process in processes) == 2)
    (tmp_path / "go").touch()
    errors = [process.communicate(timeout=LIMIT_S)[1] for process in processes]
    assert all("cannot be built for TensorFlow 2.15.1" in error for error in errors), errors
    assert all("tensor.h: error: missing" in error for error in errors)
    assert len(calls(called)) == 1
    with pytest.raises(BackendError, match="missing"):
        tf_ops.find_or_build()
    assert len(calls(called)) == 2  # a later one tries: the cause may be gone


def test_without_locks_in_the_file_system_each_process_builds(
    place: Path, tmp_path: Path, compiler: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    compiler('echo built >"$2"')
    (tmp_path / "go").touch()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    of_another = place / f"{build._prefix(WANTED.filename)}other"
    of_another.mkdir()
    assert tf_ops.find_or_build() == place / WANTED.filename
    assert of_another.exists()  # its builder may live


@pytest.mark.parametrize(
    ("tool", "environment", "command"),
    [
        ("apt-get", {}, r"apt-get install g\+\+"),
        ("dnf", {}, r"dnf install gcc-c\+\+"),
        ("apt-get", {"LMOD_CMD": "/opt/lmod"}, "module load gcc"),
        ("true", {}, r"export CXX=/path/to/g\+\+"),
    ],
)
def test_a_missing_compiler_is_one_error_that_names_one_command(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    environment: dict[str, str],
    command: str,
) -> None:
    for name in ("CXX", "LMOD_CMD", "MODULESHOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / tool).write_text("#!/bin/sh\n", encoding="utf-8")
    (bin_ / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_))
    with pytest.raises(
        BackendError, match=rf"no C\+\+ compiler \(c\+\+, .*\) is on the PATH; run: {command}$"
    ) as caught:
        tf_ops.find_or_build()
    assert caught.value.__suppress_context__
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777])
def test_a_cache_directory_that_others_can_write_is_refused(place: Path, mode: int, tmp_path: Path) -> None:
    place.chmod(mode)
    with pytest.raises(
        BackendError, match=rf"ops can be written by other users \(mode {mode:04o}\): chmod go-w {place}"
    ):
        tf_ops.find_or_build()
    assert list(place.iterdir()) == []
    (place / WANTED.filename).write_bytes(b"anyone's")
    with pytest.raises(BackendError, match=rf"are not loaded from {place}/.*: chmod go-w {place}$"):
        tf_ops.find_or_build()


def test_a_parent_of_the_cache_that_others_can_write_is_refused(place: Path) -> None:
    place.parent.chmod(0o770)  # they could put another directory in its place
    with pytest.raises(BackendError, match=f"chmod go-w {place.parent}"):
        tf_ops.find_or_build()


def test_an_install_that_cannot_be_written_builds_into_the_users_cache(
    place: Path, tmp_path: Path, compiler: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler('echo built >"$2"')
    (tmp_path / "go").touch()
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.delenv("HPCCKPT_TF_OPS_DIR")
    monkeypatch.setattr(tf_ops, "PACKAGE", tmp_path / "file" / "package")  # below a file nothing can be made
    monkeypatch.setattr(tf_ops, "INSTALLED", tmp_path / "file" / "package" / "installed")
    monkeypatch.setattr(tf_ops.Library, "source_files", lambda library: [])
    monkeypatch.setattr(tf_ops.Library, "sources", property(lambda library: tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert tf_ops.find_or_build() == tmp_path / "cache" / "hpcckpt" / "tf_ops" / WANTED.filename


def test_what_was_built_at_install_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCCKPT_TF_OPS_DIR")
    monkeypatch.setattr(tf_ops, "INSTALLED", place)
    (place / WANTED.filename).write_bytes(b"there")
    place.chmod(0o775)  # as the package itself: who can write there can write its code
    assert tf_ops.find_or_build() == place / WANTED.filename


def test_a_damaged_file_of_a_lock_is_as_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_bytes(b'{"builder": "pro')  # the builder was killed as it wrote
    with BuildLock(path, "what is built") as lock:
        assert not lock.failure
