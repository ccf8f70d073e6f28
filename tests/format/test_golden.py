"""Checkpoints of every format version, as they were committed, stay readable; the writer writes what the page says."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.restoring.reader import open_step
from hpcckpt.testing.ranks import run_ranks
from tests.format.make_golden import METRICS, N_RANKS, OBJECTS, STEP, replicated, save, state_of, table

GOLDEN = sorted(Path(__file__).parent.glob("golden-*"))
IDS = ("save_id", "run_id", "created", "environment", "crc32c")


def bits(array):
    return np.ascontiguousarray(array).tobytes()


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name)
def golden(request):
    return request.param


def test_there_is_a_golden_checkpoint():
    assert [path.name for path in GOLDEN] == ["golden-1"]


def test_it_is_read_bit_for_bit(golden):
    loaded = hc.load(golden)
    for name, value in replicated().items():
        assert bits(loaded[name]) == bits(value), name
        assert loaded[name].dtype == np.asarray(value).dtype
        assert loaded[name].shape == np.shape(value)
    assert bits(loaded["table"]) == bits(table())
    assert loaded["half"].dtype == ml_dtypes.bfloat16
    for rank in range(N_RANKS):
        assert loaded[f"own#{rank}"].tolist() == [rank] * (rank + 1)
        assert json.loads(loaded[f"rng/json#{rank}"].tobytes()) == {"seed": rank}
    assert loaded["moving"].tolist() == [0, 0, 0]


def test_it_verifies(golden):
    assert open_step(golden).verify() == []


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
def test_it_is_restored_on_any_number_of_ranks(golden, n_ranks, tmp_path):
    def body(comm):
        first, last = 10 * comm.rank // comm.size, 10 * (comm.rank + 1) // comm.size
        state = state_of(comm.rank, comm.size)
        state["table"].array[:] = -1
        state["dense/kernel"][:] = -1
        with hc.Checkpointer(golden, comm=comm) as ckpt:
            restored = ckpt.restore(state)
        assert bits(state["table"].array) == bits(table()[:, first:last])
        assert bits(state["dense/kernel"]) == bits(replicated()["dense/kernel"])
        return restored

    for restored in run_ranks(n_ranks, body):
        assert restored.step == STEP
        assert restored.objects == OBJECTS
        assert restored.metrics["loss"] == METRICS["loss"]
        assert math.isnan(restored.metrics["val_loss"])


def header(path: Path) -> tuple[dict, dict]:
    data = path.read_bytes()
    table_of = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    return table_of, json.loads(table_of.pop("__metadata__")["hpcckpt"])


def test_the_writer_still_writes_the_same(golden, tmp_path):
    save(tmp_path)
    old, new = (json.loads((run / "step-0000000042/manifest.json").read_bytes()) for run in (golden, tmp_path))
    for document in (old, new):
        for name in IDS:
            document.pop(name)
        for file in document["files"]:
            file.pop("header_crc32c")
    assert new == old
    for file in old["files"]:
        (a, b), (c, d) = (header(run / "step-0000000042" / file["path"]) for run in (golden, tmp_path))
        b.pop("save_id"), d.pop("save_id")
        assert (a, b) == (c, d)
        start = 8 + struct.unpack("<Q", (golden / "step-0000000042" / file["path"]).read_bytes()[:8])[0]
        assert start % 4096 == 0
