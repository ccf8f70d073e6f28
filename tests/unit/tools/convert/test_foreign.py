"""Foreign files that need no framework: told by content, read without running code, written whole or not at all."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import hpcckpt as hc
from hpcckpt.errors import (
    ConfigError,
    CorruptError,
    ForeignFormatError,
    HpcckptError,
    OptionError,
    StepExistsError,
    StepNotFoundError,
)
from hpcckpt.format.note import Note, decode, encode
from hpcckpt.keras.files import tf_files
from hpcckpt.rundir import atomic_files
from hpcckpt.rundir.discovery import read_manifest
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tools.convert import write_safetensors
from hpcckpt.tools.convert.detect import source_format
from tests.support.convert.converting import assert_same, save_plain

PLAIN = ["npz", "safetensors"]


def convert(source: Path, file: Path, back: Path, **more: Any) -> Any:
    hc.export_checkpoint(source, file, **more)
    return hc.import_checkpoint(file, back)


# -- there and back --------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", PLAIN)
def test_everything_comes_back_as_it_was(suffix: str, saved: Path, tmp_path: Path) -> None:
    done = convert(saved, tmp_path / f"m.{suffix}", tmp_path / "back")
    assert_same(hc.load(saved), hc.load(done.path))
    old, new = read_manifest(saved / "step-0000000007"), read_manifest(done.path)
    assert {t.name: t.kind for t in old.tensors} == {t.name: t.kind for t in new.tensors}
    assert (new.step, new.objects) == (7, old.objects)
    assert (new.metrics["loss"], np.isnan(new.metrics["acc"])) == (0.25, True)
    assert (done.weights, done.optimizer, done.other, done.left_out) == (2, 2, 4, ())


def test_other_readers_pass_over_the_note(saved: Path, tmp_path: Path) -> None:
    hc.export_checkpoint(saved, tmp_path / "m.npz")
    hc.export_checkpoint(saved, tmp_path / "m.safetensors")
    with np.load(tmp_path / "m.npz", allow_pickle=False) as found:
        assert set(found) == set(hc.load(saved))
    assert set(load_file(tmp_path / "m.safetensors")) == set(hc.load(saved))


@pytest.mark.parametrize("suffix", PLAIN)
def test_of_several_ranks_those_of_rank_0_come_back(suffix: str, tmp_path: Path) -> None:
    def save(comm: Any) -> None:
        with hc.Checkpointer(tmp_path / "run", comm=comm) as ckpt:
            ckpt.save(1, {"w": np.ones(6), "seed": hc.PerRank(np.array([comm.rank]))})

    run_ranks(3, save)
    done = convert(tmp_path / "run", tmp_path / f"m.{suffix}", tmp_path / "back")
    assert [left.names for left in done.left_out] == [("seed#1", "seed#2")]
    assert_same(hc.load(done.path), {"w": np.ones(6), "seed#0": np.array([0])})


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_narrow_floats_of_one_rank_are_wider_in_plain_hdf5(dtype: Any, tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"a": hc.PerRank(np.arange(3).astype(dtype))})
    hc.export_checkpoint(tmp_path / "run", tmp_path / "m.h5", to="hdf5")
    with h5py.File(tmp_path / "m.h5") as file:
        assert file["a#0"][()].astype(np.float32).tolist() == [0, 1, 2]


def test_text_with_a_zero_is_json_in_plain_hdf5(tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"w": np.ones(1), "text": "x\0y"})
    hc.export_checkpoint(tmp_path / "run", tmp_path / "m.h5", to="hdf5")
    with h5py.File(tmp_path / "m.h5") as file:
        assert (json.loads(file["text"][()]), bool(file["text"].attrs["json"])) == ("x\0y", True)


def test_objects_with_names_of_the_state_are_left_out_of_plain_hdf5_and_reported(tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        state = {"w": np.ones(1), "model": {"a": np.ones(1)}, "epoch": 3}
        ckpt.save(1, state, objects={"epoch": 4, "w": 1, "./w": 1, "model": 2, "w/x": 3, "seed": 5, "seed/y": 6})
    done = hc.export_checkpoint(tmp_path / "run", tmp_path / "m.h5", to="hdf5")
    assert [set(left.names) for left in done.left_out] == [{"epoch", "w", "./w", "model", "w/x", "seed/y"}]
    with h5py.File(tmp_path / "m.h5") as file:
        assert (file["epoch"][()], file["seed"][()], file["w"][()].tolist()) == (3, 5, [1.0])


@pytest.mark.parametrize("only", [None, "a/*"])
@pytest.mark.parametrize(("to", "place"), [("hdf5", "state"), ("hdf5", "user"), ("pt", "state")])
def test_values_whose_names_are_in_the_way_of_tensors_are_left_out_and_reported(
    tmp_path: Path, to: str, place: str, only: str | None
) -> None:
    values = {"a": 1, "a/b/c": 2, "other": 3}
    of_state, of_user = (values, {}) if place == "state" else ({}, values)
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"a/b": np.ones(1), **of_state}, objects=of_user)
    done = hc.export_checkpoint(tmp_path / "run", tmp_path / "m", to=to, only=only)
    assert [(set(left.names), "no place beside others" in left.reason) for left in done.left_out] == [
        ({"a", "a/b/c"}, True)
    ]
    assert done.tensors == 1


def test_tensors_that_are_in_the_way_of_others_are_named(tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"a": np.ones(1), "a/b": np.ones(1)})
    with pytest.raises(OptionError, match="a/b: is below a;"):
        hc.export_checkpoint(tmp_path / "run", tmp_path / "m.h5", to="hdf5")
    assert hc.export_checkpoint(tmp_path / "run", tmp_path / "m.h5", to="hdf5", only="a").tensors == 1


def test_only_and_optimizer_choose_in_both_directions(saved: Path, tmp_path: Path) -> None:
    done = hc.export_checkpoint(saved, tmp_path / "a.npz", only=["model/*", "optimizer/*"], optimizer=False)
    assert (done.tensors, [len(left.names) for left in done.left_out]) == (2, [2, 4])
    hc.export_checkpoint(saved, tmp_path / "b.npz")
    done = hc.import_checkpoint(tmp_path / "b.npz", tmp_path / "back", only="*dense*", optimizer=False)
    assert set(hc.load(done.path)) == {"model/dense/bias", "model/dense/kernel"}
    with pytest.raises(OptionError, match="'nothing' matches no tensor"):
        hc.import_checkpoint(tmp_path / "b.npz", tmp_path / "back", only="nothing")


def test_the_step_is_what_is_asked_or_said_or_counted(saved: Path, tmp_path: Path) -> None:
    hc.export_checkpoint(saved, tmp_path / "m.npz")
    assert hc.import_checkpoint(tmp_path / "m.npz", tmp_path / "a", 12).step == 12
    assert hc.import_checkpoint(tmp_path / "m.npz", tmp_path / "b").step == 7
    np.savez(tmp_path / "n.npz", **{"optimizer/iteration": np.int64(5), "w": np.ones(2)})
    counted = hc.import_checkpoint(tmp_path / "n.npz", tmp_path / "c")
    assert (counted.step, "optimizer's count" in counted.remarks[0]) == (5, True)
    np.savez(tmp_path / "o.npz", w=np.ones(2))
    unknown = hc.import_checkpoint(tmp_path / "o.npz", tmp_path / "d")
    assert (unknown.step, "saved as step 0" in unknown.remarks[0]) == (0, True)


def test_a_step_that_is_there_stays_unless_it_may_be_replaced(saved: Path, tmp_path: Path) -> None:
    hc.export_checkpoint(saved, tmp_path / "m.npz")
    with pytest.raises(StepExistsError):
        hc.import_checkpoint(tmp_path / "m.npz", saved)
    hc.import_checkpoint(tmp_path / "m.npz", saved, only="half", overwrite=True)
    assert set(hc.load(saved)) == {"half"}


def test_objects_that_find_no_room_are_missed_aloud(tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"w": np.ones(2)}, objects={"log": "x" * 70_000})
    done = convert(tmp_path / "run", tmp_path / "m.npz", tmp_path / "back")
    assert done.remarks == ("the file had no room for the objects of the checkpoint",)
    convert(tmp_path / "run", tmp_path / "m.safetensors", tmp_path / "whole")
    assert read_manifest(tmp_path / "whole/step-0000000001").objects["user"] == {"log": "x" * 70_000}


def test_a_note_that_anybody_may_have_written_is_no_note() -> None:
    good = Note(3, "ab")
    assert decode(encode(good)) == good
    for bad in ("", "[", "3", '{"step": -1, "save_id": ""}', '{"step": 1, "save_id": "", "more": 1}', "[" * 100_000):
        assert decode(bad) is None
    assert decode(encode(good).replace('"kinds":{}', '"kinds":{"w":"weird"}')) is None
    assert decode(encode(good).replace('"objects":{}', '"objects":{"state":3}')) is None


# -- telling formats apart -------------------------------------------------------------------------


def test_content_decides_not_the_name(saved: Path, tmp_path: Path) -> None:
    for name in PLAIN:
        path = tmp_path / f"file-{name}"
        hc.export_checkpoint(saved, path, name)
        assert source_format(path) == name
        misleading = path.rename(tmp_path / f"m.{'h5' if name == 'npz' else 'pt'}")
        assert source_format(misleading) == name


def test_what_nobody_knows_is_refused_with_the_reason(tmp_path: Path) -> None:
    for name, content in (("a.bin", b"nothing known"), ("b.zip", None), ("c.npz", b"PK\3\4 not really")):
        if content is None:
            with zipfile.ZipFile(tmp_path / name, "w") as archive:
                archive.writestr("readme", "hello")
        else:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(ForeignFormatError, match="of no format that is known; pass --from"):
        source_format(tmp_path / "a.bin")
    with pytest.raises(ForeignFormatError, match="neither npz, nor keras, nor pt"):
        source_format(tmp_path / "b.zip")
    with pytest.raises(CorruptError, match="damaged"):
        source_format(tmp_path / "c.npz")
    (tmp_path / "d.npz").write_bytes(b"")
    with pytest.raises(CorruptError, match="is not npz, though its name says so"):
        source_format(tmp_path / "d.npz")
    with pytest.raises(StepNotFoundError):
        source_format(tmp_path / "absent")
    with pytest.raises(StepNotFoundError):
        source_format(tmp_path)


def test_a_directory_that_may_be_two_things_asks_which(saved: Path) -> None:
    assert source_format(saved) == source_format(saved / "step-0000000007") == "hpcckpt"
    (saved / "checkpoint").write_text('model_checkpoint_path: "cp"\n', encoding="utf-8")
    with pytest.raises(OptionError, match="--from hpcckpt, or --from tf"):
        source_format(saved)


def test_names_say_the_target(saved: Path, tmp_path: Path) -> None:
    for out, to, complaint in (
        ("m.dat", None, "cannot tell the format"),
        ("m.npz", "zip", "one of h5"),
        ("m.h5", "weights.h5", "only if its name says so: .weights.h5"),
        ("m.weights.h5", "h5", "only if its name says so: .h5"),
    ):
        with pytest.raises(OptionError, match=complaint):
            hc.export_checkpoint(saved, tmp_path / out, to)
    with pytest.raises(ConfigError, match=r"--model model\.json"):
        hc.export_checkpoint(saved, tmp_path / "m.keras")
    with pytest.raises(ConfigError, match="leave out --model"):
        hc.export_checkpoint(saved, tmp_path / "m.npz", model="model.json")


# -- npz -------------------------------------------------------------------------------------------


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def test_pickled_arrays_are_refused_and_nothing_is_run(tmp_path: Path) -> None:
    trap = np.array([Trap(tmp_path / "sprung")], dtype=object)
    np.savez(tmp_path / "m.npz", good=np.ones(2), bad=trap)
    with pytest.raises(ForeignFormatError, match=r"bad\.npy is refused: it holds pickled"):
        hc.import_checkpoint(tmp_path / "m.npz", tmp_path / "back")
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "back").exists()


def test_numpys_own_archives_are_read(tmp_path: Path) -> None:
    values = {
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "e": np.empty((0, 3)),
        "s": np.float32(1),
        "b": np.True_,
    }
    np.savez_compressed(tmp_path / "m.npz", **values)
    done = hc.import_checkpoint(tmp_path / "m.npz", tmp_path / "back")
    assert_same(hc.load(done.path), {name: np.ascontiguousarray(v).reshape(v.shape) for name, v in values.items()})


def npy(header: dict[str, Any], data: bytes) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (npy({"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)}, b"x" * 8), CorruptError),
        (npy({"descr": "<f8", "fortran_order": False, "shape": (3,)}, b"x" * 8), CorruptError),
        (npy({"descr": [("a", "<f8")], "fortran_order": False, "shape": ()}, b"x" * 8), HpcckptError),
        (b"no array", ForeignFormatError),
        (b"\x93NUMPY\x09\x00", ForeignFormatError),
    ],
)
def test_headers_that_lie_allocate_nothing(content: bytes, error: type[Exception], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        archive.writestr("w.npy", content)
    with pytest.raises(error):
        hc.import_checkpoint(tmp_path / "m.npz", tmp_path / "back")


def test_names_that_would_climb_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **{"../../w": np.ones(2)})
    with pytest.raises(ForeignFormatError, match="cannot be names of tensors"):
        hc.import_checkpoint(tmp_path / "m.npz", tmp_path / "back")


# -- safetensors -----------------------------------------------------------------------------------


def test_files_of_the_safetensors_library_are_read(tmp_path: Path) -> None:
    values = {
        "conv.weight": np.arange(6, dtype=np.float16).reshape(2, 3),
        "n": np.array(3),
        "e": np.empty((0,), np.uint8),
    }
    save_file(values, tmp_path / "m.safetensors", {"format": "pt"})
    done = hc.import_checkpoint(tmp_path / "m.safetensors", tmp_path / "back", 4)
    assert_same(hc.load(done.path), values)


def safetensors(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (safetensors({"w": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 4]}}, b"abcd"), CorruptError),
        (safetensors({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}}, b"abcd"), CorruptError),
        (safetensors({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"abcd"), CorruptError),
        (safetensors({"w": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"abcd"), CorruptError),
        (
            safetensors(
                {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in ("w", "over")}, b"abcd"
            ),
            CorruptError,
        ),
        (safetensors({"w": 3}), CorruptError),
        (safetensors([]), CorruptError),
        (safetensors(b"{" * 50), CorruptError),
        (safetensors(b'{"a":' * 100_000), CorruptError),
        (struct.pack("<Q", 1 << 60) + b"{}", CorruptError),
        (b"short", CorruptError),
        (safetensors({"w": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, b"a"), ForeignFormatError),
        (safetensors({}), ForeignFormatError),
        (safetensors({"w": {"dtype": "F32", "shape": [1 << 61, 0], "data_offsets": [0, 0]}}), ConfigError),
    ],
)
def test_headers_of_safetensors_are_not_believed(content: bytes, error: type[Exception], tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(error):
        hc.import_checkpoint(tmp_path / "m.safetensors", tmp_path / "back", fmt="safetensors")


def test_a_header_that_readers_of_safetensors_refuse_is_not_written(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_safetensors, "MAX_HEADER_BYTES", 500)
    with pytest.raises(OptionError, match="readers take at most 500: write fewer"):
        hc.export_checkpoint(saved, tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()


def test_a_data_file_of_ours_is_not_the_checkpoint(saved: Path, tmp_path: Path) -> None:
    (part,) = (saved / "step-0000000007" / "data").iterdir()
    with pytest.raises(ForeignFormatError, match="give the directory of the step"):
        hc.import_checkpoint(part, tmp_path / "back")


@pytest.mark.parametrize("suffix", [*PLAIN, "h5"])
def test_whatever_bytes_change_the_error_is_one_of_ours(suffix: str, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / f"m.{suffix}"
    if suffix == "h5":
        with h5py.File(path, "w") as file:
            keras_layers(file, {"dense": ["dense/kernel:0", "dense/bias:0"]})
    else:
        hc.export_checkpoint(saved, path)
    sound, dice = path.read_bytes(), random.Random(5)
    for number in range(60):
        damaged = bytearray(sound[: dice.randrange(len(sound))] if number % 4 == 0 else sound)
        for _ in range(dice.randrange(1, 4) if damaged else 0):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        path.write_bytes(damaged)
        try:
            hc.import_checkpoint(path, tmp_path / "back", number, fmt=suffix)
        except HpcckptError:
            pass


# -- HDF5 ------------------------------------------------------------------------------------------


def keras_layers(group: Any, layers: dict[str, list[str]]) -> None:
    """Write weights as Keras 2 lays them out; each is filled with its own number."""
    group.attrs["layer_names"] = [name.encode() for name in layers]
    for layer, weights in layers.items():
        room = group.create_group(layer)
        room.attrs["weight_names"] = [name.encode() for name in weights]
        for number, name in enumerate(weights):
            room[name] = np.full((2, number + 1), number, np.float32)


def test_weights_of_keras_2_keep_their_names(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        keras_layers(file, {"input_1": [], "dense": ["dense/kernel:0", "dense/bias:0"], "inner": ["a/kernel:0"]})
    done = hc.import_checkpoint(tmp_path / "w.h5", tmp_path / "back")
    assert sorted(hc.load(done.path)) == ["model/dense/bias", "model/dense/kernel", "model/inner/a/kernel"]
    assert done.source_format == "h5"


@pytest.mark.parametrize(
    "names",
    [
        ["iteration:0", "Adam/m/dense_3/kernel:0", "Adam/v/dense_3/kernel:0"],  # of Keras 2.15 after fit
        ["iteration:0", "m/dense_3/kernel:0", "v/dense_3/kernel:0"],  # built by hand
        ["adam/iteration", "adam/dense_3_kernel_m", "adam/dense_3_kernel_v"],  # of Keras 3
    ],
)
def test_a_whole_model_of_keras_gives_the_names_of_a_checkpoint(names: list[str], tmp_path: Path) -> None:
    config = {
        "class_name": "Sequential",
        "config": {"layers": [{"class_name": "Dense", "config": {"name": "dense_3"}}]},
    }
    with h5py.File(tmp_path / "m.h5", "w") as file:
        keras_layers(file.create_group("model_weights"), {"dense_3": ["dense_3/kernel:0"]})
        file.attrs["model_config"] = json.dumps(config)
        file.attrs["training_config"] = json.dumps({"optimizer_config": {"config": {"learning_rate": 0.25}}})
        room = file.create_group("optimizer_weights")
        room.attrs["weight_names"] = [name.encode() for name in names]
        for number, name in enumerate(names):
            room[name] = np.full(2 if number else (), number, np.float32 if number else np.int64)
    done = hc.import_checkpoint(tmp_path / "m.h5", tmp_path / "back")
    assert set(hc.load(done.path)) == {
        "model/dense/kernel", "optimizer/iteration", "optimizer/learning_rate",
        "optimizer/m/dense/kernel", "optimizer/v/dense/kernel",
    }  # fmt: skip
    assert hc.load(done.path)["optimizer/learning_rate"] == np.float32(0.25)


def test_numbered_weights_are_named_by_their_place(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = np.ones((2, 2), np.float32)
        file["optimizer/vars/0"] = np.int64(4)
        file["metrics/mean/vars/0"] = np.float32(1)
        half = np.arange(3).astype(ml_dtypes.bfloat16)
        file["layers/dense/vars/1"] = half.view("V2")
        file["layers/dense/vars/1"].attrs["dtype"] = "bfloat16"
    done = hc.import_checkpoint(tmp_path / "m.weights.h5", tmp_path / "back")
    found = hc.load(done.path)
    assert set(found) == {"model/layers/dense/vars/0", "model/layers/dense/vars/1", "optimizer/vars/0"}
    assert found["model/layers/dense/vars/1"].dtype == ml_dtypes.bfloat16


def test_hdf5_that_is_not_keras_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["data"] = np.ones(3)
    with pytest.raises(ForeignFormatError, match="not one of Keras'"):
        hc.import_checkpoint(tmp_path / "m.h5", tmp_path / "back")
    with pytest.raises(ForeignFormatError, match="not one of Keras'"):
        hc.import_checkpoint(tmp_path / "m.h5", tmp_path / "back", fmt="h5")


def test_hdf5_that_is_damaged_is_so_called(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        keras_layers(file, {"dense": ["dense/kernel:0"]})
        file["dense"].attrs["weight_names"] = [b"dense/absent:0"]
    with pytest.raises(CorruptError):
        hc.import_checkpoint(tmp_path / "m.h5", tmp_path / "back")
    (tmp_path / "m.h5").write_bytes((tmp_path / "m.h5").read_bytes()[:300])
    with pytest.raises(CorruptError):
        hc.import_checkpoint(tmp_path / "m.h5", tmp_path / "back")


def test_what_needs_no_framework_loads_none(saved: Path, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        keras_layers(file, {"dense": ["dense/kernel:0"]})
    code = f"""
import sys
import hpcckpt as hc
room = {str(tmp_path)!r}
for name in ("npz", "safetensors"):
    hc.export_checkpoint({str(saved)!r}, f"{{room}}/m.{{name}}")
    hc.import_checkpoint(f"{{room}}/m.{{name}}", f"{{room}}/{{name}}")
print([name for name in ("h5py", "tensorflow", "keras", "torch", "mpi4py") if name in sys.modules])
hc.import_checkpoint(f"{{room}}/w.h5", f"{{room}}/h5")
print([name for name in ("tensorflow", "keras", "torch", "mpi4py") if name in sys.modules])
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI"))}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[]", "[]"], done.stderr


def hostile_hdf5(path: Path, kind: str) -> None:
    """Write weights of Keras of which one lies elsewhere, or nowhere."""
    path.with_name("secret").write_bytes(b"x" * 16)
    with h5py.File(path.with_name("other.h5"), "w") as other:
        other["w"] = np.ones(2)
    with h5py.File(path, "w") as file:
        keras_layers(file, {"dense": ["dense/bias:0"]})
        del file["dense/dense/bias:0"]
        if kind == "external link":
            file["dense/dense/bias:0"] = h5py.ExternalLink("other.h5", "/w")
        elif kind == "soft link":
            file["dense/dense/bias:0"] = h5py.SoftLink("/dense")
        elif kind == "external data":
            file.create_dataset("dense/dense/bias:0", (2,), "f8", external=[(str(path.with_name("secret")), 0, 16)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout((2,), "f8")
            layout[:] = h5py.VirtualSource(str(path.with_name("other.h5")), "w", (2,))
            file.create_virtual_dataset("dense/dense/bias:0", layout)
        elif kind == "chunk bomb":
            options = {"maxshape": (None,), "chunks": (1 << 24,), "compression": "gzip"}
            bias = file.create_dataset("dense/dense/bias:0", (3,), "f8", **options)
            bias.id.write_direct_chunk((0,), zlib.compress(bytes(1 << 27), 1))
        else:
            file.create_dataset("dense/dense/bias:0", (1 << 40,), "f8", chunks=(1 << 10,))


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("external link", ForeignFormatError, "is a link, not data"),
        ("soft link", ForeignFormatError, "is a link, not data"),
        ("external data", ForeignFormatError, "its data lie in another file"),
        ("virtual", ForeignFormatError, "its data lie in another file"),
        ("chunk bomb", CorruptError, "bias:0 is refused: it has 24 bytes, in chunks of 134217728"),
        ("nothing stored", CorruptError, "says that it has 8796093022208 bytes, and 0 are there"),
    ],
)
def test_hdf5_that_reaches_out_or_lies_is_refused(kind: str, error: type[Exception], text: str, tmp_path: Path) -> None:
    hostile_hdf5(tmp_path / "m.h5", kind)
    with pytest.raises(error, match=text):
        hc.import_checkpoint(tmp_path / "m.h5", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_an_archive_of_nothing_but_zeros_is_no_way_to_fill_the_memory(tmp_path: Path) -> None:
    """Deflate packs no more than 1032 to 1; a directory of the archive that says more is not believed."""
    with zipfile.ZipFile(tmp_path / "m.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", npy({"descr": "<f8", "fortran_order": False, "shape": (1 << 17,)}, bytes(1 << 20)))
    content = (tmp_path / "m.npz").read_bytes()
    size = struct.pack("<I", len(npy({"descr": "<f8", "fortran_order": False, "shape": (1 << 17,)}, bytes(1 << 20))))
    (tmp_path / "m.npz").write_bytes(content.replace(size, struct.pack("<I", 0xF0000000)))
    with pytest.raises(CorruptError, match="says that it has 4026531840 bytes"):
        hc.import_checkpoint(tmp_path / "m.npz", tmp_path / "back")


# -- whole or not at all ---------------------------------------------------------------------------


@pytest.mark.usefixtures("no_leftovers")
def test_a_directory_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    def write(content: str, *, is_overwriting: bool = False) -> None:
        with atomic_files.atomic_directory(tmp_path / "out", is_overwriting=is_overwriting) as temporary:
            (temporary / "deep").mkdir(parents=True)
            (temporary / "deep" / "file").write_text(content, encoding="utf-8")
            if content == "bad":
                raise OSError(28, "No space left on device")

    with pytest.raises(HpcckptError, match="No space"):
        write("bad")
    assert list(tmp_path.iterdir()) == []
    write("one")
    with pytest.raises(OptionError, match="exists"):
        write("two")
    write("three", is_overwriting=True)
    assert (tmp_path / "out/deep/file").read_text(encoding="utf-8") == "three"
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="is a file"), atomic_files.atomic_directory(tmp_path / "file"):
        pass


def bundle(prefix: Path, text: str = "x", **more: Any) -> None:
    with tf_files.atomic_bundle(prefix, **more) as temporary:
        for suffix in (tf_files.DATA, tf_files.INDEX):
            temporary.with_name(temporary.name + suffix).write_text(text, encoding="utf-8")


@pytest.mark.usefixtures("no_leftovers")
def test_the_file_checkpoint_names_the_newest_that_is_there(tmp_path: Path) -> None:
    for name in ("cp-0001.ckpt", 'odd "name".ckpt', "cp-0002.ckpt"):
        bundle(tmp_path / name)
    assert tf_files.latest(tmp_path) == tmp_path / "cp-0002.ckpt"
    assert tf_files.listed(tmp_path) == ["cp-0001.ckpt", 'odd "name".ckpt', "cp-0002.ckpt"]
    (tmp_path / "cp-0001.ckpt.index").unlink()
    bundle(tmp_path / "cp-0002.ckpt", is_overwriting=True)
    assert tf_files.listed(tmp_path) == ['odd "name".ckpt', "cp-0002.ckpt"]
    with pytest.raises(OptionError, match="exists"):
        bundle(tmp_path / "cp-0002.ckpt")


@pytest.mark.parametrize("name", ["gr\u00fcn \u2603.ckpt", 'tab\t"quote".ckpt', "back\\slash.ckpt", "odd\udcff.ckpt"])
def test_the_file_checkpoint_is_ascii_whatever_names_are(name: str, tmp_path: Path) -> None:
    for each in (name, "other.ckpt", name):
        bundle(tmp_path / each, is_overwriting=True)
    assert (tmp_path / "checkpoint").read_bytes().isascii()
    assert tf_files.latest(tmp_path) == tmp_path / name
    assert tf_files.listed(tmp_path) == ["other.ckpt", name]


@pytest.mark.usefixtures("no_leftovers")
def test_damage_and_failures_leave_nothing(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = (saved / "step-0000000007" / "data").iterdir()
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    for name in PLAIN:
        with pytest.raises(CorruptError):
            hc.export_checkpoint(saved / "step-0000000007", tmp_path / f"m.{name}")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_other_programs_may_read_it(saved: Path, tmp_path: Path) -> None:
    """A pickled file under a name of hpcckpt is not unpickled to find out what it is."""
    (tmp_path / "m.npz").write_bytes(pickle.dumps(Trap(tmp_path / "sprung"), protocol=2))
    with pytest.raises(HpcckptError):
        hc.import_checkpoint(tmp_path / "m.npz", tmp_path / "back")
    assert not (tmp_path / "sprung").exists()
    assert save_plain(tmp_path / "again").is_dir()
