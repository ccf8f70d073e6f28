"""``hpcckpt reshard``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors, native
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir.discovery import read_manifest
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tools import reshard
from tests.support.listing import listed

Cli = Callable[..., Any]


def shared(step: int, rank: int = 0, n_ranks: int = 1) -> dict[str, Any]:
    """Return a state without anything of the ranks' own: all kinds, odd widths, empty tensors, more than a part."""
    rows = np.arange(30 * 7.0).reshape(30, 7) + step
    n_rows = 30 // n_ranks
    return {
        "model": {"w": np.arange(400_000) * step, "b": np.full(3, step, np.float32), "none": np.zeros((0, 4))},
        "half": np.full((3, 5), step, ml_dtypes.bfloat16),
        "names": np.array(["a", "bc", "def"] * 40_000, "<U5"),
        "scalar": np.array(step),
        "statistics": hc.RootOnly(np.full(5, step + 0.5)),
        "table": hc.Sharded(rows[rank * n_rows : (rank + 1) * n_rows], rows.shape, (rank * n_rows, 0)),
        "epoch": step,
    }


def save(run: Path, n_ranks: int, steps: tuple[int, ...] = (10,)) -> Path:
    def body(comm: Any) -> None:
        with hc.Checkpointer(run, comm=comm) as ckpt:
            for step in steps:
                ckpt.save(step, shared(step, comm.rank, n_ranks), metrics={"loss": 0.5}, objects={"x": [1]}).result()

    run_ranks(n_ranks, body)
    return run


def same_bytes(one: Path, other: Path) -> bool:
    a, b = hc.load(one), hc.load(other)
    return {name: (v.dtype, v.shape, v.tobytes()) for name, v in a.items()} == {
        name: (v.dtype, v.shape, v.tobytes()) for name, v in b.items()
    }


@pytest.mark.parametrize("n_before", [1, 3])
@pytest.mark.parametrize("n_files", [1, 2, 5])
def test_every_tensor_comes_back_to_the_bit_on_any_number_of_ranks(
    cli: Cli, tmp_path: Path, n_before: int, n_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reshard, "PART_BYTES", 1 << 20)
    run, out = save(tmp_path / "run", n_before), tmp_path / "deep" / "out"
    result = cli("reshard", run, "--files", n_files, "--out", out, "--json")
    assert result.code == 0
    assert (result.json["ranks_before"], result.json["ranks"], result.json["step"]) == (n_before, n_files, 10)
    new = out / "step-0000000010"
    assert same_bytes(run, new)
    assert len(list((new / "data").iterdir())) == n_files
    assert cli("verify", out).code == 0
    assert cli("diff", run / new.name, new).code == 0
    for n_ranks in (1, 2, 3):
        run_ranks(n_ranks, lambda comm, n=n_ranks: restores(comm, out, n))


def restores(comm: Any, run: Path, n_ranks: int) -> None:
    own, expected = shared(0, comm.rank, n_ranks), shared(10, comm.rank, n_ranks)
    with hc.Checkpointer(run, comm=comm) as ckpt:
        found = ckpt.restore(own)
    assert found.warnings == ()
    assert (found.objects, found.metrics, own["epoch"]) == ({"x": [1]}, {"loss": 0.5}, 10)
    assert own["model"]["w"].tolist() == expected["model"]["w"].tolist()
    assert own["table"].array.tolist() == expected["table"].array.tolist()
    assert own["names"].tolist() == expected["names"].tolist()


def test_files_are_as_even_as_those_of_a_save(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 1), tmp_path / "out"
    assert cli("reshard", run, "--files", 4, "--out", out).code == 0
    sizes = [path.stat().st_size for path in (out / "step-0000000010" / "data").iterdir()]
    assert max(sizes) < 1.05 * min(sizes)


def test_one_file_holds_whole_tensors_for_other_readers(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 3), tmp_path / "out"
    assert cli("reshard", run, "--files", 1, "--out", out).code == 0
    raw = (out / "step-0000000010" / "data" / "rank-00000.safetensors").read_bytes()
    names = set(json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])) - {"__metadata__"}
    assert names == set(hc.load(run))


def test_the_new_save_has_an_identity_of_its_own_in_the_same_lineage(cli: Cli, tmp_path: Path) -> None:
    run, out = save(tmp_path / "run", 2, (10, 20)), tmp_path / "out"
    result = cli("reshard", run, "--files", 3, "--out", out, "--json")
    old, new = read_manifest(run / "step-0000000020"), read_manifest(out / "step-0000000020")
    assert new.save_id == result.json["save_id"] != old.save_id
    assert (new.run_id, new.parent, new.created) == (old.run_id, old.parent, old.created)
    assert old.parent is not None
    assert old.save_id in new.environment["resharded"]


@pytest.mark.parametrize("n_files", [1, 2, 3])
def test_in_place_the_step_is_exchanged(cli: Cli, tmp_path: Path, n_files: int) -> None:
    run, twin = save(tmp_path / "run", 2), save(tmp_path / "twin", 2)
    result = cli("reshard", run, "--files", n_files, "--in-place", "--yes")
    assert result.code == 0
    assert f"ranks 2 -> {n_files}" in result.out
    assert same_bytes(run, twin)
    assert listed(run) == ["step-0000000010"]
    assert len(list((run / "step-0000000010" / "data").iterdir())) == n_files


def test_in_place_asks_first(cli: Cli, tmp_path: Path) -> None:
    run = save(tmp_path / "run", 2)
    before = read_manifest(run / "step-0000000010")
    assert cli("reshard", run, "--files", 1, "--in-place", answer="n\n").code == 1
    assert read_manifest(run / "step-0000000010") == before


def test_entries_of_each_rank_need_the_same_number_of_ranks(cli: Cli, saved: Path, tmp_path: Path) -> None:
    refused = cli("reshard", saved, "--files", 2, "--out", tmp_path / "out")
    assert refused.code == 2
    assert "seed" in refused.err
    assert "--files 3 to keep them, or --drop-per-rank" in refused.err
    assert not (tmp_path / "out").exists()


def test_entries_of_each_rank_are_kept_with_the_same_number_of_ranks(cli: Cli, saved: Path, tmp_path: Path) -> None:
    assert cli("reshard", saved, "--files", 3, "--out", tmp_path / "out").code == 0
    assert same_bytes(saved, tmp_path / "out")
    assert "seed#2" in hc.load(tmp_path / "out")


def test_entries_of_each_rank_can_be_dropped(cli: Cli, saved: Path, tmp_path: Path) -> None:
    result = cli("reshard", saved, "--files", 2, "--out", tmp_path / "out", "--drop-per-rank", "--json")
    assert result.code == 0
    assert result.json["dropped"] == ["seed"]
    assert set(hc.load(saved)) - set(hc.load(tmp_path / "out")) == {"seed#0", "seed#1", "seed#2"}


def test_a_dry_run_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    run = save(tmp_path / "run", 2)
    result = cli("reshard", run, "--files", 1, "--out", tmp_path / "out", "--dry-run")
    assert result.code == 0
    assert "would write" in result.out
    assert not (tmp_path / "out").exists()
    assert listed(run) == ["step-0000000010"]


def test_a_step_that_is_there_is_not_replaced(cli: Cli, tmp_path: Path) -> None:
    run = save(tmp_path / "run", 2)
    before = read_manifest(run / "step-0000000010")
    result = cli("reshard", run, "--files", 1, "--out", run)
    assert result.code == 1
    assert "--in-place" in result.err
    assert read_manifest(run / "step-0000000010") == before


def test_damage_is_noticed_on_the_way_and_nothing_is_published(cli: Cli, tmp_path: Path) -> None:
    run = save(tmp_path / "run", 2)
    path = run / "step-0000000010" / "data" / "rank-00001.safetensors"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert cli("reshard", run, "--files", 1, "--out", tmp_path / "out").code == 3
    assert cli("reshard", run, 10, "--files", 1, "--in-place", "--yes").code == 3
    assert os.listdir(tmp_path / "out") == []
    assert listed(run) == [".damaged", "step-0000000010"]
    assert path.exists()


def test_a_running_job_makes_it_exit_with_8(cli: Cli, busy: Path, tmp_path: Path) -> None:
    before = read_manifest(busy / "step-0000000030")
    assert cli("reshard", busy, "--files", 3, "--in-place", "--yes").code == 8
    assert read_manifest(busy / "step-0000000030") == before
    assert cli("reshard", busy, "--files", 3, "--out", tmp_path / "out").code == 0  # reading a busy run is no offence


def test_a_step_replaced_since_it_was_opened_is_not_replaced_again(tmp_path: Path) -> None:
    run = save(tmp_path / "run", 1)
    reader = open_step(run)
    plan = reshard.plan_reshard(reader, 2)
    with hc.Checkpointer(run) as ckpt:
        ckpt.save(10, shared(10), metrics={"loss": 0.25}, overwrite=True).result()
    with pytest.raises(errors.StepExistsError, match="meanwhile"):
        reshard.reshard(reader, plan, run, is_replacing=True)
    assert read_manifest(run / "step-0000000010").metrics == {"loss": 0.25}


def test_where_it_goes_must_be_said_once(cli: Cli, saved: Path, tmp_path: Path) -> None:
    assert cli("reshard", saved, "--files", 3).code == 2
    assert cli("reshard", saved, "--files", 3, "--in-place", "--out", tmp_path / "out").code == 2
    assert cli("reshard", saved, "--files", 0, "--in-place").code == 2


def test_memory_stays_bounded(tmp_path: Path, environment: Callable[..., dict[str, str]]) -> None:
    """One tensor of 256 MiB becomes one file with far less than that in memory."""
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"w": np.arange(1 << 25, dtype=np.int64)}).result()
    code = (
        "import resource, sys; from hpcckpt.cli import main; import hpcckpt.tools.reshard; "
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        "assert main(sys.argv[1:]) == 0; "
        "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    words = ["reshard", tmp_path / "run", "--files", "2", "--out", tmp_path / "out", "-q"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], env=environment(), capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[-1]) < 160 << 10
    assert native.crc32c(hc.load(tmp_path / "out")["w"]) == native.crc32c(np.arange(1 << 25, dtype=np.int64))


KILLED = """
import sys
from hpcckpt.cli import main
from hpcckpt.testing.faults import Fault, arm
arm(Fault(sys.argv[1]))
main(["reshard", sys.argv[2], "--files", "2", "--in-place", "--yes"])
"""


@pytest.mark.parametrize("phase", ["4-check", "4-manifest", "4-durable", "5-published", "6-parent-synced"])
def test_killed_in_place_the_old_step_or_the_new_one_is_there(cli: Cli, tmp_path: Path, phase: str) -> None:
    run, twin = save(tmp_path / "run", 1), save(tmp_path / "twin", 1)
    done = subprocess.run([sys.executable, "-c", KILLED, phase, str(run)], check=False)
    assert done.returncode == -9
    assert same_bytes(run, twin)
    assert cli("verify", run, "--all").code == 0
    assert read_manifest(run / "step-0000000010").n_ranks == (2 if phase[0] in "56" else 1)
    assert cli("reshard", run, "--files", 3, "--in-place", "--yes").code == 0
    assert cli("prune", run, "--yes").code == 0
    assert set(listed(run)) - {".pins"} == {"step-0000000010"}
    assert same_bytes(run, twin)


def test_a_disk_that_is_full_leaves_all_as_it_was(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = save(tmp_path / "run", 2)
    before = read_manifest(run / "step-0000000010")

    def fail(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(native, "preallocate", fail)
    assert cli("reshard", run, "--files", 1, "--in-place", "--yes").code == 7
    assert read_manifest(run / "step-0000000010") == before
    assert listed(run) == ["step-0000000010"]
