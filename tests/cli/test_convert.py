"""``hpcckpt convert`` between formats that need no framework, and what it says and exits with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file

import hpcckpt as hc
from hpcckpt.cli.convert import NAMES, READ_WITH_MODEL
from hpcckpt.tools.convert.formats import FORMATS, OWN

pytestmark = pytest.mark.stack_b
Cli = Callable[..., Any]


def test_the_options_name_the_formats_there_are() -> None:
    assert (OWN, *(each.name for each in FORMATS)) == NAMES
    assert set(READ_WITH_MODEL) <= set(NAMES)


def test_there_and_back_with_a_table(cli: Cli, saved: Path, tmp_path: Path) -> None:
    there = cli("convert", saved, tmp_path / "m.npz")
    assert there.code == 0, there.err
    assert there.out.splitlines() == [
        "  PART       TENSORS  OUTCOME",
        "  weights          2  written",
        "  optimizer        2  written",
        "  other            3  written",
        "  left out         1  values, not tensors ('hpcckpt info' shows them): epoch",
    ]
    assert there.err.splitlines() == [
        "as float32, because .npz has no narrower type for them: half",
        f"wrote {tmp_path / 'm.npz'} (npz, 7 tensors, 5.11 KiB) from {saved / 'step-0000000030'} (step 30)",
    ]
    back = cli("convert", tmp_path / "m.npz", tmp_path / "back")
    assert back.code == 0, back.err
    assert back.out.splitlines()[-1].endswith(
        "of ranks 1 to 2: a checkpoint that is imported is of one rank: seed#1, seed#2"
    )
    own, found = hc.load(saved), hc.load(tmp_path / "back")
    assert {name: value.tobytes() for name, value in own.items() if name not in {"seed#1", "seed#2"}} == {
        name: value.tobytes() for name, value in found.items()
    }


def test_json_has_all_of_it(cli: Cli, saved: Path, tmp_path: Path) -> None:
    result = cli("convert", saved, tmp_path / "m.safetensors", "--no-optimizer", "--json")
    assert set(result.json) == {
        "source", "source_format", "path", "format", "step", "weights", "optimizer", "other", "nbytes", "left_out",
        "remarks", "tensors",
    }  # fmt: skip
    assert (result.json["format"], result.json["optimizer"], result.json["weights"]) == ("safetensors", 0, 2)
    assert result.json["left_out"] == [
        {"names": ["optimizer/iteration", "optimizer/m/dense/kernel"], "reason": "the optimizer was not asked for"},
        {"names": ["epoch"], "reason": "values, not tensors ('hpcckpt info' shows them)"},
    ]
    assert cli("convert", saved, tmp_path / "n.npz", "-q").err == ""


@pytest.mark.parametrize(("step", "expected"), [("20", 20), ("latest", 30), ("best", 20)])
def test_the_step_to_take(step: str, expected: int, cli: Cli, saved: Path, tmp_path: Path) -> None:
    result = cli("convert", saved, tmp_path / "m.npz", "--step", step, "--only", "table", "--json")
    assert (result.json["step"], result.json["tensors"]) == (expected, 1)


def test_the_step_to_save(cli: Cli, saved: Path, tmp_path: Path) -> None:
    cli("convert", saved, tmp_path / "m.npz")
    assert cli("convert", tmp_path / "m.npz", tmp_path / "back", "--step", "5", "--json").json["step"] == 5
    result = cli("convert", tmp_path / "m.npz", tmp_path / "back", "--step", "5")
    assert (result.code, "pass --force to replace it, or --step N" in result.err) == (1, True)
    assert cli("convert", tmp_path / "m.npz", tmp_path / "back", "--step", "5", "--force").code == 0
    assert cli("convert", tmp_path / "m.npz", tmp_path / "back", "--step", "best").code == 2


def test_between_two_foreign_formats(cli: Cli, saved: Path, tmp_path: Path) -> None:
    cli("convert", saved, tmp_path / "m.npz", "--only", "model/*")
    result = cli("convert", tmp_path / "m.npz", tmp_path / "m.safetensors", "--json")
    assert (result.json["source_format"], result.json["format"], result.json["step"]) == ("npz", "safetensors", 30)
    assert set(load_file(tmp_path / "m.safetensors")) == {"model/dense/bias", "model/dense/kernel"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.npz", "m.safetensors", "run"]


def test_a_file_is_never_overwritten_unasked(cli: Cli, saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.npz"
    out.write_text("mine", encoding="utf-8")
    result = cli("convert", saved, out, "--json")
    assert (result.code, result.json["error"]["kind"], out.read_text(encoding="utf-8")) == (2, "option", "mine")
    assert cli("convert", saved, out, "--force").code == 0


def test_weights_of_keras_need_neither_keras_nor_tensorflow(spawn: Cli, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.attrs["layer_names"] = [b"dense"]
        file["dense/dense/kernel:0"] = np.ones((2, 3), np.float32)
        file["dense"].attrs["weight_names"] = [b"dense/kernel:0"]
    result = spawn("convert", tmp_path / "w.h5", tmp_path / "run", "--json", PYTHONPROFILEIMPORTTIME="1")
    assert result.code == 0, result.err
    assert json.loads(result.out)["weights"] == 1
    assert "h5py" in result.err
    assert not {"tensorflow", "keras", "torch", "mpi4py"} & {
        line.rpartition("|")[2].strip() for line in result.err.splitlines()
    }


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["absent", "o.npz"], 4, "absent does not exist"),
        (["run", "o.npz", "--step", "99"], 4, "99"),
        (["run", "o.dat"], 2, "cannot tell the format from 'o.dat'; pass --to npz"),
        (["run", "."], 2, ". is a directory; give the name of a file, or pass --to saved-model"),
        (["run", "-", "--to", "npz"], 2, "not written to the standard output"),
        (["run", "pipe", "--to", "npz", "--force"], 2, "pipe is a pipe; give the name of a file"),
        (["good.npz", "pipe", "--to", "safetensors", "--force"], 2, "pipe is a pipe; give the name of a file"),
        (["run", "other", "--to", "hpcckpt"], 2, "'hpcckpt reshard' rewrites a checkpoint"),
        (["run", "o.npz", "--only", "nothing"], 2, "matches no tensor"),
        (["run", "o.npz", "--model", "m.json"], 2, "leave out --model"),
        (["run", "o.keras"], 2, "--model model.json"),
        (["run", "o.npz", "--from", "npz"], 2, "is a directory"),
        (["run", "nowhere/o.npz"], 2, "nowhere does not exist"),
        (["pickled.npz", "back"], 1, "unpickling may run code"),
        (["odd.bin", "back"], 1, "of no format that is known; pass --from"),
        (["odd.bin", "back", "--from", "npz"], 3, "damaged"),
        (["good.npz", "nowhere/o.safetensors"], 2, "nowhere does not exist"),
    ],
)
def test_how_it_fails(
    words: list[str], code: int, text: str, cli: Cli, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("pickled.npz", w=np.array([{}], dtype=object))
    np.savez("good.npz", w=np.ones(2))
    os.mkfifo("pipe")
    Path("odd.bin").write_bytes(b"odd")
    before = sorted(path.name for path in tmp_path.iterdir())
    result = cli("convert", *words)
    assert (result.code, text in result.err) == (code, True), result.err
    assert (sorted(path.name for path in tmp_path.iterdir()), Path("pipe").is_fifo()) == (before, True)


def test_a_run_that_a_job_writes_in_is_busy(cli: Cli, busy: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", w=np.ones(2))
    assert cli("convert", tmp_path / "m.npz", busy, "--step", "40").code == 8


def test_damage_exits_with_3(cli: Cli, saved: Path, tmp_path: Path, damage: Any) -> None:
    damage.flip(damage.first_file(saved / "step-0000000030"), -1)
    assert cli("convert", saved, tmp_path / "o.npz").code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
def test_a_pt_that_holds_code_exits_with_1(cli: Cli, tmp_path: Path) -> None:
    import torch

    torch.save({"model": torch.nn.Linear(1, 1)}, tmp_path / "m.pt")
    result = cli("convert", tmp_path / "m.pt", tmp_path / "run", "--json")
    assert (result.code, result.json["error"]["kind"]) == (1, "foreign-format")
    assert "Linear" in result.err


@pytest.mark.parametrize("step", ["9" * 5000, str(10**18 + 1), "-1", "best"])
def test_a_step_to_save_as_that_is_no_step_is_a_usage_error(cli: Cli, tmp_path: Path, step: str) -> None:
    np.savez(tmp_path / "a.npz", w=np.ones(3))
    result = cli("convert", tmp_path / "a.npz", tmp_path / "run", f"--step={step}")
    assert (result.code, len(result.err) < 400) == (2, True), result.err
    assert not (tmp_path / "run").exists()


def test_an_import_refuses_the_metric_that_it_has_no_use_for(cli: Cli, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", w=np.ones(3))
    for target in ("run", "b.safetensors"):
        result = cli("convert", tmp_path / "a.npz", tmp_path / target, "--metric", "loss")
        assert (result.code, "--metric" in result.err) == (2, True)
