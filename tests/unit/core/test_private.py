"""Directories that only this user may write, and files that no other user can have written."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcckpt.core import private_dirs
from hpcckpt.errors import UnsafeDirectoryError

pytestmark = pytest.mark.one_case

ANOTHER = os.geteuid() + 1


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory like ``/tmp``."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    return tmp_path / "shared"


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_a_new_directory_is_for_its_owner_alone_whatever_the_umask(shared: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert private_dirs.make_private(shared / "ours")
        assert not private_dirs.make_private(shared / "ours")
    finally:
        os.umask(before)
    assert mode_of(shared / "ours") == 0o700


@pytest.mark.parametrize("check", [private_dirs.make_private, private_dirs.check_private])
def test_one_that_others_could_only_read_is_closed_to_them(shared: Path, check) -> None:
    (shared / "ours").mkdir()
    (shared / "ours").chmod(0o755)
    check(shared / "ours")
    assert mode_of(shared / "ours") == 0o700


@pytest.mark.parametrize("check", [private_dirs.make_private, private_dirs.check_private])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
def test_one_that_others_can_write_is_refused_with_its_mode(shared: Path, check, mode: int) -> None:
    (shared / "ours").mkdir()
    (shared / "ours").chmod(mode)
    with pytest.raises(
        UnsafeDirectoryError, match=rf"ours can be written by other users \(mode {mode:04o}\).*Remove it"
    ):
        check(shared / "ours")
    assert mode_of(shared / "ours") == mode


@pytest.mark.parametrize("check", [private_dirs.make_private, private_dirs.check_private])
def test_one_of_another_owner_is_refused_with_both_users(shared: Path, check, monkeypatch: pytest.MonkeyPatch) -> None:
    private_dirs.make_private(shared / "ours")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    with pytest.raises(UnsafeDirectoryError, match=rf"belongs to user .*{owner}\)? \(mode 0700\), not to user"):
        check(shared / "ours")


@pytest.mark.parametrize("check", [private_dirs.make_private, private_dirs.check_private])
def test_neither_a_link_nor_a_file_is_a_directory_of_ours(shared: Path, check) -> None:
    (shared / "elsewhere").mkdir()
    (shared / "link").symlink_to(shared / "elsewhere")
    (shared / "file").touch()
    with pytest.raises(UnsafeDirectoryError, match="link is a symbolic link"):
        check(shared / "link")
    with pytest.raises(UnsafeDirectoryError, match="file is not a directory"):
        check(shared / "file")


@pytest.mark.parametrize("check", [private_dirs.make_private, private_dirs.check_private])
def test_a_place_where_all_users_can_replace_it_is_refused(shared: Path, check) -> None:
    private_dirs.make_private(shared / "ours")
    shared.chmod(0o777)
    with pytest.raises(UnsafeDirectoryError, match=r"shared has mode 0777: all users can replace .*mkdir -m 700"):
        check(shared / "ours")
    shared.chmod(0o1777)
    check(shared / "ours")


def test_one_that_is_planted_between_two_looks_is_refused(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user makes it after we found that there is none, and before we make ours."""
    mkdir = os.mkdir

    def late(name: str, mode: int, *, dir_fd: int) -> None:
        (shared / "ours").mkdir()
        (shared / "ours").chmod(0o777)
        mkdir(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", late)
    monkeypatch.setattr(Path, "mkdir", lambda path: mkdir(path))
    with pytest.raises(UnsafeDirectoryError, match="can be written by other users"):
        private_dirs.make_private(shared / "ours")


def test_what_does_not_exist_is_nobody_elses(shared: Path) -> None:
    private_dirs.check_private(shared / "ours")
    private_dirs.check_private(shared / "absent" / "ours")


def test_code_is_trusted_only_from_places_that_nobody_else_writes(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "lib" / "code.so"
    file.parent.mkdir(mode=0o755)
    file.touch()
    file.chmod(0o755)
    assert private_dirs.why_not_safe(file) == ""
    for place in (file, file.parent, tmp_path):
        before = mode_of(place)
        for bit in (0o002, 0o020):
            place.chmod(before | bit)
            text = f"{place} can be written by other users (mode {before | bit:04o}): chmod go-w {place}"
            assert private_dirs.why_not_safe(file) == text
        place.chmod(before)
    monkeypatch.setattr(Path, "stat", lambda _: SimpleNamespace(st_uid=ANOTHER, st_mode=0o755))
    assert private_dirs.why_not_safe(file) == f"{file} belongs to {private_dirs.user_text(ANOTHER)}"
    assert private_dirs.why_not_safe(file, owners=[ANOTHER]) == ""
