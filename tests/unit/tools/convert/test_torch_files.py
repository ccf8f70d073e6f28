"""PyTorch's files: read without unpickling, written so that PyTorch's own objects load from them."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.errors import CorruptError, ForeignFormatError, HpcckptError, OptionError
from hpcckpt.rundir.discovery import read_manifest
from tests.support.convert.converting import assert_same

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def trained() -> Any:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def plain(state: Any) -> dict[str, Any]:
    return {name: value.numpy() for name, value in state.items()}


@pytest.mark.parametrize("is_zip", [True, False])
def test_what_must_be_unpickled_is_refused_and_nothing_is_run(is_zip: bool, tmp_path: Path) -> None:
    torch.save(
        {"w": torch.ones(2), "trap": Trap(tmp_path / "sprung")},
        tmp_path / "m.pt",
        _use_new_zipfile_serialization=is_zip,
    )
    with pytest.raises(ForeignFormatError, match="refused: to read it, Python objects would have to be unpickled"):
        hc.import_checkpoint(tmp_path / "m.pt", tmp_path / "back")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "whole.pt", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(ForeignFormatError, match="Linear"):
        hc.import_checkpoint(tmp_path / "whole.pt", tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.pt", "whole.pt"]


@pytest.mark.parametrize("is_zip", [True, False])
def test_the_state_dict_of_the_tutorial_is_a_model(is_zip: bool, tmp_path: Path) -> None:
    model, _ = trained()
    torch.save(model.state_dict(), tmp_path / "my_model.pt", _use_new_zipfile_serialization=is_zip)
    done = hc.import_checkpoint(tmp_path / "my_model.pt", tmp_path / "run")
    assert_same(hc.load(done.path), {f"model/{name}": value for name, value in plain(model.state_dict()).items()})
    hc.export_checkpoint(done.path, tmp_path / "back.pt")
    model.load_state_dict(torch.load(tmp_path / "back.pt", weights_only=True)["model"])


def test_a_whole_training_comes_back(tmp_path: Path) -> None:
    """``epoch`` and ``loss`` beside two state_dicts, as PyTorch's tutorial on general checkpoints has it."""
    model, optimizer = trained()
    states = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save({"epoch": 5, "loss": 0.5, **states}, tmp_path / "m.tar")
    done = hc.import_checkpoint(tmp_path / "m.tar", tmp_path / "run", 9)
    assert (done.source_format, done.weights, done.optimizer, done.left_out) == ("pt", 7, 12, ())
    assert {"epoch": 5, "loss": 0.5}.items() <= read_manifest(done.path).objects["state"].items()
    hc.export_checkpoint(done.path, tmp_path / "back.pt")
    found = torch.load(tmp_path / "back.pt", weights_only=True)
    assert (found["epoch"], found["hpcckpt"]["step"]) == (5, 9)
    other, fresh = trained()
    other.load_state_dict(found["model"])
    fresh.load_state_dict(found["optimizer"])
    for number, slots in optimizer.state_dict()["state"].items():
        assert_same(plain(slots), plain(fresh.state_dict()["state"][number]))
    own, found = (json.dumps(each.state_dict()["param_groups"]) for each in (optimizer, fresh))
    assert own == found  # as JSON, where a tuple is a list
    again = hc.import_checkpoint(tmp_path / "back.pt", tmp_path / "again")
    assert_same(hc.load(done.path), hc.load(again.path))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("model_state_dict", "state_dict"), {"model_state_dict/w", "state_dict/w"}),
        (("state_dict", "other"), {"model/w", "other/w"}),
    ],
)
def test_two_parts_that_would_have_one_name_keep_theirs(
    tmp_path: Path, names: tuple[str, ...], expected: set[str]
) -> None:
    torch.save({name: {"w": torch.full((2,), float(n)), "n": n} for n, name in enumerate(names)}, tmp_path / "a.pt")
    done = hc.import_checkpoint(tmp_path / "a.pt", tmp_path / "run")
    assert {*hc.load(done.path)} == expected


@pytest.mark.parametrize("held", [{"a/b": 1, "a": {"b": 2}}, {1: 1, "1": 2}])
def test_values_that_would_have_one_name_are_refused(tmp_path: Path, held: dict[Any, Any]) -> None:
    torch.save(held, tmp_path / "a.pt")
    with pytest.raises(ForeignFormatError, match="two values in it would be called"):
        hc.import_checkpoint(tmp_path / "a.pt", tmp_path / "run")


def test_dtypes_and_layouts(tmp_path: Path) -> None:
    values = {
        "bf": torch.arange(3).to(torch.bfloat16),
        "f8": torch.arange(4.0).to(torch.float8_e4m3fn),
        "b": torch.tensor(True),
        "t": torch.arange(6).reshape(2, 3).T,
        "e": torch.empty(0, 2),
        "c": torch.tensor([1j]),
        "g": torch.ones(2).requires_grad_(),
    }
    odd = {"sparse": torch.eye(2).to_sparse(), "size": torch.Size([1])}
    torch.save({"s": values, "odd": odd}, tmp_path / "m.pt")
    done = hc.import_checkpoint(tmp_path / "m.pt", tmp_path / "run")
    assert [name.partition(" ")[0] for left in done.left_out for name in left.names] == ["odd/sparse"]
    found = hc.load(done.path)
    assert found["s/bf"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found["s/t"], np.arange(6).reshape(2, 3).T)
    hc.export_checkpoint(done.path, tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt", weights_only=True)["s"]
    assert all(torch.equal(back[k].to(torch.complex64), values[k].to(torch.complex64)) for k in values)
    assert {k: v.dtype for k, v in back.items()} == {k: v.dtype for k, v in values.items()}


def test_plain_states_come_back_as_they_were(saved: Path, tmp_path: Path) -> None:
    hc.export_checkpoint(saved, tmp_path / "m.pt")
    done = hc.import_checkpoint(tmp_path / "m.pt", tmp_path / "back")
    assert_same(hc.load(saved), hc.load(done.path))
    old, new = read_manifest(saved / "step-0000000007"), read_manifest(done.path)
    assert {t.name: t.kind for t in old.tensors} == {t.name: t.kind for t in new.tensors}
    assert (new.step, new.objects) == (7, old.objects)


def test_names_that_cannot_nest_are_named(tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"a": np.ones(1), "a/b": np.ones(1), "text": np.array(["x"])})
    with pytest.raises(OptionError, match="text"):
        hc.export_checkpoint(tmp_path / "run", tmp_path / "m.pt")
    with pytest.raises(OptionError, match="a/b: is below a;"):
        hc.export_checkpoint(tmp_path / "run", tmp_path / "m.pt", only="a*")
    assert not (tmp_path / "m.pt").exists()


def test_a_name_that_our_note_has_is_refused(tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"w": np.ones(1), "hpcckpt": np.ones(1)})
    with pytest.raises(OptionError, match="hpcckpt: has the same place as hpcckpt's own entry"):
        hc.export_checkpoint(tmp_path / "run", tmp_path / "m.pt")
    assert hc.export_checkpoint(tmp_path / "run", tmp_path / "m.pt", only="w").tensors == 1


def test_a_value_with_the_name_of_our_note_is_left_out_and_reported(tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"w": np.ones(1), "hpcckpt": 5, "epoch": 3})
    done = hc.export_checkpoint(tmp_path / "run", tmp_path / "m.pt")
    assert [left.names for left in done.left_out] == [("hpcckpt",)]
    assert torch.load(tmp_path / "m.pt", weights_only=True)["epoch"] == 3


def test_damage_is_so_called(saved: Path, tmp_path: Path) -> None:
    hc.export_checkpoint(saved, tmp_path / "m.pt")
    content = (tmp_path / "m.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptError):
        hc.import_checkpoint(tmp_path / "cut.pt", tmp_path / "back")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ForeignFormatError, match="not a dict of tensors"):
        hc.import_checkpoint(tmp_path / "list.pt", tmp_path / "back")


def test_a_view_that_is_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(1 << 40)}, tmp_path / "m.pt")
    with pytest.raises(CorruptError, match="says that it has 4398046511104 bytes"):
        hc.import_checkpoint(tmp_path / "m.pt", tmp_path / "back")
    torch.save({"w": torch.ones(1).expand(1000)}, tmp_path / "small.pt")
    assert hc.load(hc.import_checkpoint(tmp_path / "small.pt", tmp_path / "back").path)["model/w"].sum() == 1000


def test_whatever_bytes_change_the_error_is_one_of_ours(saved: Path, tmp_path: Path) -> None:
    hc.export_checkpoint(saved, tmp_path / "m.pt")
    sound, dice = (tmp_path / "m.pt").read_bytes(), random.Random(5)
    for number in range(40):
        damaged = bytearray(sound[: dice.randrange(len(sound))] if number % 4 == 0 else sound)
        for _ in range(dice.randrange(1, 4) if damaged else 0):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        (tmp_path / "m.pt").write_bytes(damaged)
        with contextlib.suppress(HpcckptError):
            hc.import_checkpoint(tmp_path / "m.pt", tmp_path / "back", number, fmt="pt")
