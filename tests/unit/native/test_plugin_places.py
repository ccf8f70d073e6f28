"""Plugins are found only where only this user and root can put them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcckpt.core.private_dirs import why_not_safe
from hpcckpt.errors import BackendNotFoundError
from hpcckpt.native import plugins

pytestmark = pytest.mark.skipif("null" not in plugins.available(), reason="the samples are not built")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the search path with one plugin, in a directory of this user."""
    directory = tmp_path / "above" / "plugins"
    directory.mkdir(parents=True, mode=0o755)
    for each in (tmp_path, tmp_path / "above", directory):
        each.chmod(0o755)
    shutil.copy(plugins.available()["null"], directory / "libplaced.so")
    (directory / "libplaced.so").chmod(0o755)
    monkeypatch.setenv(plugins.PATH_VARIABLE, str(directory))
    return directory


def listed() -> list[dict[str, str]]:
    command = [sys.executable, "-m", "hpcckpt", "backends", "--json"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    return [backend for backend in json.loads(text)["backends"] if backend["name"].startswith("plugin")]


def test_a_plugin_in_a_directory_of_our_own_is_found(place):
    assert plugins.available()["placed"] == place / "libplaced.so"
    assert plugins.skipped() == {}
    assert why_not_safe(place) == ""


UNSAFE = {
    "directory, all": ("", 0o777),
    "directory, group": ("", 0o775),
    "directory, sticky": ("", 0o1777),
    "file": ("libplaced.so", 0o766),
    "file, group": ("libplaced.so", 0o775),
    "parent": ("..", 0o777),
    "parent, group": ("..", 0o770),
}


@pytest.mark.parametrize("what", UNSAFE)
def test_what_others_can_write_is_skipped_and_named(place, what):
    name, mode = UNSAFE[what]
    changed = (place / name).resolve()
    changed.chmod(mode)
    assert "placed" not in plugins.available()
    (reason,) = plugins.skipped().values()
    assert f"{changed} can be written by other users (mode {mode:04o}): chmod go-w {changed}" in reason
    with pytest.raises(BackendNotFoundError, match="chmod go-w"):
        plugins.find("placed")
    changed.chmod(mode & ~0o022)
    assert "placed" in plugins.available()


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give files to others")
@pytest.mark.parametrize("name", ["", "libplaced.so", ".."])
def test_what_others_own_is_skipped(place, name):
    os.chown(place / name, 54321, 54321)
    assert "placed" not in plugins.available()
    (reason,) = plugins.skipped().values()
    assert "belongs to user 54321" in reason


def test_a_link_to_what_others_can_write_is_skipped(place, tmp_path):
    (tmp_path / "open").mkdir()
    (place / "libplaced.so").rename(tmp_path / "open" / "libplaced.so")
    (tmp_path / "open").chmod(0o777)
    (place / "libplaced.so").symlink_to(tmp_path / "open" / "libplaced.so")
    assert "placed" not in plugins.available()


def test_entries_of_a_sticky_directory_above_cannot_be_replaced(place):
    place.parent.chmod(0o1777)
    assert "placed" in plugins.available()


def test_backends_lists_what_is_skipped_and_loads_nothing_of_it(place):
    place.chmod(0o777)
    (found,) = [each for each in listed() if str(place) in each["origin"]]
    assert "can be written by other users" in found["problem"]


def test_a_path_that_the_program_gives_is_loaded_from_anywhere(place):
    place.chmod(0o777)
    code = "import sys, hpcckpt as hc; print(hc.plugins.load(sys.argv[1])[0].name)"
    command = [sys.executable, "-c", code, str(place / "libplaced.so")]
    assert subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout.strip()
