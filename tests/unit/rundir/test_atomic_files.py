"""Files and directories that are overwritten whole keep their mode, and links to them their targets.

Devices, pipes and sockets are never overwritten.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from hpcckpt.errors import OptionError
from hpcckpt.rundir.atomic_files import atomic_directory, atomic_path

pytestmark = pytest.mark.one_case


def overwrite(path: Path, text: str, **options: bool) -> None:
    with atomic_path(path, is_overwriting=True, **options) as temporary:
        temporary.write_text(text, encoding="utf-8")


def overwrite_directory(path: Path, text: str) -> None:
    with atomic_directory(path, is_overwriting=True) as temporary:
        temporary.mkdir()
        (temporary / "file").write_text(text, encoding="utf-8")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o444])
def test_a_file_that_is_overwritten_keeps_its_mode(tmp_path, bits):
    path = tmp_path / "x"
    overwrite(path, "one")
    path.chmod(bits)
    overwrite(path, "two")
    assert (path.read_text(encoding="utf-8"), mode(path)) == ("two", bits)


def test_a_directory_that_is_overwritten_keeps_its_mode(tmp_path):
    overwrite_directory(tmp_path / "x", "one")
    (tmp_path / "x").chmod(0o700)
    overwrite_directory(tmp_path / "x", "two")
    assert ((tmp_path / "x/file").read_text(encoding="utf-8"), mode(tmp_path / "x")) == ("two", 0o700)


@pytest.mark.parametrize("write", [overwrite, overwrite_directory])
def test_a_link_that_is_overwritten_stays_and_its_target_is_replaced(tmp_path, write):
    (tmp_path / "real").mkdir()
    write(tmp_path / "real/x", "one")
    link = tmp_path / "link"
    link.symlink_to("real/x")
    write(link, "two")
    assert link.is_symlink()
    target = tmp_path / "real/x"
    assert (target if target.is_file() else target / "file").read_text(encoding="utf-8") == "two"
    assert (os.listdir(tmp_path / "real"), sorted(os.listdir(tmp_path))) == (["x"], ["link", "real"])


def test_a_link_to_no_file_yet_gets_its_target(tmp_path):
    (tmp_path / "link").symlink_to("x")
    overwrite(tmp_path / "link", "one")
    assert (tmp_path / "x").read_text(encoding="utf-8") == "one"


def test_within_a_run_directory_links_are_replaced_not_followed(tmp_path):
    (tmp_path / "theirs").write_text("theirs", encoding="utf-8")
    (tmp_path / "x").symlink_to("theirs")
    overwrite(tmp_path / "x", "ours", follows_links=False)
    assert (tmp_path / "theirs").read_text(encoding="utf-8") == "theirs"
    assert not (tmp_path / "x").is_symlink()


@pytest.mark.parametrize("write", [overwrite, overwrite_directory])
def test_where_no_mode_can_be_set_what_has_the_right_one_is_overwritten(tmp_path, write, monkeypatch):
    def refuse(*_args, **_more):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    write(tmp_path / "x", "one")
    for name in ("chmod", "fchmod"):
        monkeypatch.setattr(os, name, refuse)
    write(tmp_path / "x", "two")
    found = tmp_path / "x" if write is overwrite else tmp_path / "x/file"
    assert found.read_text(encoding="utf-8") == "two"


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # another /dev/null
    except PermissionError:
        pytest.skip("only root makes devices")


def make_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o666)


SPECIAL = {"device": make_device, "pipe": os.mkfifo, "socket": make_socket}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("write", [overwrite, overwrite_directory])
def test_what_is_neither_file_nor_directory_is_refused_and_stays(tmp_path, write, kind):
    SPECIAL[kind](tmp_path / "x")
    (tmp_path / "link").symlink_to("x")
    before = (tmp_path / "x").lstat()
    for name in ("x", "link"):
        with pytest.raises(OptionError, match=f"{name} is a {kind}; give the name of a "):
            write(tmp_path / name, "one")
    after = (tmp_path / "x").lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert sorted(os.listdir(tmp_path)) == ["link", "x"]


def test_without_permission_to_overwrite_a_pipe_is_no_file_to_force(tmp_path):
    os.mkfifo(tmp_path / "x")
    with pytest.raises(OptionError, match="is a pipe"), atomic_path(tmp_path / "x"):
        pass


def test_a_link_to_an_open_pipe_is_refused_by_its_own_name(tmp_path):
    reading, writing = os.pipe()
    (tmp_path / "link").symlink_to(f"/proc/self/fd/{writing}")
    with pytest.raises(OptionError, match="link is a pipe"):
        overwrite(tmp_path / "link", "one")
    os.close(reading)
    os.close(writing)


def test_within_a_run_directory_a_link_to_a_device_is_replaced(tmp_path):
    (tmp_path / "x").symlink_to(os.devnull)
    overwrite(tmp_path / "x", "ours", follows_links=False)
    assert not (tmp_path / "x").is_symlink()
