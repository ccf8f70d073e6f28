"""Values that are not tensors: shown, compared and exported by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.errors import OptionError, StepNotFoundError
from hpcckpt.testing.ranks import run_ranks

pytestmark = pytest.mark.one_case

Cli = Callable[..., Any]


def heat(directory: Path, energy: float = 478148.982742773, position: int = 3, step: int = 5) -> Path:
    """Save what a PDE solver has, from two ranks: a field, scalars, a random stream per rank."""

    def save(comm: Any) -> None:
        u = np.arange(4.0)[comm.rank * 2 : comm.rank * 2 + 2]
        state = {
            "u": hc.Sharded(u, (4,), (comm.rank * 2,)),
            "scalars": {"energy": energy, "n": 7, "name": "heat", "history": [energy, 1.0]},
            "rng": hc.PerRank({"state": {"pos": position, "rank": comm.rank}, "x": energy}),
            "halo": hc.PerRank(np.array([comm.rank])),
        }
        with hc.Checkpointer(directory, comm=comm) as ckpt:
            ckpt.save(step, state, metrics={"loss": 0.5}, objects={"note": "hot"})

    run_ranks(2, save)
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return heat(tmp_path / "run")


def test_info_returns_objects_metrics_sizes_and_per_rank_values(run: Path) -> None:
    found = hc.info(run)
    assert (found.step, found.ranks, found.metrics) == (5, 2, {"loss": 0.5})
    assert found.objects["state"]["scalars/energy"] == 478148.982742773
    assert found.objects["user"] == {"note": "hot"}
    assert found.per_rank["rng"][1]["state"] == {"pos": 3, "rank": 1}
    assert [int(part[0]) for part in found.per_rank["halo"]] == [0, 1]
    assert sorted(found.per_rank) == ["halo", "rng"]
    assert found.tensors["u"].shape == (4,)
    assert found.nbytes == sum(file.stat().st_size for file in found.path.glob("data/*"))
    assert found.tensor_nbytes >= 32


def test_info_takes_a_step_of_a_run_or_its_directory(run: Path) -> None:
    heat(run, step=6)
    assert [hc.info(run).step, hc.info(run, 5).step, hc.info(run, "latest").step] == [6, 5, 6]
    assert hc.info(run / "step-0000000005").step == 5
    with pytest.raises(StepNotFoundError):
        hc.info(run, 7)


def test_load_of_a_value_names_the_call_that_returns_it(run: Path) -> None:
    with pytest.raises(OptionError, match=r"hpcckpt\.info\(path\)\.objects\['state'\]\['scalars/energy'\]"):
        hc.load(run, "scalars/energy")


@pytest.mark.parametrize("name", ["rng/json#1", "rng#1"])
def test_the_json_value_of_one_rank_is_shown(cli: Cli, run: Path, name: str) -> None:
    result = cli("tensors", run, "-d", name, "--json")
    assert result.json["values"] == {"rng/json#1": {"state": {"pos": 3, "rank": 1}, "x": 478148.982742773}}
    assert '"rank": 1' in cli("tensors", run, "-d", name).out


def test_one_rank_of_a_tensor_and_an_object_are_shown(cli: Cli, run: Path) -> None:
    assert cli("tensors", run, "-d", "halo#1", "--json").json["values"] == {"halo#1": [1]}
    assert len(cli("tensors", run, "-d", "rng", "--json").json["values"]) == 2
    assert cli("tensors", run, "-d", "scalars/n").out.splitlines() == ["scalars/n", "7"]
    assert cli("tensors", run, "-d", "state/scalars/n").out.splitlines() == ["scalars/n", "7"]  # as diff calls it
    assert "saved by 2 ranks" in cli("tensors", run, "-d", "rng#2").err


def test_statistics_leave_json_out(cli: Cli, run: Path) -> None:
    assert "json" not in cli("tensors", run, "--stats").out


def test_rtol_applies_to_floats_in_objects_and_per_rank_values(cli: Cli, run: Path, tmp_path: Path) -> None:
    other = heat(tmp_path / "other", 478148.9827427731)
    assert cli("diff", run, other, "--rtol", "1e-12").code == 0
    found = cli("diff", run, other, "--json")
    assert found.code == 5
    names = ["state/scalars/energy", "state/scalars/history"]
    assert [each["name"] for each in found.json["objects"]] == names
    assert cli("diff", run, heat(tmp_path / "far", 4.0), "--rtol", "1e-3").code == 5


def test_per_rank_json_that_differs_is_shown_by_value(cli: Cli, run: Path, tmp_path: Path) -> None:
    other = heat(tmp_path / "other", position=4)
    result = cli("diff", run, other)
    assert result.code == 5
    assert "rng/json#0  1 of 3 values, first state/pos 3 -> 4" in result.out


def test_whole_numbers_in_objects_count_despite_rtol(cli: Cli, tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 2)):
        with hc.Checkpointer(tmp_path / name) as ckpt:
            ckpt.save(1, {"n": value, "z": -0.0 if name == "a" else 0.0})
    assert cli("diff", tmp_path / "a", tmp_path / "b", "--rtol", "0.9").code == 5
    assert "n: 1 -> 2" in cli("diff", tmp_path / "a", tmp_path / "b").out
    assert "z: -0.0 -> 0.0" in cli("diff", tmp_path / "a", tmp_path / "b").out


@pytest.mark.parametrize("verb", ["restore", "convert"])
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_an_export_reports_the_values_that_it_leaves_out(
    cli: Cli, run: Path, tmp_path: Path, verb: str, suffix: str
) -> None:
    out = tmp_path / f"u.{suffix}"
    words = (verb, run, "--out", out) if verb == "restore" else (verb, run, out)
    result = cli(*words)
    text = " ".join((result.out + result.err).split())
    assert "left out" in text
    assert "hpcckpt info" in text
    assert "scalars/energy" in text


@pytest.mark.parametrize("verb", ["restore", "convert"])
def test_an_hdf5_file_has_a_dataset_for_each_tensor_and_value(cli: Cli, run: Path, tmp_path: Path, verb: str) -> None:
    out = tmp_path / "u.h5"
    result = cli(verb, run, "--out", out) if verb == "restore" else cli(verb, run, out)
    assert result.code == 0
    assert "left out" not in result.out + result.err
    with h5py.File(out) as file:
        assert file["u"][...].tolist() == [0, 1, 2, 3]
        assert file["scalars/energy"][()] == 478148.982742773
        assert file["scalars/name"].asstr()[()] == "heat"
        assert file["halo#1"][...].tolist() == [1]
        assert '"rank": 1' in file["rng/json#1"].asstr()[()]
        assert file["scalars/history"].attrs["json"]


def test_hdf5_widens_narrow_floats_and_names_what_it_cannot_hold(cli: Cli, tmp_path: Path) -> None:
    import ml_dtypes

    state = {
        "half": np.ones(3, ml_dtypes.bfloat16),
        "z": np.ones((0, 2)),
        "c": np.ones(2, complex),
        "b": np.array(True),
    }
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {**state, "text": np.array(["ü"])})
    refused = cli("restore", tmp_path / "run", "--out", tmp_path / "x.h5")
    assert (refused.code, "text: has no HDF5 type" in refused.err) == (2, True)
    result = cli("restore", tmp_path / "run", "--out", tmp_path / "x.h5", *(f"--only={name}" for name in state))
    assert "as float32" in result.err
    with h5py.File(tmp_path / "x.h5") as file:
        assert file["half"].dtype == np.float32
        assert {name: file[name].shape for name in state} == {name: value.shape for name, value in state.items()}
