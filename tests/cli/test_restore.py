"""``hpcckpt restore`` to formats that need no framework."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import hpcckpt as hc

pytestmark = pytest.mark.one_case

Cli = Callable[..., Any]


def load_npz(path: Path) -> dict[str, Any]:
    with np.load(path) as found:
        return dict(found)


@pytest.mark.parametrize("file_format", ["npz", "safetensors"])
def test_every_value_comes_back(file_format: str, cli: Cli, saved: Path, tmp_path: Path) -> None:
    out = tmp_path / f"out.{file_format}"
    result = cli("restore", saved, 20, "--out", out, "--json")
    assert result.code == 0
    assert set(result.json) == {"path", "format", "step", "ranks", "tensors", "nbytes", "widened", "left_out"}
    assert (result.json["format"], result.json["step"], result.json["ranks"]) == (file_format, 20, 3)
    expected = hc.load(saved / "step-0000000020")
    found = load_npz(out) if file_format == "npz" else load_file(out)
    assert set(found) == set(expected)
    for name, value in expected.items():
        wanted = value.astype(np.float32) if file_format == "npz" and name == "half" else value
        assert found[name].dtype == wanted.dtype
        np.testing.assert_array_equal(found[name], wanted)


def test_narrow_types_become_float32_in_npz_and_it_is_said(cli: Cli, saved: Path, tmp_path: Path) -> None:
    result = cli("restore", saved, "--out", tmp_path / "o.npz")
    assert "as float32, because .npz has no narrower type for them: half" in result.err
    assert f"wrote {tmp_path / 'o.npz'} (9 tensors, " in result.err
    assert result.err.endswith(") from step 30 (ranks 3 -> 1)\n")
    assert result.out == ""
    assert cli("restore", saved, "--out", tmp_path / "p.npz", "-q").err == ""


def test_large_tensors_are_written_piece_by_piece(monkeypatch: pytest.MonkeyPatch, cli: Cli, tmp_path: Path) -> None:
    monkeypatch.setattr("hpcckpt.restoring.segments.pieces.__defaults__", (1000,))
    state = {"w": np.random.default_rng(0).normal(size=(7, 1, 41, 13)), "s": np.float32(3), "e": np.empty((0, 4))}
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, state)
    for name in ("o.npz", "o.safetensors"):
        assert cli("restore", tmp_path / "run", "--out", tmp_path / name).code == 0
    for found in (load_npz(tmp_path / "o.npz"), load_file(tmp_path / "o.safetensors")):
        for key, value in state.items():
            np.testing.assert_array_equal(found[key], value)


def test_only_and_no_optimizer_choose_tensors(cli: Cli, saved: Path, tmp_path: Path) -> None:
    cli("restore", saved, "--out", tmp_path / "a.npz", "--only", "model/*", "--only", "table")
    assert set(load_npz(tmp_path / "a.npz")) == {"model/dense/bias", "model/dense/kernel", "table"}
    cli("restore", saved, "--out", tmp_path / "b.npz", "--no-optimizer")
    assert not any("optimizer" in name for name in load_npz(tmp_path / "b.npz"))


def test_best(cli: Cli, saved: Path, tmp_path: Path) -> None:
    assert cli("restore", saved, "best", "--out", tmp_path / "o.npz", "--json").json["step"] == 20


def test_a_file_is_never_overwritten_unasked(cli: Cli, saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.npz"
    out.write_text("mine", encoding="utf-8")
    result = cli("restore", saved, "--out", out, "--json")
    assert (result.code, result.json["error"]["kind"]) == (2, "option")
    assert "--force" in result.err
    assert out.read_text(encoding="utf-8") == "mine"
    assert cli("restore", saved, "--out", out, "--force").code == 0
    assert len(load_npz(out)) == 9


def test_nor_is_one_that_appears_meanwhile(
    monkeypatch: pytest.MonkeyPatch, cli: Cli, saved: Path, tmp_path: Path
) -> None:
    out = tmp_path / "o.npz"
    monkeypatch.setattr(
        "hpcckpt.tools.convert.write_npz.write_npz",
        lambda path, *_: [path.touch(), out.write_text("theirs", encoding="utf-8")],
    )
    assert cli("restore", saved, "--out", out).code == 2
    assert out.read_text(encoding="utf-8") == "theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.npz", "run"]


def test_file_systems_without_hard_links(
    monkeypatch: pytest.MonkeyPatch, cli: Cli, saved: Path, tmp_path: Path
) -> None:
    def link(*_: object, **_options: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("os.link", link)
    assert cli("restore", saved, "--out", tmp_path / "o.npz").code == 0


@pytest.mark.parametrize(("code", "number"), [(7, errno.ENOSPC), (7, errno.EDQUOT), (1, errno.EIO), (1, errno.EROFS)])
def test_what_the_disk_says(
    code: int, number: int, monkeypatch: pytest.MonkeyPatch, cli: Cli, saved: Path, tmp_path: Path
) -> None:
    def fail(path: Path, *_: object) -> None:
        path.write_text("half", encoding="utf-8")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("hpcckpt.tools.convert.write_safetensors.write_safetensors", fail)
    assert cli("restore", saved, "--out", tmp_path / "o.safetensors").code == code
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_damage_exits_with_3_and_leaves_no_file(cli: Cli, saved: Path, tmp_path: Path, damage: Any) -> None:
    damage.flip(damage.first_file(saved / "step-0000000030"), -1)
    for out in (tmp_path / "o.npz", tmp_path / "o.safetensors"):
        assert cli("restore", saved, 30, "--out", out).code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not (saved / ".pins").exists()


def test_damage_is_recorded_so_the_next_command_takes_an_older_step(
    cli: Cli, saved: Path, tmp_path: Path, damage: Any
) -> None:
    damage.flip(damage.first_file(saved / "step-0000000030"), -1)
    assert cli("restore", saved, "--out", tmp_path / "o.npz").code == 3
    again = cli("restore", saved, "--out", tmp_path / "o.npz")
    assert again.code == 0
    assert "step 30 is passed over for step 20" in again.err


def test_absence_exits_with_4(cli: Cli, saved: Path, tmp_path: Path) -> None:
    assert cli("restore", saved, 99, "--out", tmp_path / "o.npz").code == 4


@pytest.mark.parametrize(
    "words",
    [
        ["--out", "o.dat"],
        ["--out", "o.npz", "--to", "hdf"],
        ["--out", "o.npz", "--only", "nothing*"],
        ["--out", "nowhere/o.npz"],
        ["--out", "o.h5", "--to", "weights.h5", "--model", "m.json"],
        ["--out", "o.npz", "--model", "m.json"],
        [],
    ],
)
def test_usage(words: list[str], cli: Cli, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("restore", saved, *words).code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_safetensors_names_what_it_cannot_hold(cli: Cli, tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"text": np.array(["a"]), "z": np.array([1j]), "c": np.array([1j], np.complex64)})
    result = cli("restore", tmp_path / "run", "--out", tmp_path / "o.safetensors")
    assert result.code == 2
    assert "text (<U1), z (complex128)" in result.err
    assert cli("restore", tmp_path / "run", "--out", tmp_path / "o.npz").code == 0
    assert load_npz(tmp_path / "o.npz")["text"] == ["a"]


def test_keras_weights_ask_for_a_model(cli: Cli, saved: Path, tmp_path: Path) -> None:
    result = cli("restore", saved, "--out", tmp_path / "o.weights.h5")
    assert result.code == 2
    assert "--model model.json" in result.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--out", "pipe", "--to", "npz", "--force"], "pipe is a pipe; give the name of a file"),
        (["--out", "-", "--to", "npz"], "not written to the standard output; give the name of a file"),
        (["--out", "."], ". is a directory; give the name of a file"),
    ],
)
def test_what_cannot_be_the_file_is_refused_with_what_to_give(
    words: list[str], text: str, cli: Cli, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    result = cli("restore", saved, *words)
    assert (result.code, text in result.err) == (2, True), result.err
    assert sorted(os.listdir()) == ["pipe", "run"]
    assert Path("pipe").is_fifo()
