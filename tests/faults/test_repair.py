"""A lost manifest is rebuilt from one complete set of files of one save, and from nothing less."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors, native
from hpcckpt.backends.base import BlockRecord, LinkSource, Payload
from hpcckpt.backends.rankfile import frozen
from hpcckpt.format import layout
from hpcckpt.rundir.discovery import newest_restorable, read_manifest
from hpcckpt.state import tree
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tools import repair as repairing


def state(step: int, rank: int = 0, n_ranks: int = 1) -> dict[str, Any]:
    """Return tensors of every kind, odd dtypes, empty ones and scalars."""
    rows = np.arange(6 * n_ranks * 4.0).reshape(6 * n_ranks, 4) + step
    return {
        "model": {"w": np.arange(3000) + step, "b": np.full(3, step, np.float32), "none": np.zeros((0, 4))},
        "half": np.full(7, step, ml_dtypes.bfloat16),
        "names": np.array(["a", "bc"], "<U5"),
        "scalar": np.array(step),
        "statistics": hc.RootOnly(np.full(5, step + 0.5)),
        "table": hc.Sharded(rows[6 * rank : 6 * rank + 6], rows.shape, (6 * rank, 0)),
        "seed": hc.PerRank(np.arange(step + rank, step + 2 * rank + 1)),
        "position": hc.PerRank({"batch": step, "rank": rank}),
        "epoch": step,
    }


def save(run_dir: Path, *steps: int, n_ranks: int = 2, **options: Any) -> dict[int, Path]:
    def body(comm: Any) -> None:
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=None, **options) as ckpt:
            for step in steps:
                ckpt.save(step, state(step, comm.rank, n_ranks), metrics={"loss": 0.5}).result()

    run_ranks(n_ranks, body)
    return {step: run_dir / layout.step_dirname(step) for step in steps}


def repair(path: Path) -> repairing.RepairFinding:
    finding = repairing.examine(path)
    if finding.is_good and finding.is_changed:
        repairing.publish(finding)
    return finding


def lose(step: Path) -> None:
    (step / layout.MANIFEST).unlink()


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_a_rebuilt_manifest_restores_every_tensor_to_the_bit(run_dir, n_ranks):
    path = save(run_dir, 10, n_ranks=n_ranks)[10]
    before, old = hc.load(path), read_manifest(path)
    lose(path)
    assert repair(path).is_good
    after, new = hc.load(path), read_manifest(path)
    assert list(after) == list(before)
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)
    assert (new.tensors, new.files, new.n_ranks) == (old.tensors, old.files, old.n_ranks)
    assert (new.save_id, new.step, new.block_bytes, new.backend) == (old.save_id, 10, old.block_bytes, old.backend)

    def body(comm: Any) -> None:
        own = state(0, comm.rank, n_ranks)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            found = ckpt.restore(own, strict=False)
        assert found.missing == ("epoch",)
        expected = state(10, comm.rank, n_ranks)
        assert own["model"]["w"].tolist() == expected["model"]["w"].tolist()
        assert own["table"].array.tolist() == expected["table"].array.tolist()
        assert own["seed"].value.tolist() == expected["seed"].value.tolist()
        assert own["position"].value == expected["position"].value
        assert own["epoch"] == 0

    run_ranks(n_ranks, body)


def test_a_repaired_step_says_so_and_claims_nothing_that_was_lost(run_dir):
    path = save(run_dir, 10)[10]
    lose(path)
    repair(path)
    manifest = read_manifest(path)
    assert "objects, metrics, environment were lost" in manifest.environment["repaired"]
    assert manifest.level == "weights"
    assert manifest.objects == {"state": {}, "user": {}}
    assert manifest.metrics == {}


def test_restoring_objects_that_were_lost_is_refused_with_the_reason(run_dir):
    path = save(run_dir, 10, n_ranks=1)[10]
    lose(path)
    repair(path)
    with (
        hc.Checkpointer(run_dir) as ckpt,
        pytest.raises(errors.StateMismatchError, match=r"'epoch'.*rebuilt.*strict=False"),
    ):
        ckpt.restore(state(0))


@pytest.mark.parametrize("text", [b"", b"{", b'{\n "crc32c": "00000000"\n}'])
def test_a_damaged_manifest_is_kept_as_evidence(run_dir, text):
    path = save(run_dir, 10)[10]
    (path / layout.MANIFEST).write_bytes(text)
    repair(path)
    (evidence,) = path.glob("manifest.json.bad-*")
    assert evidence.read_bytes() == text
    assert hc.latest_checkpoint(run_dir) == path


def test_the_manifest_of_another_step_is_replaced(run_dir):
    steps = save(run_dir, 10, 20)
    shutil.copy(steps[10] / layout.MANIFEST, steps[20] / layout.MANIFEST)
    assert repairing.find_damaged(run_dir) == [steps[20]]
    assert repair(steps[20]).is_good
    assert hc.load(steps[20])["scalar"] == 20


def test_a_step_whose_manifest_is_whole_is_left_as_it_is(run_dir):
    path = save(run_dir, 10)[10]
    before = contents(run_dir)
    assert repairing.find_damaged(run_dir) == []
    assert not repair(path).is_changed
    assert contents(run_dir) == before


def test_the_manifest_of_a_newer_format_is_not_called_damaged(run_dir, damage):
    path = save(run_dir, 10)[10]
    damage.reseal(path / layout.MANIFEST, lambda document: document.update(format=2))
    assert repairing.find_damaged(run_dir) == []
    with pytest.raises(errors.FormatVersionError):
        repair(path)


# -- never from less ---------------------------------------------------------------------------------


def file_of(step: Path, rank: int) -> Path:
    return step / "data" / f"rank-{rank:05d}.safetensors"


def lose_a_file(damage: Any, steps: dict[int, Path]) -> str:
    file_of(steps[20], 1).unlink()
    return "data/rank-00001.safetensors is missing"


def mix_two_saves(damage: Any, steps: dict[int, Path]) -> str:
    shutil.copy(file_of(steps[10], 1), file_of(steps[20], 1))
    return "data/rank-00001.safetensors is of another save"


def flip_a_header(damage: Any, steps: dict[int, Path]) -> str:
    damage.flip(file_of(steps[20], 1), 200)
    return "data/rank-00001.safetensors: the header is damaged"


def flip_data(damage: Any, steps: dict[int, Path]) -> str:
    damage.flip(file_of(steps[20], 1), -1)
    return "checksum mismatch in data/rank-00001.safetensors"


def cut_a_file(damage: Any, steps: dict[int, Path]) -> str:
    damage.cut(file_of(steps[20], 1), 1)
    return "data/rank-00001.safetensors"


def swap_two_files(damage: Any, steps: dict[int, Path]) -> str:
    one, other = file_of(steps[20], 0), file_of(steps[20], 1)
    one.rename(other.with_name("x"))
    other.rename(one)
    other.with_name("x").rename(other)
    return "data/rank-00000.safetensors is the file of rank 1"


def link_a_file(damage: Any, steps: dict[int, Path]) -> str:
    file_of(steps[20], 1).rename(steps[20] / "moved")
    file_of(steps[20], 1).symlink_to(steps[20] / "moved")
    return "symbolic link"


def lose_the_files(damage: Any, steps: dict[int, Path]) -> str:
    shutil.rmtree(steps[20] / "data")
    return "nothing to rebuild a manifest from"


def empty_the_files(damage: Any, steps: dict[int, Path]) -> str:
    for rank in range(2):
        os.truncate(file_of(steps[20], rank), 0)
    return "no data file of a rank can be read"


def take_those_of_another_step(damage: Any, steps: dict[int, Path]) -> str:
    for rank in range(2):
        shutil.copy(file_of(steps[10], rank), file_of(steps[20], rank))
    return "those of step 10"


HARMS = [
    lose_a_file, mix_two_saves, flip_a_header, flip_data, cut_a_file, swap_two_files, link_a_file, lose_the_files,
    empty_the_files, take_those_of_another_step,
]  # fmt: skip


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_what_is_not_one_whole_save_is_refused_by_name_and_not_touched(run_dir, damage, harm):
    steps = save(run_dir, 10, 20)
    lose(steps[20])
    text = harm(damage, steps)
    before = contents(run_dir)
    finding = repair(steps[20])
    assert not finding.is_good
    assert text in "; ".join([*finding.problems, *map(str, finding.damage)])
    assert contents(run_dir) == before
    assert hc.latest_checkpoint(run_dir) == steps[10]


def test_every_missing_rank_is_named(run_dir):
    path = save(run_dir, 10, n_ranks=5)[10]
    lose(path)
    for rank in (1, 3, 4):
        file_of(path, rank).unlink()
    assert repair(path).problems == tuple(f"data/rank-0000{rank}.safetensors is missing" for rank in (1, 3, 4))


def reseal_header(path: Path, change: Any) -> None:
    """Change the text of a header without its length, and give it a checksum that fits."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = change(raw[8 : 8 + length])
    assert len(header) == length
    zeroed = header[:42] + b"00000000" + header[50:]
    path.write_bytes(raw[:8] + header[:42] + b"%08x" % native.crc32c(zeroed) + header[50:] + raw[8 + length :])


LIES = {
    "more ranks": (rb"\"ranks\":2", rb"\"ranks\":3", "rank-00002.safetensors is missing"),
    "billions of ranks": (
        rb"\"ranks\":2,\"block_bytes\":1048576",
        rb"\"ranks\":2000000000,\"block_bytes\":1",
        "missing",
    ),
    "another block size": (rb"\"block_bytes\":1048576", rb"\"block_bytes\":1048575", "block size"),
    "another tensor": (rb"model/w", rb"model/v", "model/"),
    "another dtype": (rb"\"dtype\":\"int64\"", rb"\"dtype\":\"uint8\"", ""),
    "a format to come": (rb"\"format\":1", rb"\"format\":2", "upgrade hpcckpt"),
    "a save that cannot be": (rb"\"save_id\":\"", rb"\"save_id\":\"X", ""),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(run_dir, lie):
    path = save(run_dir, 10)[10]
    lose(path)
    old, new, text = LIES[lie]

    def change(header: bytes) -> bytes:
        assert old in header
        changed = header.replace(old, new)
        return changed[: len(header)] if len(changed) > len(header) else changed + b" " * (len(header) - len(changed))

    reseal_header(file_of(path, 0), change)
    finding = repair(path)
    assert not finding.is_good
    assert text in "; ".join(finding.problems)
    assert not (path / layout.MANIFEST).exists()


@pytest.mark.parametrize("name", [".next-0123456789ab", ".step-0000000010.tmp-abcdef", ".retired-0123456789ab"])
def test_what_was_never_committed_or_was_retired_is_not_repaired(run_dir, name):
    path = save(run_dir, 10)[10]
    lose(path)
    path.rename(run_dir / name)
    with pytest.raises(errors.OptionError, match="only whole steps"):
        repairing.find_damaged(run_dir / name)
    assert repairing.find_damaged(run_dir) == []


def test_a_stale_file_of_a_larger_job_is_left_alone_and_told(run_dir):
    steps = save(run_dir, 10, n_ranks=3) | save(run_dir, 20, n_ranks=2)
    shutil.copy(file_of(steps[10], 2), file_of(steps[20], 2))
    lose(steps[20])
    finding = repair(steps[20])
    assert finding.is_good
    assert finding.left_alone == ("data/rank-00002.safetensors",)
    assert len(read_manifest(steps[20]).files) == 2


# -- aside -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".bad-0123456789ab", ".aside-step-0000000020-0123456789ab"])
@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_directory_that_was_moved_aside_gets_its_name_back(run_dir, name, has_manifest):
    steps = save(run_dir, 10, 20)
    if not has_manifest:
        lose(steps[20])
    steps[20].rename(run_dir / name)
    (path,) = repairing.find_damaged(run_dir / name)
    repair(path)
    assert hc.latest_checkpoint(run_dir) == steps[20]
    assert not (run_dir / name).exists()


def test_a_step_of_another_backend_gets_its_name_back_too(run_dir):
    pytest.importorskip("h5py")
    steps = save(run_dir, 10, 20, backend="hdf5")
    moved = run_dir / ".aside-step-0000000020-0123456789ab"
    steps[20].rename(moved)
    assert repair(moved).is_good
    assert hc.latest_checkpoint(run_dir) == steps[20]


def test_the_files_of_another_backend_are_not_called_damaged_for_want_of_a_manifest(run_dir):
    pytest.importorskip("h5py")
    steps = save(run_dir, 10, 20, backend="hdf5")
    lose(steps[20])
    assert "rebuilt from rankfile's files only" in repair(steps[20]).problems[-1]


def test_a_name_that_is_taken_is_not_given_back(run_dir):
    steps = save(run_dir, 10, 20)
    shutil.copytree(steps[20], run_dir / ".bad-0123456789ab")
    before = contents(run_dir)
    with pytest.raises(errors.StepExistsError, match="move that one away"):
        repair(run_dir / ".bad-0123456789ab")
    assert contents(run_dir) == before


def test_damaged_evidence_does_not_become_a_step_again(run_dir, damage):
    steps = save(run_dir, 10, 20)
    damage.flip(file_of(steps[20], 1), -1)
    steps[20].rename(run_dir / ".bad-0123456789ab")
    finding = repair(run_dir / ".bad-0123456789ab")
    assert len(finding.damage) == 1
    assert (run_dir / ".bad-0123456789ab").exists()


# -- durable, and safe under kill ----------------------------------------------------------------------

KILLED = """
import os, sys
from pathlib import Path
from hpcckpt.tools import repair as repairing
left = int(sys.argv[2])
def count(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(7)
        return real(*args, **kwargs)
    setattr(os, name, call)
for name in ("fsync", "rename", "unlink", "open"):
    count(name)
finding = repairing.examine(Path(sys.argv[1]))
assert finding.is_good, finding
if finding.is_changed:
    repairing.publish(finding)
"""


def test_a_repair_that_is_killed_anywhere_can_be_repeated(run_dir):
    """Whatever call it dies before, the step has the old manifest, none, or the new one, and its data."""
    path = save(run_dir, 10)[10]
    (path / layout.MANIFEST).write_bytes(b"bad")
    data = contents(path / "data")
    for n_calls in range(200):
        done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(n_calls)], check=False)
        assert done.returncode in (0, 7)
        assert contents(path / "data") == data
        if done.returncode == 0:
            break
        if newest_restorable(run_dir) is not None:
            assert hc.load(path)["scalar"] == 10
    assert n_calls > 8
    assert hc.load(path)["scalar"] == 10
    assert b"bad" in {each.read_bytes() for each in path.glob("manifest.json.bad-*")}
    assert list(path.glob("manifest.json.new-*")) == []


def test_data_and_manifest_are_durable_before_the_manifest_is_visible(run_dir, monkeypatch):
    path = save(run_dir, 10)[10]
    lose(path)
    calls: list[tuple[str, str]] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(fd: int) -> None:
        calls.append(("fsync", os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), path).partition(".new-")[0]))
        real_fsync(fd)

    def rename(source: Any, target: Any) -> None:
        calls.append(("rename", os.path.relpath(target, path)))
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    repair(path)
    files = [("fsync", f"data/rank-0000{rank}.safetensors") for rank in range(2)]
    published = [("fsync", "manifest.json"), ("rename", "manifest.json"), ("fsync", ".")]
    assert calls == [*files, ("fsync", "data"), *published]


def test_an_error_of_fsync_publishes_nothing(run_dir, monkeypatch):
    path = save(run_dir, 10)[10]
    lose(path)

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(errors.StorageError):
        repair(path)
    monkeypatch.undo()
    assert newest_restorable(run_dir) is None
    assert repair(path).is_good
    assert hc.latest_checkpoint(run_dir) == path


# -- frozen files --------------------------------------------------------------------------------------


class Kept:
    """A value that its program lets others hold: what did not change is linked, not written."""

    __module__ = "kept_values"

    def __init__(self, array: Any) -> None:
        self.array = array


@pytest.fixture
def frozen_steps(run_dir, monkeypatch):
    """Steps 1 to 5 of two ranks; the later ones share files of tensors that did not change."""
    adapter = types.ModuleType("kept_values")

    def leaves(obj: Any, name: str) -> Any:
        declaration = tree.declare(obj.array, name, "replicated")
        held = lambda sources: [source.array for source in sources]  # noqa: E731
        return iter([tree.TensorLeaf(declaration, lambda: obj.array, lambda _: None, source=obj, holder=held)])

    adapter.leaves = leaves
    monkeypatch.setitem(sys.modules, "kept_values", adapter)
    monkeypatch.setitem(tree.ADAPTERS, "kept_values", "kept_values")
    monkeypatch.setattr(frozen, "MIN_BYTES", 1000)

    def body(comm: Any) -> None:
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=None, incremental=True) as ckpt:
            kept, table = Kept(np.arange(5000)), Kept(np.arange(600.0))
            for step in range(1, 6):
                if step == 4:
                    table = Kept(np.arange(600.0) + 1)
                ckpt.save(step, {"kept": kept, "table": table, "w": np.full(100, step)}).result()

    run_ranks(2, body)
    steps = {step: run_dir / layout.step_dirname(step) for step in range(1, 6)}
    assert frozen_files(steps[5])
    assert {record.save_id for record in read_manifest(steps[5]).files} - {"", read_manifest(steps[5]).save_id}
    return steps


def frozen_files(step: Path) -> list[Path]:
    return sorted(step.glob("data/*.frozen-*"))


def test_a_step_that_shares_files_with_older_ones_is_rebuilt_with_them(frozen_steps):
    for path in frozen_steps.values():
        before, old = hc.load(path), read_manifest(path)
        lose(path)
        assert repair(path).is_good
        after = hc.load(path)
        assert {name: array.tobytes() for name, array in after.items()} == {n: a.tobytes() for n, a in before.items()}
        assert set(read_manifest(path).files) == set(old.files)
        assert read_manifest(path).tensors == old.tensors


def test_a_shared_file_that_is_lost_is_named(frozen_steps):
    path = frozen_steps[5]
    lose(path)
    lost = frozen_files(path)[0]
    lost.unlink()
    assert repair(path).problems == (f"data/{lost.name} is missing",)


def test_a_shared_file_that_is_damaged_is_named(frozen_steps, damage):
    path = frozen_steps[5]
    lose(path)
    damage.flip(frozen_files(path)[0], -1)
    finding = repair(path)
    assert {block.file for block in finding.damage} == {f"data/{frozen_files(path)[0].name}"}


def test_a_shared_file_of_another_save_is_not_taken_for_it(frozen_steps):
    """Step 4 changed a tensor: the file of the same name and of older bytes is not what step 5 goes with."""
    path = frozen_steps[5]
    lose(path)
    own = {file.name: file for file in frozen_files(path)}
    others = [file for step in (2, 3, 4) for file in frozen_files(frozen_steps[step]) if file.name in own]
    stale = next(file for file in others if file.read_bytes() != own[file.name].read_bytes())
    own[stale.name].unlink()
    shutil.copy(stale, path / "data" / stale.name)
    (problem,) = repair(path).problems
    assert "is not the file that save" in problem


def test_a_shared_file_that_no_rank_names_is_left_alone(frozen_steps):
    path = frozen_steps[5]
    lose(path)
    extra = path / "data" / "rank-00000.frozen-77.safetensors"
    shutil.copy(frozen_files(path)[0], extra)
    finding = repair(path)
    assert finding.is_good
    assert finding.left_alone == (f"data/{extra.name}",)


def test_a_file_is_linked_only_if_it_is_still_the_one_that_was_written(frozen_steps, tmp_path):
    """Another checkpointer may have replaced the step meanwhile."""
    base = frozen_steps[5]
    record = next(file for file in read_manifest(base).files if ".frozen-" in file.path)
    data = np.zeros(8, np.uint8)

    def linked(name: str) -> list[Any]:
        payload = Payload(types.SimpleNamespace(nbytes=0), data, is_held=True)
        payload.compare_with(BlockRecord((0,), data, LinkSource(record, 1, (0,))))
        (tmp_path / name / layout.DATA).mkdir(parents=True)
        return frozen.link_unchanged([payload], base, tmp_path / name)

    assert linked("same") == [record]
    place = base / record.path
    text = place.read_bytes()
    place.unlink()
    place.write_bytes(text.replace(f"{record.header_crc:08x}".encode(), b"00000000", 1))
    assert linked("other") == []
    assert list((tmp_path / "other" / layout.DATA).iterdir()) == []
