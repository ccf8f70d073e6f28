"""Where TensorFlow is, and how to compile against it: from the environment, the file, or TensorFlow itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.errors import ConfigError
from hpcckpt.native import tfinfo
from hpcckpt.native.tfinfo import Guess, resolve

pytestmark = pytest.mark.one_case

SAID = Guess(
    "2.15.1",
    ["-I/tf/include", "-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17"],
    ["-L/tf", "-l:libtensorflow_framework.so.2"],
)


def ask() -> Guess:
    return SAID


def written(directory: Path, content: Any) -> Path:
    path = directory / "tensorflow.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_a_file_of_nulls_is_guessed_from_tensorflow(tmp_path: Path) -> None:
    info = resolve(written(tmp_path, dict.fromkeys(tfinfo.KEYS)), {}, ask)
    assert info.version == "2.15.1"
    assert info.libraries.values == (":libtensorflow_framework.so.2",)
    assert info.library_dirs.values == ("/tf",)
    assert info.include_dirs.values == ("/tf/include",)
    assert info.extra_cxxflags.values == ("-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17")
    assert info.cxx11_abi == "1"
    assert {getattr(info, key).source for key in tfinfo.KEYS} == {"tf.sysconfig"}


def test_the_file_that_comes_with_the_package_has_tmcis_keys_and_guesses_all() -> None:
    assert json.loads(tfinfo.FILE.read_bytes()) == dict.fromkeys(
        ("libraries", "library_dirs", "include_dirs", "extra_cxxflags")
    )
    assert resolve(None, {}, ask) == resolve(tfinfo.FILE, {}, ask)


def test_the_environment_goes_before_the_file_and_the_file_before_the_guess(tmp_path: Path) -> None:
    path = written(tmp_path, {"libraries": ["tensorflow_cc"], "include_dirs": "/one", "extra_cxxflags": ["-DX"]})
    environ = {
        "HPCCKPT_TENSORFLOW_JSON": str(path),
        "HPCCKPT_TF_INCLUDE_DIRS": "/a:/b c",
        "HPCCKPT_TF_EXTRA_CXXFLAGS": "-D_GLIBCXX_USE_CXX11_ABI=0 '-DY=a b'",
    }
    info = resolve(None, environ, ask)
    assert info.libraries == tfinfo.Setting(("tensorflow_cc",), str(path))
    assert info.library_dirs == tfinfo.Setting(("/tf",), "tf.sysconfig")
    assert info.include_dirs == tfinfo.Setting(("/a", "/b c"), "HPCCKPT_TF_INCLUDE_DIRS")
    assert info.extra_cxxflags.values == ("-D_GLIBCXX_USE_CXX11_ABI=0", "-DY=a b")
    assert info.cxx11_abi == "0"
    assert info.compile_flags[-4:] == ["-isystem", "/a", "-isystem", "/b c"]
    assert info.link_flags == ["-L/tf", "-ltensorflow_cc"]


def test_an_empty_list_is_no_guess(tmp_path: Path) -> None:
    info = resolve(written(tmp_path, {"extra_cxxflags": []}), {}, ask)
    assert info.extra_cxxflags.values == ()
    assert info.cxx11_abi == ""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is not JSON"),
        ([], "not an object with the keys libraries, library_dirs, include_dirs, extra_cxxflags"),
        (
            {"libs": None, "libraries": [1], "include_dirs": 2},
            "libs: unknown.*libraries: neither.*include_dirs: neither",
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_every_problem(content: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        resolve(written(tmp_path, content), {}, ask)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.json: No such file.*HPCCKPT_TENSORFLOW_JSON"):
        resolve(tmp_path / "gone.json", {}, ask)


def test_it_is_printed_for_people_and_for_programs(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(tfinfo.resolve, "__defaults__", (None, {}, ask))
    assert tfinfo.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "TensorFlow 2.15.1, CXX11_ABI=1 (from tf.sysconfig)",
        "libraries       tf.sysconfig  :libtensorflow_framework.so.2",
        "library_dirs    tf.sysconfig  /tf",
        "include_dirs    tf.sysconfig  /tf/include",
        "extra_cxxflags  tf.sysconfig  -D_GLIBCXX_USE_CXX11_ABI=1",
        "                              --std=c++17",
    ]
    assert tfinfo.main(["--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tensorflow"] == "2.15.1"
    assert told["include_dirs"] == ["/tf/include"]
    assert told["sources"]["libraries"] == "tf.sysconfig"
    assert tfinfo.main(["--file", "/nowhere.json"]) == 1
    assert "hpcckpt: /nowhere.json: No such file" in capsys.readouterr().err
