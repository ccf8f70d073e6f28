"""The library of TensorFlow ops: which one is loaded, what is said when there is none, and how it is built."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from hpcckpt.errors import BackendError, ConfigError
from hpcckpt.native import build, tf_ops, tfinfo
from hpcckpt.native.tf_ops import Target
from tests.support.programs import environment

WANTED = Target("2.15.1", "1", "cpython311", "1", tf_ops.sources_digest())
INFO = tfinfo.resolve(None, {}, lambda: tfinfo.Guess("2.15.1", ["-D_GLIBCXX_USE_CXX11_ABI=1"], []))
HAS_TF = find_spec("tensorflow") is not None


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory for libraries, and a TensorFlow 2.15.1 whatever is installed."""
    monkeypatch.setenv("HPCCKPT_TF_OPS_DIR", str(tmp_path / "ops"))
    monkeypatch.setattr(tf_ops, "target", lambda library: WANTED)
    for function in (tf_ops.load_ops, tf_ops._loaded):
        function.cache_clear()
    (tmp_path / "ops").mkdir()
    yield tmp_path / "ops"
    for function in (tf_ops.load_ops, tf_ops._loaded):
        function.cache_clear()


def test_a_name_says_what_a_library_is_made_for() -> None:
    assert Target.of_filename(WANTED.filename) == WANTED
    odd = Target("2.16.0-rc1+local", "", "cpython313", "2", "0123456789ab")
    assert Target.of_filename(odd.filename) == odd
    assert Target.of_filename("_tf_ops.so") is None


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ({}, None),
        ({"tensorflow": "2.14.0"}, "are built for TensorFlow 2.14.0, and 2.15.1 is installed"),
        ({"cxx11_abi": "0"}, "are built with _GLIBCXX_USE_CXX11_ABI=0, and TensorFlow 2.15.1 with 1"),
        ({"python": "cpython312"}, "are built for cpython312, and this is cpython311"),
        ({"numpy": "2"}, "are built for NumPy 2, and NumPy 1 is installed"),
        ({"sources": "0" * 12}, "are built from the sources of another hpcckpt"),
    ],
)
def test_a_library_for_something_else_is_not_loaded_and_the_remedy_is_named(
    place: Path, made: dict[str, str], text: str | None
) -> None:
    (place / WANTED._replace(**made).filename).write_bytes(b"not loaded")
    if text is None:
        assert tf_ops.find(WANTED) == place / WANTED.filename
        return
    with pytest.raises(BackendError, match=f"{text}; run: python -m hpcckpt.native.build"):
        tf_ops.find_built()
    assert tf_ops.loaded_if_built() is None


def test_no_library_at_all_is_said_with_the_remedy(place: Path) -> None:
    with pytest.raises(BackendError, match=rf"not built for TensorFlow 2\.15\.1 \(none in {place}\); run: python -m"):
        tf_ops.find_built()


@pytest.mark.skipif(not HAS_TF, reason="no TensorFlow")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_library_that_does_not_load_is_nothing_where_it_is_not_needed_and_says_why(place: Path) -> None:
    (place / WANTED.filename).write_bytes(b"no library")
    text = r"do not load in TensorFlow .*; run: python -m hpcckpt\.native\.build --force"
    assert tf_ops.loaded_if_built() is None
    assert re.search(text, tf_ops.why_not_loaded())
    with pytest.raises(BackendError, match=text):
        tf_ops.load_ops()


def test_without_anything_native_there_are_no_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCCKPT_NO_NATIVE", "1")
    assert tf_ops.loaded_if_built() is None
    assert tf_ops.why_not_loaded() == ""


# -- building --------------------------------------------------------------------------------------


def test_what_is_there_is_not_built_again(place: Path) -> None:
    (place / WANTED.filename).write_bytes(b"there")
    assert build.build(INFO) == place / WANTED.filename


def test_a_compiler_that_is_named_and_missing_is_said_with_the_remedy(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(ConfigError, match="CXX is no-such-compiler, which is not on the PATH; run: unset CXX"):
        build.build(INFO)
    assert list(place.iterdir()) == []


def test_a_wrong_abi_is_refused_before_anything_is_compiled(place: Path) -> None:
    wrong = tfinfo.resolve(
        None, {"HPCCKPT_TF_EXTRA_CXXFLAGS": "-D_GLIBCXX_USE_CXX11_ABI=0"}, lambda: tfinfo.Guess("", [], [])
    )
    with pytest.raises(
        ConfigError, match=r"HPCCKPT_TF_EXTRA_CXXFLAGS says _GLIBCXX_USE_CXX11_ABI=0.*2\.15\.1 was compiled with 1"
    ):
        build.build(wrong)


def test_what_does_not_compile_leaves_nothing_behind(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text("#!/bin/sh\necho 'tensor.h: error: missing' >&2\nexit 1\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(
        ConfigError, match=r"(?s)do not compile against TensorFlow 2\.15\.1:.*missing.*hpcckpt\.native\.tfinfo"
    ):
        build.build(INFO)
    assert [path.suffix for path in place.iterdir()] == [".lock"]


def test_what_compiles_and_does_not_load_is_not_put_in_place(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho junk >"$2"\n', encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    kept = place / WANTED._replace(sources="0" * 12).filename
    kept.write_bytes(b"older")
    with pytest.raises(ConfigError, match="were built and do not load"):
        build.build(INFO)
    assert list(place.glob("_*")) == [kept]


def test_a_new_library_takes_the_place_of_older_ones_in_the_package_alone(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho new >"$2"\n', encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(build, "_try", lambda library, made: None)
    older, other = WANTED._replace(sources="0" * 12), WANTED._replace(tensorflow="2.14.0")
    for each in (WANTED, older, other):
        (place / each.filename).write_bytes(b"older")
    assert build.build(INFO, force=True).read_bytes() == b"new\n"
    # A cache is shared by installations; another one may use its library on another node.
    assert {path.name for path in place.glob("_*")} == {WANTED.filename, older.filename, other.filename}
    monkeypatch.setattr(tf_ops, "PACKAGE", place)
    assert build.build(INFO, force=True).read_bytes() == b"new\n"
    assert {path.name for path in place.glob("_*")} == {WANTED.filename, other.filename}


def test_where_the_package_cannot_be_written_the_users_cache_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(tf_ops, "PACKAGE", tmp_path / "file" / "package")  # below a file nothing can be made
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HPCCKPT_TF_OPS_DIR", raising=False)
    assert build.writable_directory() == tmp_path / "cache" / "hpcckpt" / "tf_ops"
    monkeypatch.setenv("HPCCKPT_TF_OPS_DIR", str(tmp_path / "file" / "mine"))
    with pytest.raises(ConfigError, match=r"\(.*file/mine: Not a directory\); run: export HPCCKPT_TF_OPS_DIR="):
        build.writable_directory()


def test_a_user_without_a_home_has_the_ops_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "HPCCKPT_TF_OPS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert tf_ops.directories() == [tf_ops.INSTALLED, tf_ops.PACKAGE]


def test_an_empty_umask_does_not_make_the_ops_writable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCCKPT_TF_OPS_DIR", str(tmp_path / "cache" / "ops"))
    before = os.umask(0)
    try:
        assert build.writable_directory() == tmp_path / "cache" / "ops"
    finally:
        os.umask(before)


@pytest.mark.skipif(not HAS_TF, reason="no TensorFlow")
@pytest.mark.skipif(os.environ.get("HPCCKPT_PURE", "0") != "0", reason="set up without anything native")
def test_set_up_has_built_the_ops_for_the_tensorflow_that_is_installed() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "hpcckpt.native.tf_ops"]
    env = environment()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).name.startswith("_tf_ops-tf")
