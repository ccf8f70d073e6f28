"""Renames, links and removals whose answer was lost: what was done counts as done, and nothing else does."""

from __future__ import annotations

import ast
import ctypes
import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcckpt
from hpcckpt.core import files

pytestmark = pytest.mark.one_case

FAILED = r"\[Errno"
CODES = (errno.ENOENT, errno.EIO, errno.ESTALE)


@pytest.fixture(params=CODES, ids=errno.errorcode.get)
def code(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch, code: int) -> Callable[..., None]:
    """Have a function of ``os`` report an error, whether or not it does what it is asked to."""

    def patch(name: str, *, is_done: bool) -> None:
        really = getattr(os, name)

        def call(*args: Any, **options: Any) -> None:
            if is_done:
                really(*args, **options)
            raise OSError(code, os.strerror(code), str(args[0]))

        monkeypatch.setattr(os, name, call)

    return patch


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "inner").write_text("text", encoding="utf-8")
    (tmp_path / "file").write_text("text", encoding="utf-8")
    return tmp_path


def test_a_rename_that_was_done_succeeds(place, losing):
    losing("rename", is_done=True)
    files.rename(place / "a", place / "b")
    assert (place / "b" / "inner").exists()


def test_a_rename_that_was_not_done_fails(place, losing, code):
    losing("rename", is_done=False)
    with pytest.raises(OSError, match=FAILED) as caught:
        files.rename(place / "a", place / "b")
    assert caught.value.errno == code


def test_a_rename_whose_target_is_something_else_fails(place, losing):
    """The source is gone, and another job has made the target."""
    losing("rename", is_done=True)
    with pytest.raises(OSError, match=FAILED):
        files.rename(place / "a", place / "b", lambda: False)


def test_a_link_that_was_made_succeeds(place, losing):
    losing("link", is_done=True)
    files.link(place / "file", place / "other")
    assert (place / "file").stat().st_nlink == 2


def test_a_link_that_was_made_when_it_is_repeated_succeeds(place, monkeypatch):
    """The client repeats a request whose answer was lost, and is answered that the name is taken."""
    link = os.link

    def twice(*args: Any, **options: Any) -> None:
        link(*args, **options)
        link(*args, **options)

    monkeypatch.setattr(os, "link", twice)
    files.link(place / "file", place / "other")


def test_a_link_to_a_name_that_another_file_has_is_refused(place):
    (place / "other").write_text("text", encoding="utf-8")
    with pytest.raises(FileExistsError):
        files.link(place / "file", place / "other")


def test_a_file_that_was_removed_is_removed(place, losing):
    losing("unlink", is_done=True)
    files.unlink(place / "file")
    assert not (place / "file").exists()


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE], indirect=True)
def test_a_file_that_was_not_removed_is_an_error(place, losing):
    losing("unlink", is_done=False)
    with pytest.raises(OSError, match=FAILED):
        files.unlink(place / "file")


def test_a_file_that_is_not_there_is_no_error(place):
    assert files.unlink(place / "file")
    assert not files.unlink(place / "file")


@pytest.mark.parametrize("name", ["unlink", "rmdir"])
def test_a_tree_is_removed_though_each_answer_is_lost(place, losing, name):
    losing(name, is_done=True)
    files.remove_tree(place / "a")
    assert not (place / "a").exists()


def test_a_tree_of_which_something_stays_is_an_error(place, losing):
    losing("rmdir", is_done=False)
    with pytest.raises(OSError, match=FAILED):
        files.remove_tree(place / "a")


def test_a_directory_that_is_removed_before_its_file_is_made_is_made_again(tmp_path):
    made = tmp_path / "side"

    def act() -> str:
        if next(removals, False):
            made.rmdir()
        (made / "file").touch()
        return "made"

    removals = iter([True, True])
    assert files.in_made_directory(made, act) == "made"
    assert (made / "file").exists()


def test_a_directory_that_exists_and_may_not_be_made_is_used(place, monkeypatch):
    """As on file systems that report EROFS or EACCES before EEXIST."""

    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    assert files.in_made_directory(place / "a", lambda: "made") == "made"
    with pytest.raises(PermissionError):
        files.in_made_directory(place / "new", lambda: "made")


def test_a_directory_that_is_removed_each_time_is_an_error(tmp_path):
    made = tmp_path / "side"

    def act() -> None:
        made.rmdir()
        (made / "file").touch()

    with pytest.raises(FileNotFoundError):
        files.in_made_directory(made, act)


@pytest.mark.parametrize("is_done", [True, False])
def test_an_exchange_counts_if_it_was_done(place, monkeypatch, code, is_done):
    (place / "b").mkdir()
    libc = ctypes.CDLL(None, use_errno=True)

    class Losing:
        def renameat2(self, *args: Any) -> int:
            if is_done:
                assert libc.renameat2(*args) == 0
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_args, **_options: Losing())
    if is_done:
        files.exchange(place / "a", place / "b", place / "spare")
        assert (place / "b" / "inner").exists()
    else:
        with pytest.raises(OSError, match=FAILED):
            files.exchange(place / "a", place / "b", place / "spare")
        assert (place / "a" / "inner").exists()


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_an_exchange_by_renames_that_fails_gives_all_names_back(place, monkeypatch, failing):
    (place / "b").mkdir()
    rename, asked = os.rename, []

    def call(source: Any, target: Any) -> None:
        asked.append(source)
        if len(asked) == failing:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(source))
        rename(source, target)

    monkeypatch.setattr(ctypes, "CDLL", lambda *_args, **_options: object())
    monkeypatch.setattr(os, "rename", call)
    with pytest.raises(PermissionError):
        files.exchange(place / "a", place / "b", place / "spare")
    assert (place / "a" / "inner").exists()
    assert sorted(os.listdir(place)) == ["a", "b", "file"]


@pytest.mark.parametrize("name", ["pread", "write"])
def test_a_transfer_that_is_cut_short_is_continued(monkeypatch, tmp_path, name):
    really = getattr(os, name)
    halved = {
        "pread": lambda fd, nbytes, offset: really(fd, -(-nbytes // 2), offset),
        "write": lambda fd, data: really(fd, data[: -(-len(data) // 2)]),
    }
    monkeypatch.setattr(os, name, halved[name])
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    files.write_whole(fd, b"0123456789")
    assert files.read_at(fd, 10, 0) == b"0123456789"
    assert files.read_at(fd, 10, 4) == b"456789"
    os.close(fd)


def test_a_write_that_moves_nothing_is_an_error_and_not_repeated_for_ever(monkeypatch):
    answers = iter([3, 0])
    monkeypatch.setattr(os, "write", lambda _fd, _data: next(answers))
    with pytest.raises(OSError, match="Input/output error"):
        files.write_whole(0, b"0123456789")


FILE_SERVER = """
import fcntl, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDWR)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])
fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("has it", flush=True)
signal.sigwait([signal.SIGURG])  # the kernel asks for it
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs leases")
def test_a_file_on_which_a_file_server_has_a_lease_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    command = [sys.executable, "-c", FILE_SERVER, tmp_path / "file"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        if not server.stdout.readline():
            pytest.skip("no leases on this file system")
        assert files.read_bounded(str(tmp_path / "file"), 100) == b"content"
    assert server.returncode == 0


def test_a_link_in_place_of_a_directory_has_no_size(place):
    (place / "link").symlink_to(place / "a")
    (place / "a" / "link").symlink_to(place)
    assert files.tree(place / "link") == []
    assert sorted(stat.S_ISREG(each.st_mode) for each in files.tree(place / "a")) == [False, True]


def test_directories_nested_deeper_than_python_recurses_are_seen_and_named(place):
    deep, here = 1200, place / "a"
    for _ in range(deep):
        here = here / "d"
        os.mkdir(here)
    try:
        assert len(files.tree(place / "a")) == deep + 1
        if sys.version_info >= (3, 13):  # whose shutil.rmtree does not recurse
            files.remove_tree(place / "a")
            assert not (place / "a").exists()
        else:
            with pytest.raises(OSError, match=r"nested too deeply.*rm -rf"):
                files.remove_tree(place / "a")
    finally:
        subprocess.run(["rm", "-rf", str(place / "a")], check=True)


RAW = {("os", name) for name in ("rename", "renames", "replace", "link", "unlink", "remove")} | {("shutil", "rmtree")}
RAW |= {("os", "pread"), ("os", "write")}  # which may move less than was asked for
METHODS = {"unlink", "rename", "hardlink_to"}
EXEMPT = ("core/files.py", "tools/doctor/", "testing/")
"""The functions themselves; what looks at a file system to say what it can do; what damages files on purpose."""


def _raw_calls(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value).rpartition(".")[2]
            is_raw = (owner, node.attr) in RAW or (node.attr in METHODS and owner not in {"files", "_files", "os"})
            if is_raw:
                found.append(f"{path.name}:{node.lineno}: {owner}.{node.attr}")
        if isinstance(node, ast.keyword) and node.arg == "ignore_errors":
            found = [text for text in found if f":{node.value.lineno}: shutil.rmtree" not in text]
    return found


def test_the_library_renames_links_removes_reads_and_writes_in_no_other_way():
    root = Path(hpcckpt.__file__).parent
    paths = [path for path in root.rglob("*.py") if not str(path.relative_to(root)).startswith(EXEMPT)]
    assert len(paths) > 300
    assert [call for path in paths for call in _raw_calls(path)] == []
