"""Plugins are loaded once, found by name, and refused with what to do about it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import hpcckpt.plugins
from hpcckpt.errors import BackendConflictError, BackendError, BackendNotFoundError, PluginError
from hpcckpt.native import plugins

pytestmark = [pytest.mark.one_case, pytest.mark.usefixtures("no_plugins")]
Compile = Callable[..., Path]
FAULTY = ("faulty.cpp", "second_file.cpp")
IN_FAULTY = ["echo", "faulty", "from_second_file", "slow", "slow_together"]


@pytest.fixture
def faulty(compile_plugin: Compile) -> Path:
    return compile_plugin(*FAULTY, name="faulty")


def test_all_backends_of_all_source_files_of_a_library_are_there(faulty: Path) -> None:
    assert [backend.name for backend in hpcckpt.plugins.load(faulty)] == IN_FAULTY
    assert list(plugins.loaded()) == IN_FAULTY
    assert {backend.origin for backend in plugins.loaded().values()} == {str(faulty)}


def test_loading_a_second_time_does_nothing(faulty: Path, tmp_path: Path) -> None:
    first = plugins.load(faulty)
    link = tmp_path / "link.so"
    link.symlink_to(faulty)
    assert plugins.load(str(faulty)) is first
    assert plugins.load(link) is first
    assert list(plugins.loaded()) == IN_FAULTY


def test_two_libraries_do_not_see_each_others_backends(faulty: Path, compile_plugin: Compile) -> None:
    other = compile_plugin("second_file.cpp", name="from_second_file")
    assert [backend.name for backend in plugins.load(other)] == ["from_second_file"]
    with pytest.raises(BackendConflictError):
        plugins.load(faulty)


def test_a_taken_name_is_refused_with_both_files_and_the_second_is_not_loaded(
    faulty: Path, compile_plugin: Compile
) -> None:
    other = compile_plugin("second_file.cpp", name="from_second_file")
    plugins.load(other)
    with pytest.raises(BackendConflictError, match="already registered") as caught:
        plugins.load(faulty)
    assert str(other) in str(caught.value)
    assert str(faulty) in str(caught.value)
    assert list(plugins.loaded()) == ["from_second_file"]


def test_a_path_that_does_not_exist_is_an_os_error_that_lists_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCCKPT_PLUGIN_PATH", f"{tmp_path}/one:{tmp_path}/two")
    with pytest.raises(OSError, match="does not exist") as caught:
        plugins.load("libnone.so")
    for place in ("libnone.so", f"{tmp_path}/one/libnone.so", f"{tmp_path}/two/libnone.so", "HPCCKPT_PLUGIN_PATH"):
        assert place in str(caught.value)
    with pytest.raises(PluginError, match="does not exist") as caught:
        plugins.load(tmp_path / "libnone.so")
    assert f"{tmp_path}/one" not in str(caught.value)  # a path is that path, and no other


def test_a_file_name_is_searched_for(faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCCKPT_PLUGIN_PATH", str(faulty.parent))
    assert plugins.load("libfaulty.so")[0].origin == str(faulty)


@pytest.mark.parametrize("file", ["libfaulty.so", "faulty.so"])
def test_a_backend_is_found_by_name(faulty: Path, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(faulty, tmp_path / file)
    monkeypatch.setenv("HPCCKPT_PLUGIN_PATH", f"/nonexistent::{tmp_path}")
    assert plugins.available()["faulty"] == tmp_path / file
    assert plugins.loaded() == {}
    assert plugins.find("faulty").origin == str(tmp_path / file)
    assert plugins.find("slow").origin == str(tmp_path / file)  # now that it is loaded


def test_the_first_directory_with_the_name_counts(
    faulty: Path, compile_plugin: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        shutil.copy(faulty, tmp_path / folder / "libfaulty.so")
    monkeypatch.setenv("HPCCKPT_PLUGIN_PATH", f"{tmp_path}/a:{tmp_path}/b")
    assert plugins.find("faulty").origin == f"{tmp_path}/a/libfaulty.so"


def test_an_unknown_name_is_answered_with_the_known_ones(faulty: Path) -> None:
    plugins.load(faulty)
    with pytest.raises(BackendNotFoundError, match=r"'nonesuch' not found; known: .*echo, faulty") as caught:
        plugins.find("nonesuch")
    for place in ("libnonesuch.so", "nonesuch.so", "HPCCKPT_PLUGIN_PATH", "lib/plugins"):
        assert place in str(caught.value)


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a b", "", "lib.so", "a\0b"])
def test_what_is_no_identifier_is_never_looked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_candidates", None)  # would be called
    with pytest.raises(BackendNotFoundError, match="C identifier"):
        plugins.find(name)


def test_a_library_without_the_backend_of_its_name_says_what_it_has(
    faulty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(faulty, tmp_path / "libmine.so")
    monkeypatch.setenv("HPCCKPT_PLUGIN_PATH", str(tmp_path))
    with pytest.raises(BackendError, match="has no backend 'mine', but echo, faulty"):
        plugins.find("mine")


REFUSED = {
    "too old": (["-DMAJOR=0"], "is too old: plugin ABI 0, need 1; build it again"),
    "too new": (["-DMAJOR=2"], "is too new: plugin ABI 2.0, and this hpcckpt has 1.0; upgrade it"),
    "a later minor": (["-DMINOR=7"], "is too new: plugin ABI 1.7"),
    "wrong platform": (["-DPLATFORM=0x50108"], "is for the wrong platform: s390x, 64 bits, big-endian; build it for"),
    "bad name": (['-DNAME="a b"'], "is damaged: a backend has the name b'a b'"),
    "hidden": (
        ["-fvisibility=hidden", "-Dhpcckpt_plugin_abi=other"],
        "is not a plugin: it exports no hpcckpt_plugin_abi; add HPCCKPT_REGISTER_BACKEND or TMCI_REGISTER_",
    ),
    "undefined symbol": (
        ["-DMISSING"],
        "cannot be loaded: undefined symbol: missing_function; link it to the library that defines it; `ldd -r ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_plugin_that_does_not_fit_is_refused_with_the_remedy(case: str, compile_plugin: Compile) -> None:
    flags, text = REFUSED[case]
    library = compile_plugin("refused.c", *flags)
    with pytest.raises(PluginError) as caught:
        plugins.load(library)
    assert text in str(caught.value)
    assert str(library) in str(caught.value)
    assert plugins.loaded() == {}
    assert plugins.inspect([library])[0].problem == str(caught.value)


@pytest.mark.parametrize(("number", "machine"), [(183, "aarch64"), (62, "x86_64"), (999, "ELF machine 999")])
def test_a_library_of_another_machine_is_of_the_wrong_platform(
    number: int, machine: str, compile_plugin: Compile, tmp_path: Path
) -> None:
    library = tmp_path / "libother.so"
    original = bytearray(compile_plugin("refused.c").read_bytes())
    if int.from_bytes(original[18:20], "little") == number:
        pytest.skip("this is that machine")
    original[18:20] = number.to_bytes(2, "little")
    library.write_bytes(original)
    with pytest.raises(PluginError, match=f"wrong platform: {machine}, 64 bits, little-endian"):
        plugins.load(library)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x7fELF", b"\x7fELF" + bytes(60)])
def test_a_file_that_is_no_library_is_refused(content: bytes, tmp_path: Path) -> None:
    library = tmp_path / "libtext.so"
    library.write_bytes(content)
    with pytest.raises(PluginError, match="is damaged: it is not a shared library"):
        plugins.load(library)


def test_success_without_an_instance_is_an_error(compile_plugin: Compile) -> None:
    (backend,) = plugins.load(compile_plugin("refused.c"))
    with pytest.raises(BackendError, match=r"refused\.Create returned success, and no instance"):
        backend.create()


def test_one_that_crashes_is_looked_into_without_harm(compile_plugin: Compile, faulty: Path) -> None:
    crashing = compile_plugin("refused.c", "-DCRASHES")
    first, second, third = plugins.inspect([faulty, crashing, faulty])
    assert [name for name, _ in first.backends] == IN_FAULTY
    assert first == third
    assert second.file == str(crashing)
    assert "crashes when it is loaded" in second.problem


def test_a_library_with_two_backends_of_one_name_is_refused(compile_plugin: Compile) -> None:
    library = str(compile_plugin("refused.c", "-DTWICE"))
    text = f"plugin {library} registers 'refused' twice; rename one of them"
    with pytest.raises(PluginError, match=re.escape(text)):
        plugins.load(library)
    assert plugins.loaded() == {}
    assert plugins.inspect([library]) == [plugins.PluginFile(library, problem=text)]


def test_what_a_plugin_prints_when_it_is_loaded_is_not_taken_for_an_answer(compile_plugin: Compile) -> None:
    printing = str(compile_plugin("refused.c", "-DPRINTS"))
    assert plugins.inspect([printing]) == [plugins.PluginFile(printing, (("refused", ()),))]


def test_one_that_never_returns_is_given_up(compile_plugin: Compile) -> None:
    blocking = str(compile_plugin("refused.c", "-DBLOCKS"))
    (told,) = plugins.inspect([blocking], limit_s=0.5)
    assert told == plugins.PluginFile(blocking, problem="does not return within 0.5 s when it is loaded")
