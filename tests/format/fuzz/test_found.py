"""What fuzzing found, or was looked for with it, one checkpoint each; every checksum fits, so only reason protects."""

from __future__ import annotations

import contextlib
import copy
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import cli
from hpcckpt.errors import ConfigError, CorruptError, HpcckptError, ManifestError
from hpcckpt.restoring.reader import open_step
from tests.support.fuzz import cases as fuzz_cases, readers as fuzz_readers

pytestmark = pytest.mark.stack_b

Change = Callable[[dict[str, Any]], None]


def test_the_seeds_are_read(tmp_path):
    for number, seed in enumerate(fuzz_cases.seeds()):
        step = fuzz_readers.step_path(tmp_path / str(number), seed)
        nbytes = fuzz_cases.build(seed, step)
        assert fuzz_readers.read_step(step, nbytes, random.Random(number))


@contextlib.contextmanager
def limited(nbytes: int) -> Iterator[None]:
    """Let this process have no more than `nbytes` of address space beyond what it has."""
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def entries(case: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for file in case["files"] for entry in file["document"]["entries"].values()]


def everywhere(case: dict[str, Any], **changes: Any) -> None:
    """Say the same of the tensor in the manifest and in both files."""
    (tensor,) = case["manifest"]["tensors"]
    for name, value in changes.items():
        tensor[name] = copy.deepcopy(value)
        for entry in entries(case):
            entry["global_shape" if name == "shape" else name] = copy.deepcopy(value)


def emptied(case: dict[str, Any], shape: list[int]) -> None:
    """Leave no byte of data: each file has an entry without elements, or a span of none."""
    everywhere(case, shape=shape)
    for file in case["files"]:
        file["data"] = 0
        for place, entry in zip(file["table"].values(), file["document"]["entries"].values(), strict=True):
            place["data_offsets"] = [0, 0]
            entry.update(offset=[0] * len(shape), shape=shape, span=[0, 0], crc32c="")


def no_parent(case: dict[str, Any]) -> None:
    """A key that may be null was taken for one that may be absent: KeyError."""
    del case["manifest"]["parent"]


def text_without_room(case: dict[str, Any]) -> None:
    """NumPy makes ``S1`` of ``S0``: 2**40 elements without a byte on storage were a tebibyte in memory."""
    emptied(case, [1 << 20, 1 << 20])
    everywhere(case, dtype="|S0")
    for rank, entry in enumerate(entries(case)):
        entry.update(span=[0, 1 << 40] if rank == 0 else [0, 0])


def sides_that_numpy_cannot_multiply(case: dict[str, Any]) -> None:
    """An entry's own shape was bounded in elements, not in bytes: ValueError of NumPy for a per-rank tensor."""
    emptied(case, [0, 1])
    everywhere(case, kind="per-rank", dtype="float64")
    for entry in entries(case):
        entry.update(shape=[0, 1 << 60])


def ranks_without_number(case: dict[str, Any]) -> None:
    """The ranks of a per-rank tensor were compared with a list of all: 2**31 of them are 64 GiB."""
    everywhere(case, kind="per-rank")
    case["manifest"]["ranks"] = 1 << 31


def bytes_shared_by_all(case: dict[str, Any]) -> None:
    """A thousand tensors in the same bytes: a small file made memory beyond any bound."""
    (file, _), manifest = case["files"], case["manifest"]
    manifest["files"], case["files"] = manifest["files"][:1], [file]
    manifest["ranks"], manifest["block_bytes"], file["data"] = 1, 1 << 20, 1 << 17
    manifest["tensors"], file["table"], file["document"]["entries"] = [], {}, {}
    for name in (f"t{number:04}" for number in range(1000)):
        manifest["tensors"].append({"name": name, "dtype": "uint8", "shape": [1 << 17], "kind": "replicated"})
        file["table"][name] = {"dtype": "U8", "shape": [1 << 17], "data_offsets": [0, 1 << 17]}
        whole = {"offset": [0], "shape": [1 << 17], "span": [0, 1 << 17], "crc32c": fuzz_cases.AUTO}
        entry = {"tensor": name, "kind": "replicated", "dtype": "uint8", "global_shape": [1 << 17], **whole}
        file["document"]["entries"][name] = entry


def boxes_that_all_overlap(case: dict[str, Any]) -> None:
    """Every pair of overlapping boxes was named: of six hundred boxes 180,000."""
    (file, _), manifest = case["files"], case["manifest"]
    manifest["files"], case["files"], manifest["block_bytes"] = manifest["files"][:1], [file], 1 << 20
    everywhere(case, shape=[600], dtype="uint8")
    (name,), (entry,) = file["table"], entries(case)
    file["table"], file["document"]["entries"], end = {}, {}, 0
    for length in range(1, 601):
        box = {"offset": [0], "shape": [length], "span": [0, length]}
        file["table"][f"{name}{length}"] = {"dtype": "U8", "shape": [length], "data_offsets": [end, end + length]}
        file["document"]["entries"][f"{name}{length}"] = entry | box
        end += length
    file["data"] = end


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def a_deep_environment(case: dict[str, Any]) -> None:
    """Only the objects' depth was bounded: ``hpcckpt info --json`` recursed without end through the environment."""
    case["manifest"]["environment"] = deep(300)


def deep_objects(case: dict[str, Any]) -> None:
    """As deep as the JSON parser goes, and deeper than what walks, pickles or prints it."""
    case["manifest"]["objects"]["state"] = deep(400)


REFUSED: dict[Change, type[HpcckptError]] = {
    no_parent: ManifestError,
    text_without_room: ManifestError,
    sides_that_numpy_cannot_multiply: CorruptError,
    ranks_without_number: CorruptError,
    bytes_shared_by_all: CorruptError,
    boxes_that_all_overlap: CorruptError,
    a_deep_environment: ManifestError,
    deep_objects: ManifestError,
}


@pytest.fixture
def made(tmp_path) -> Callable[[Change], tuple[Path, int]]:
    """Make up a step: the small one, changed."""

    def make(change: Change) -> tuple[Path, int]:
        case = copy.deepcopy(fuzz_cases.small())
        change(case)
        step = fuzz_readers.step_path(tmp_path, case)
        return step, fuzz_cases.build(case, step)

    return make


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_what_cannot_be_is_refused(made, change):
    step, nbytes = made(change)
    with limited(4 << 30), pytest.raises(REFUSED[change]), fuzz_readers.bounded(nbytes):
        hc.load(step)
    with limited(4 << 30), pytest.raises(REFUSED[change]), fuzz_readers.bounded(nbytes):
        open_step(step).verify()
    for verb in fuzz_readers.VERBS:
        fuzz_readers.run_verb(step, verb)


def many_axes(case: dict[str, Any]) -> None:
    everywhere(case, shape=[6, 4] + [1] * 38)
    for rank, entry in enumerate(entries(case)):
        entry.update(offset=[3 * rank, 0] + [0] * 38, shape=[3, 4] + [1] * 38)


def test_axes_that_numpy_has_not_are_told_of(made):
    """NumPy 1 has 32 axes, NumPy 2 has 64: the step is whole, but this machine cannot hold it."""
    step, _ = made(many_axes)
    try:
        np.empty([1] * 40)
    except ValueError:
        with pytest.raises(ConfigError, match="no arrays of shape"):
            hc.load(step)
    else:
        assert hc.load(step)["w"].shape == (6, 4, *[1] * 38)


def test_a_step_under_a_symbolic_link_is_not_called_good(tmp_path):
    """Found by the corruption campaign: ``hpcckpt verify`` said OK of a step that restore() refuses."""
    case = fuzz_cases.small()
    step = fuzz_readers.step_path(tmp_path, case)
    fuzz_cases.build(case, step)
    shutil.move(step, tmp_path / "elsewhere")
    step.symlink_to(tmp_path / "elsewhere")
    assert cli.main(["verify", "--quiet", str(step.parent), "1"]) == 3
