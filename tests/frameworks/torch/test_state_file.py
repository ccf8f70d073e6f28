"""A state dict as one safetensors file: what replaces ``torch.save`` and ``torch.load``."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hpcckpt as hc
from hpcckpt.errors import CorruptError, ForeignFormatError, NoSpaceError, OptionError, StateError, StepNotFoundError
from tests.support.torch_trainings import assert_same, net, train

pytestmark = pytest.mark.one_case


def test_a_state_dict_is_saved_and_loaded_as_with_torch_save(tmp_path):
    path = tmp_path / "my_model.safetensors"
    assert hc.torch.save(net(1).state_dict(), str(path)) is None
    blank = net(2)
    blank.load_state_dict(hc.torch.load(path))
    assert_same(blank.state_dict(), net(1).state_dict())
    assert list(hc.torch.load(path)) == list(net(1).state_dict())
    assert os.listdir(tmp_path) == [path.name]


def test_other_readers_of_safetensors_load_the_model(tmp_path):
    hc.torch.save(net(1).state_dict(), tmp_path / "m.safetensors")
    assert_same(load_file(tmp_path / "m.safetensors"), dict(net(1).state_dict()))


def test_a_dict_of_model_optimizer_and_epoch_comes_back_as_it_was(tmp_path):
    model = net(1)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 2)
    saved = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict(), "epoch": 3, "loss": 0.25}
    hc.torch.save(saved, tmp_path / "full.safetensors")
    assert_same(hc.torch.load(tmp_path / "full.safetensors"), saved)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_versions_of_modules_come_back_with_their_state_dict(tmp_path, device):
    state = net(1).state_dict()
    hc.torch.save(state, tmp_path / "m.safetensors")
    hc.torch.save({"best": state}, tmp_path / "n.safetensors")
    torch.save({"best": state}, tmp_path / "n.pt")
    for found in (
        hc.torch.load(tmp_path / "m.safetensors", device),
        hc.torch.load(tmp_path / "n.safetensors", device)["best"],
        hc.torch.load(tmp_path / "n.pt", device)["best"],
    ):
        assert found._metadata == state._metadata
        assert found._metadata["1"] == {"version": 2}


def test_a_file_that_no_reader_would_take_is_not_written(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    hc.torch.save({"w": torch.ones(1)}, path)
    monkeypatch.setattr("hpcckpt.tools.convert.write_safetensors.MAX_HEADER_BYTES", 5000)
    with pytest.raises(OptionError, match="readers take at most 5000"):
        hc.torch.save({"w": torch.zeros(1), "order": list(range(2000))}, path)
    assert_same(hc.torch.load(path), {"w": torch.ones(1)})


VALUES = {
    "integer keys": {1: torch.ones(2), 5: {"a": None}},
    "a slash in a key": {"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}},
    "lists and tuples": {"a": [torch.ones(1), (torch.zeros(2), 3)], "b": (1, 2), "c": [], "d": [{"e": (1, [2])}]},
    "nothing": {},
    "empty parts": {"state": {}, "empty": torch.empty(0, 3)},
    "bytes, sets, complex numbers": {"a": b"xy", "b": {1, 2}, "c": True},
    "dtypes": {str(d): torch.ones(3).to(d) for d in (torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.uint16)},
    "NumPy": {"a": np.arange(3), "b": np.float32(2.5)},
    "views": {"t": torch.arange(6).reshape(2, 3).T, "s": torch.arange(9)[::2]},
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_each_kind_come_back(tmp_path, kind):
    hc.torch.save(VALUES[kind], tmp_path / "x.safetensors")
    found = hc.torch.load(tmp_path / "x.safetensors")
    if kind == "NumPy":
        np.testing.assert_array_equal(found["a"], VALUES[kind]["a"])
        assert found["b"] == np.float32(2.5)
    else:
        assert_same(found, VALUES[kind])


def test_loaded_tensors_are_their_own_memory(tmp_path):
    path = tmp_path / "x.safetensors"
    hc.torch.save({"a": torch.ones(3)}, path)
    hc.torch.load(path)["a"].add_(1)
    assert hc.torch.load(path, map_location="cpu")["a"].tolist() == [1, 1, 1]


PLACES = {
    "a name": "meta",
    "a device": torch.device("meta"),
    "names": {"cpu": "meta"},
    "devices": {"cpu": torch.device("meta")},
}


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("kind", ["a name", "a device", "names", "devices"])
def test_tensors_are_moved_as_torch_load_does(tmp_path, suffix, kind):
    path = tmp_path / f"x.{suffix}"
    (torch.save if suffix == "pt" else hc.torch.save)({"a": torch.ones(3), "n": [torch.ones(1)]}, path)
    found = hc.torch.load(path, map_location=PLACES[kind])
    assert [found["a"].device.type, found["n"][0].device.type] == ["meta", "meta"]


def test_devices_that_are_not_mapped_stay(tmp_path):
    path = tmp_path / "x.safetensors"
    hc.torch.save({"a": torch.ones(3)}, path)
    assert hc.torch.load(path, map_location={"cuda:0": "meta"})["a"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_function_places_storages_as_with_torch_load(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    (torch.save if suffix == "pt" else hc.torch.save)({"a": torch.arange(6.0).reshape(2, 3).T}, path)
    for place in (lambda storage, _: storage, lambda storage, _: storage.clone(), lambda *_: None):
        assert hc.torch.load(path, map_location=place)["a"].tolist() == [[0, 3], [1, 4], [2, 5]]
    seen = []
    hc.torch.load(path, map_location=lambda _, location: seen.append(location))
    assert seen == ["cpu"]


def test_a_save_that_fails_leaves_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    hc.torch.save({"a": torch.ones(3)}, path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hpcckpt.rundir.atomic_files.fsync_file", full)
    with pytest.raises(NoSpaceError):
        hc.torch.save({"a": torch.zeros(3)}, path)
    assert hc.torch.load(path)["a"].tolist() == [1, 1, 1]
    assert os.listdir(tmp_path) == [path.name]


class Own:
    def __init__(self) -> None:
        self.value = 1


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({"a": Own(), "b": {"c": Own()}}, ["a", "b/c"]),
        ({"model": torch.nn.Linear(1, 1)}, ["model", "state_dict()"]),
        ({"a": hc.PerRank(1)}, ["a", "directory"]),
        ({"a": np.ones(1, np.complex128)}, ["a", "complex128"]),
    ],
)
def test_what_would_have_to_be_pickled_is_refused_by_name(tmp_path, state, named):
    with pytest.raises(StateError) as caught:
        hc.torch.save(state, tmp_path / "x.safetensors")
    assert all(part in str(caught.value) for part in named)
    assert os.listdir(tmp_path) == []


def test_arguments_that_fit_neither_form_name_both(tmp_path):
    model = net(1)
    with pytest.raises(OptionError, match=r"model.state_dict\(\)"):
        hc.torch.save(model, tmp_path / "x.safetensors")
    with pytest.raises(OptionError, match="to a file"):
        hc.torch.save(model.state_dict(), 3)
    with pytest.raises(OptionError, match="optimizer, epoch"):
        hc.torch.save(model.state_dict(), tmp_path / "x.safetensors", optimizer=1, epoch=2)


def test_a_file_called_pt_is_written_as_safetensors_with_a_warning(tmp_path, caplog):
    hc.torch.save({"a": torch.ones(1)}, tmp_path / "m.pt")
    assert "name it m.safetensors" in caplog.text
    assert hc.torch.load(tmp_path / "m.pt")["a"].item() == 1


def test_a_pt_file_of_pytorch_is_loaded(tmp_path):
    saved = {"model": OrderedDict(a=torch.ones(2)), "epoch": 3}
    torch.save(saved, tmp_path / "m.pt")
    assert_same(hc.torch.load(tmp_path / "m.pt", map_location="cpu", weights_only=True), saved)
    torch.save(saved, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_same(hc.torch.load(tmp_path / "old.pt"), saved)


def test_a_pt_file_that_would_run_code_is_refused(tmp_path):
    torch.save({"a": Own()}, tmp_path / "m.pt")
    with pytest.raises(ForeignFormatError, match="may run code"):
        hc.torch.load(tmp_path / "m.pt")
    with pytest.raises(OptionError, match="weights_only"):
        hc.torch.load(tmp_path / "m.pt", weights_only=False)


def test_what_is_no_such_file_is_an_error_that_names_the_call(tmp_path):
    with pytest.raises(StepNotFoundError):
        hc.torch.load(tmp_path / "absent.safetensors")
    hc.torch.save(tmp_path / "run", 1, model=net(1))
    with pytest.raises(OptionError, match=r"hpcckpt\.torch\.restore"):
        hc.torch.load(tmp_path / "run")


@pytest.mark.parametrize(
    "changed", ["[", '{".types":[]}', '{".types":{"dict":{"":"list"}}}', "[1]", '{"a/b":1}', '{"a/b":{}}']
)
def test_a_file_with_invalid_metadata_is_corrupt(tmp_path, changed):
    path = _file_with(tmp_path, changed)
    with pytest.raises(CorruptError):
        hc.torch.load(path)


def _file_with(tmp_path: Path, text: str) -> Path:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors", {"hpcckpt.state_dict": text})
    return tmp_path / "x.safetensors"


def test_a_file_that_was_cut_is_corrupt(tmp_path, damage):
    path = tmp_path / "x.safetensors"
    hc.torch.save({"a": torch.ones(100)}, path)
    damage.cut(path, 4)
    with pytest.raises(CorruptError):
        hc.torch.load(path)


def test_plain_safetensors_of_others_are_loaded_by_their_names(tmp_path):
    from safetensors.torch import save_file

    save_file({"a/b": torch.ones(1), "3": torch.zeros(1)}, tmp_path / "x.safetensors")
    assert_same(hc.torch.load(tmp_path / "x.safetensors"), {"3": torch.zeros(1), "a/b": torch.ones(1)})


SPARSE = ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
IS_SAID_ONCE = [
    pytest.mark.filterwarnings(f"ignore:{text}:UserWarning")
    for text in ("Sparse .* support is in beta state", "Sparse invariant checks are implicitly disabled")
]


def sparse(layout: str, *, is_outside: bool = False) -> torch.Tensor:
    """Return the unit matrix of 2 by 2, or one with an index outside."""
    rows, columns = torch.tensor([0, 1]), torch.tensor([0, 1 << 40 if is_outside else 1])
    if layout == "sparse_coo":
        return torch.sparse_coo_tensor(torch.stack([rows, columns]), torch.ones(2), (2, 2), check_invariants=False)
    values = torch.ones(2, 1, 1) if layout.startswith("sparse_bs") else torch.ones(2)
    return torch.sparse_compressed_tensor(
        torch.tensor([0, 1, 2]), columns, values, (2, 2), layout=getattr(torch, layout), check_invariants=False
    )


@pytest.mark.parametrize("layout", [pytest.param(layout, marks=IS_SAID_ONCE) for layout in SPARSE])
def test_sparse_tensors_of_torch_files_may_be_placed(tmp_path, layout):
    torch.save({"a": sparse(layout)}, tmp_path / "m.pt")
    found = hc.torch.load(tmp_path / "m.pt", map_location="cpu")["a"]
    assert found.layout is getattr(torch, layout)
    assert found.to_dense().tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("layout", [pytest.param(layout, marks=IS_SAID_ONCE) for layout in SPARSE])
def test_sparse_tensors_of_torch_files_whose_indices_point_outside_are_refused(tmp_path, layout):
    torch.save({"a": [{"b": (torch.ones(1), sparse(layout, is_outside=True))}]}, tmp_path / "m.pt")
    with pytest.raises(CorruptError, match="is damaged"):
        hc.torch.load(tmp_path / "m.pt")


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
def test_sparse_tensors_said_to_be_coalesced_that_are_not_are_refused(tmp_path):
    twice, ones = torch.tensor([[0, 0]]), torch.ones(2)
    torch.save(
        {"a": torch.sparse_coo_tensor(twice, ones, (2,), is_coalesced=True, check_invariants=False)}, tmp_path / "m.pt"
    )
    with pytest.raises(CorruptError, match="is damaged"):
        hc.torch.load(tmp_path / "m.pt")


def test_a_list_in_a_torch_file_that_holds_itself_is_loaded(tmp_path):
    held: list[Any] = [torch.ones(1)]
    held.append(held)
    torch.save({"a": held}, tmp_path / "m.pt")
    found = hc.torch.load(tmp_path / "m.pt")["a"]
    assert found[1] is found


@pytest.mark.parametrize("category", [UserWarning, DeprecationWarning])
def test_a_warning_of_torch_that_is_an_error_is_not_called_damage(tmp_path, monkeypatch, category):
    def load(*args, **options):
        raise category("old")

    torch.save({"a": torch.ones(1)}, tmp_path / "m.pt")
    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(category, match="old"):
        hc.torch.load(tmp_path / "m.pt")
