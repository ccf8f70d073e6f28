"""Damage is found, named, and gone around: a restore never brings back what was not saved."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.format import layout
from hpcckpt.rundir import discovery, pins

LENGTH = 5000


def state(value: float) -> dict[str, Any]:
    return {"w": np.arange(LENGTH) + float(value), "b": np.full(3, float(value))}


@pytest.fixture
def steps(ranks, run_dir):
    """A run directory with steps 10, 20 and 30, and the path of each."""

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            for step in (10, 20, 30):
                ckpt.save(step, state(step))

    ranks(body)
    return {step: run_dir / layout.step_dirname(step) for step in (10, 20, 30)}


def restored(ranks: Any, run_dir: Path, step: int | None = None) -> list[Any]:
    """Restore on every rank; return step and warnings."""

    def body(comm: Any) -> Any:
        held = state(0)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            found = ckpt.restore(held, step)
        assert held["w"].tolist() == state(found.step)["w"].tolist()
        assert held["b"].tolist() == state(found.step)["b"].tolist()
        return found.step, found.warnings

    return ranks(body)


def flip_data(damage: Any, step: Path) -> None:
    damage.flip(damage.first_file(step), -1)


def flip_header(damage: Any, step: Path) -> None:
    damage.flip(damage.first_file(step), 100)


def cut_data(damage: Any, step: Path) -> None:
    damage.cut(damage.first_file(step))


def lose_data(damage: Any, step: Path) -> None:
    damage.first_file(step).unlink()


def flip_manifest(damage: Any, step: Path) -> None:
    damage.flip(step / layout.MANIFEST, 200)


def lose_manifest(damage: Any, step: Path) -> None:
    (step / layout.MANIFEST).unlink()


def empty_manifest(damage: Any, step: Path) -> None:
    (step / layout.MANIFEST).write_bytes(b"")


def lose_all(damage: Any, step: Path) -> None:
    shutil.rmtree(step / "data")


def swap_data(damage: Any, step: Path) -> None:
    other = step.with_name(layout.step_dirname(10))
    shutil.copy(damage.first_file(other), damage.first_file(step))


def link_data(damage: Any, step: Path) -> None:
    path = damage.first_file(step)
    path.rename(step.parent / "moved")
    path.symlink_to(step.parent / "moved")


def link_directory(damage: Any, step: Path) -> None:
    (step / "data").rename(step.parent / "moved")
    (step / "data").symlink_to(step.parent / "moved")


def link_step(damage: Any, step: Path) -> None:
    step.rename(step.parent / "moved")
    step.symlink_to(step.parent / "moved")


def link_manifest(damage: Any, step: Path) -> None:
    (step / layout.MANIFEST).rename(step.parent / "moved")
    (step / layout.MANIFEST).symlink_to(step.parent / "moved")


def pipe_data(damage: Any, step: Path) -> None:
    damage.first_file(step).unlink()
    os.mkfifo(damage.first_file(step))


def pipe_manifest(damage: Any, step: Path) -> None:
    (step / layout.MANIFEST).unlink()
    os.mkfifo(step / layout.MANIFEST)


def directory_for_file(damage: Any, step: Path) -> None:
    damage.first_file(step).unlink()
    damage.first_file(step).mkdir()


def directory_for_manifest(damage: Any, step: Path) -> None:
    (step / layout.MANIFEST).unlink()
    (step / layout.MANIFEST).mkdir()


def file_for_directory(damage: Any, step: Path) -> None:
    shutil.rmtree(step / "data")
    (step / "data").write_text("not a directory", encoding="utf-8")


def file_for_step(damage: Any, step: Path) -> None:
    shutil.rmtree(step)
    step.write_text("not a directory", encoding="utf-8")


def other_step_number(damage: Any, step: Path) -> None:
    shutil.copytree(step.with_name(layout.step_dirname(20)), step, dirs_exist_ok=True)


UNSEEN_UNTIL_READ = [flip_data, flip_header, swap_data]
SEEN_AT_ONCE = [
    cut_data, lose_data, flip_manifest, lose_manifest, empty_manifest, lose_all, link_data, link_directory, link_step,
    link_manifest, pipe_data, pipe_manifest, directory_for_file, directory_for_manifest, file_for_directory,
    file_for_step, other_step_number,
]  # fmt: skip


@pytest.mark.counts(1, 3)
@pytest.mark.parametrize("harm", UNSEEN_UNTIL_READ + SEEN_AT_ONCE, ids=lambda harm: harm.__name__)
def test_a_damaged_newest_step_is_skipped_with_a_warning_that_names_it(ranks, run_dir, steps, damage, harm):
    ranks.on_root(lambda: harm(damage, steps[30]))
    results = restored(ranks, run_dir)
    assert results == [results[0]] * ranks.size
    step, (warning,) = results[0]
    assert step == 20
    assert "step 30 was skipped" in warning
    recorded = restored(ranks, run_dir)[0][1]
    assert not any("step 30:" in text for text in (warning, *recorded)), "the step is named once"


@pytest.mark.counts(1, 3)
@pytest.mark.parametrize("harm", UNSEEN_UNTIL_READ + SEEN_AT_ONCE, ids=lambda harm: harm.__name__)
def test_a_damaged_step_that_was_asked_for_is_an_error_that_names_it(ranks, run_dir, steps, damage, harm):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.OlderStepError) as caught:
            ckpt.restore(state(0), 30)
        return str(caught.value)

    ranks.on_root(lambda: harm(damage, steps[30]))
    results = ranks(body)
    assert results == [results[0]] * ranks.size
    assert "30" in results[0]


@pytest.mark.counts(1, 3)
@pytest.mark.parametrize("harm", SEEN_AT_ONCE, ids=lambda harm: harm.__name__)
def test_latest_never_names_a_step_that_cannot_be_restored(ranks, run_dir, steps, damage, harm):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.latest_step(), ckpt.all_steps()

    ranks.on_root(lambda: harm(damage, steps[30]))
    assert ranks(body) == [(20, [10, 20])] * ranks.size
    assert hc.latest_checkpoint(run_dir) == steps[20]


HIDDEN_FROM_LOAD = [link_step]  # a path that the user gives is the user's


@pytest.mark.parametrize(
    "harm", [h for h in UNSEEN_UNTIL_READ + SEEN_AT_ONCE if h not in HIDDEN_FROM_LOAD], ids=lambda harm: harm.__name__
)
def test_a_damaged_step_is_never_loaded(run_dir, damage, harm):
    with hc.Checkpointer(run_dir) as ckpt:
        for step in (10, 20, 30):
            ckpt.save(step, state(step))
    path = run_dir / layout.step_dirname(30)
    harm(damage, path)
    with pytest.raises(errors.HpcckptError) as caught:
        hc.load(path)
    assert isinstance(caught.value, errors.OlderStepError)


def test_every_damaged_step_is_named_when_none_is_left(ranks, run_dir, steps, damage):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.NoRestorableStepError) as caught:
            ckpt.restore(state(0))
        return str(caught.value)

    def harm_all():
        flip_data(damage, steps[30])
        cut_data(damage, steps[20])
        flip_header(damage, steps[10])

    ranks.on_root(harm_all)
    for text in ranks(body):
        assert all(f"step {step} was skipped" in text for step in (30, 20, 10)), text


def test_a_flipped_bit_is_named_by_tensor_file_and_place(ranks, run_dir, steps, damage):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.CorruptError) as caught:
            ckpt.restore(state(0), 30)
        return str(caught.value)

    ranks.on_root(lambda: flip_data(damage, steps[30]))
    name = "'w'" if ranks.size == 1 else "'"
    for text in ranks(body):
        assert name in text
        assert "data/rank-00000.safetensors" in text
        assert "checksum mismatch" in text
        assert "use an older step" in text


def test_a_step_that_is_not_there_is_named_with_those_that_are(ranks, run_dir, steps):
    def body(comm):
        with (
            hc.Checkpointer(run_dir, comm=comm) as ckpt,
            pytest.raises(errors.StepNotFoundError, match=r"no step 25 .*10, 20, 30"),
        ):
            ckpt.restore(state(0), 25)

    ranks(body)


def test_an_empty_run_directory_has_nothing_to_restore(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            assert ckpt.latest_step() is None
            assert ckpt.all_steps() == []
            with pytest.raises(errors.StepNotFoundError, match="no restorable step"):
                ckpt.restore(state(0))

    ranks(body)
    assert not run_dir.exists()


def test_any_flipped_byte_of_a_step_is_noticed(run_dir, damage):
    """Wherever it is: in the manifest, a header, its padding, or data."""
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.arange(100)})
    step = run_dir / layout.step_dirname(1)
    for path in (step / layout.MANIFEST, damage.first_file(step)):
        pristine = path.read_bytes()
        for offset in range(0, len(pristine), 7):
            damage.flip(path, offset, 1 << (offset % 8))
            with pytest.raises(errors.OlderStepError):
                hc.load(step)
            damage.flip(path, offset, 1 << (offset % 8))
        assert path.read_bytes() == pristine
    assert hc.load(step)["w"].tolist() == list(range(100))


def test_extra_files_in_a_step_are_left_alone(ranks, run_dir, steps):
    def put():
        (steps[30] / "notes.txt").write_text("mine", encoding="utf-8")
        (steps[30] / "data" / "rank-00099.safetensors").write_text("foreign", encoding="utf-8")

    ranks.on_root(put)
    assert restored(ranks, run_dir) == [(30, ())] * ranks.size


def test_a_step_copied_elsewhere_can_be_restored(ranks, run_dir, steps, tmp_path):
    other = run_dir.with_name("copy")

    def copy():
        other.mkdir()
        shutil.copytree(steps[20], other / steps[20].name)

    ranks.on_root(copy)
    assert restored(ranks, other) == [(20, ())] * ranks.size


def test_a_checkpoint_of_a_newer_format_is_not_read_and_not_called_damaged(ranks, run_dir, steps, damage):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            with pytest.raises(errors.FormatVersionError, match="upgrade hpcckpt"):
                ckpt.restore(state(0), 30)
            return ckpt.restore(state(0)).warnings

    ranks.on_root(lambda: damage.reseal(steps[30] / layout.MANIFEST, lambda d: d.update(format=2)))
    for (warning,) in ranks(body):
        assert "upgrade hpcckpt" in warning


def test_a_step_that_is_not_restored_leaves_no_pin(ranks, run_dir, steps, damage):
    ranks.on_root(lambda: flip_header(damage, steps[30]))
    restored(ranks, run_dir)
    assert pins.pins(run_dir) == set()


# -- one directory, no ranks ---------------------------------------------------------------------


def test_load_takes_a_run_or_a_step_directory_and_patterns(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": {"a": np.ones(2), "b": np.zeros(2)}, "opt": np.full(1, 5)})
        ckpt.save(2, {"model": {"a": np.full(2, 2.0), "b": np.zeros(2)}, "opt": np.full(1, 5)})
    assert hc.load(run_dir)["model/a"].tolist() == [2, 2]
    assert hc.load(run_dir / layout.step_dirname(1))["model/a"].tolist() == [1, 1]
    assert list(hc.load(run_dir, "model/*")) == ["model/a", "model/b"]
    assert list(hc.load(run_dir, ["opt", "model/b"])) == ["model/b", "opt"]


def test_load_takes_a_step_of_a_run_by_its_number_or_as_the_best_one(run_dir):
    with hc.Checkpointer(run_dir, keep_best="min:loss") as ckpt:
        for step, loss in ((1, 0.2), (2, 0.1), (3, 0.3)):
            ckpt.save(step, {"w": np.full(1, step)}, metrics={"loss": loss})
    assert [hc.load(run_dir, "w", step=which)["w"].item() for which in (1, "best", "latest")] == [1, 2, 3]
    with pytest.raises(errors.StepNotFoundError, match="4"):
        hc.load(run_dir, step=4)


def test_a_name_that_matches_nothing_is_an_error(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1))
    with pytest.raises(errors.OptionError, match="modle"):
        hc.load(run_dir, "modle/*")


@pytest.mark.parametrize("step", [None, "latest", "best", 5])
@pytest.mark.parametrize("read", [lambda path, step: hc.load(path, step=step), discovery.find_step])
def test_reading_where_nothing_is_says_so(tmp_path, read, step):
    with pytest.raises(errors.StepNotFoundError, match="nothing-here does not exist"):
        read(tmp_path / "nothing-here", step)


def test_latest_checkpoint_of_nothing_is_none(tmp_path):
    assert hc.latest_checkpoint(tmp_path / "nothing-here") is None


def test_a_step_is_found_by_number_or_word(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        for step, loss in {1: 0.3, 2: 0.1, 3: 0.2}.items():
            ckpt.save(step, state(step), metrics={"loss": loss})
    assert [discovery.find_step(run_dir, which).step for which in (None, "latest", "best", 1, "2")] == [3, 3, 2, 1, 2]
    for which in ("worst", "²", "-1", "1.0", "4"):
        with pytest.raises(errors.StepNotFoundError):
            discovery.find_step(run_dir, which)


# -- lies: a manifest with a checksum that fits --------------------------------------------------

HUGE = 2**59

LIES = {
    "a size too small": lambda d: d["files"][0].update(bytes=d["files"][0]["bytes"] - 1),
    "a size too large": lambda d: d["files"][0].update(bytes=d["files"][0]["bytes"] + 1),
    "a huge size": lambda d: d["files"][0].update(bytes=HUGE),
    "a shape too large": lambda d: d["tensors"][1].update(shape=[LENGTH + 1]),
    "a shape too small": lambda d: d["tensors"][1].update(shape=[LENGTH - 1]),
    "a huge shape": lambda d: d["tensors"][1].update(shape=[HUGE // 8]),
    "a shape beyond any size": lambda d: d["tensors"][1].update(shape=[2**60, 2**60]),
    "an empty shape of huge sides": lambda d: d["tensors"][1].update(shape=[0, 2**60, 2**60]),
    "a negative shape": lambda d: d["tensors"][1].update(shape=[-1]),
    "a shape of 65 axes": lambda d: d["tensors"][1].update(shape=[1] * 65),
    "a shape of words": lambda d: d["tensors"][1].update(shape=["5000"]),
    "another dtype": lambda d: d["tensors"][1].update(dtype="int64"),
    "an unknown dtype": lambda d: d["tensors"][1].update(dtype="float65"),
    "a dtype NumPy has not": lambda d: d["tensors"][1].update(dtype="<f3"),
    "a dtype that is code": lambda d: d["tensors"][1].update(dtype="O"),
    "a dtype that is a list": lambda d: d["tensors"][1].update(dtype=[["x", "<f8"]]),
    "another kind": lambda d: d["tensors"][1].update(kind="sharded"),
    "no kind": lambda d: d["tensors"][1].pop("kind"),
    "another name": lambda d: d["tensors"][1].update(name="v"),
    "a name that leaves": lambda d: d["tensors"][1].update(name="../../etc/passwd"),
    "an absolute name": lambda d: d["tensors"][1].update(name="/etc/passwd"),
    "a name twice": lambda d: d["tensors"].append(d["tensors"][1]),
    "a tensor less": lambda d: d["tensors"].pop(),
    "a tensor more": lambda d: d["tensors"].append({"name": "z", "dtype": "int8", "shape": [1], "kind": "replicated"}),
    "a path that leaves": lambda d: d["files"][0].update(path="data/../../secret"),
    "an absolute path": lambda d: d["files"][0].update(path="/etc/passwd"),
    "a path to the manifest": lambda d: d["files"][0].update(path="manifest.json"),
    "a hidden path": lambda d: d["files"][0].update(path="data/.hidden"),
    "a file twice": lambda d: d["files"].append(d["files"][0]),
    "a file less": lambda d: d["files"].pop(),
    "another header": lambda d: d["files"][0].update(header_crc32c="00000000"),
    "another save": lambda d: d.update(save_id="0" * 32),
    "another block size": lambda d: d.update(block_bytes=4096),
    "a huge block size": lambda d: d.update(block_bytes=1 << 40),
    "another step": lambda d: d.update(step=31),
    "no rank": lambda d: d.update(ranks=0),
    "a backend nobody has": lambda d: d.update(backend="nobody"),
    "format 0": lambda d: d.update(format=0),
    "format one": lambda d: d.update(format="one"),
    "a metric beyond any float": lambda d: d["metrics"].update(loss=10**400),
    "a metric that is a list": lambda d: d["metrics"].update(loss=[1]),
    "no objects": lambda d: d.pop("objects"),
    "objects nested too deep": lambda d: d["objects"].update(user=nested(900)),
    "tensors that are no list": lambda d: d.update(tensors={"w": 1}),
    "nothing": dict.clear,
}


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused_and_allocates_nothing(run_dir, damage, lie):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(30, state(30))
    path = run_dir / layout.step_dirname(30)
    damage.reseal(path / layout.MANIFEST, LIES[lie])
    with memory_limit(4 << 30):
        with pytest.raises(errors.HpcckptError):
            hc.load(path)
        with hc.Checkpointer(run_dir) as ckpt, pytest.raises(errors.HpcckptError):
            ckpt.restore(state(0), 30)


def memory_limit(nbytes: int) -> Any:
    """Let this process have no more than `nbytes` of address space beyond what it has."""
    import contextlib
    import resource

    @contextlib.contextmanager
    def limited():
        used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    return limited()


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"null", b"[]", b"\x00" * 100, b"\xff\xfe{}", b'{"format": 1}', b'{\n "crc32c": "zzzzzzzz"\n}'],
)
def test_any_other_text_for_a_manifest_is_refused(run_dir, text):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1))
    path = run_dir / layout.step_dirname(1)
    (path / layout.MANIFEST).write_bytes(text)
    with pytest.raises(errors.ManifestError, match="use an older step"):
        hc.load(path)


def test_a_manifest_nested_a_million_deep_is_refused(run_dir, damage):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1))
    path = run_dir / layout.step_dirname(1) / layout.MANIFEST
    raw = b'{\n "crc32c": "00000000",\n "format": 1,\n "objects": ' + b"[" * 10**6 + b"]" * 10**6 + b"}"
    path.write_bytes(raw)
    damage.flip(path, 14, 0)
    from hpcckpt import native

    path.write_bytes(raw[:14] + b"%08x" % native.crc32c(raw) + raw[22:])
    with pytest.raises(errors.ManifestError):
        hc.load(path.parent)


def test_a_manifest_of_a_terabyte_is_refused_before_it_is_read(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1))
    path = run_dir / layout.step_dirname(1)
    os.truncate(path / layout.MANIFEST, 1 << 40)
    with memory_limit(1 << 30), pytest.raises(errors.ManifestError, match="at most"):
        hc.load(path)


def test_a_damaged_step_is_read_nowhere_and_changed_nowhere(run_dir, damage):
    """Looking at damage must not make it worse."""
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(1))
        ckpt.save(2, state(2))
    step = run_dir / layout.step_dirname(2)
    flip_data(damage, step)
    before = {path: path.read_bytes() for path in sorted(run_dir.rglob("*")) if path.is_file()}
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state(0))
        with pytest.raises(errors.CorruptError):
            ckpt.restore(state(0), 2)
    after = {path: path.read_bytes() for path in sorted(run_dir.rglob("*")) if path.is_file()}
    assert {path for path in after if path not in before} == set((run_dir / layout.DAMAGED).iterdir())
    assert {path: after[path] for path in before} == before
    assert json.loads((step / layout.MANIFEST).read_bytes())["step"] == 2
