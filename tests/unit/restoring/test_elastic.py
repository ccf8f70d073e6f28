"""Saved on N ranks, restored on M, bit-exact; every byte is written once, by all ranks equally."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.core.tensors import Extent
from hpcckpt.restoring import read_plan, reader
from hpcckpt.testing.ranks import run_ranks

COUNTS = (1, 2, 3, 4, 5)


def cut(length: int, n_parts: int) -> list[tuple[int, int]]:
    """Cut a length into uneven parts, some of them empty when there are many."""
    points = [length * k * k // (n_parts * n_parts) for k in range(n_parts + 1)]
    return list(itertools.pairwise(points))


def strip(full: np.ndarray[Any, Any], comm: Any, axis: int) -> hc.Sharded:
    """Return this rank's uneven part of an array along one axis."""
    begin, end = cut(full.shape[axis], comm.size)[comm.rank]
    index = tuple(slice(begin, end) if a == axis else slice(None) for a in range(full.ndim))
    offset = tuple(begin if a == axis else 0 for a in range(full.ndim))
    return hc.Sharded(full[index].copy(), full.shape, offset)


def tile(full: np.ndarray[Any, Any], comm: Any) -> hc.Sharded:
    """Return this rank's box of the squarest grid of boxes over the first two axes."""
    rows = next(r for r in range(int(comm.size**0.5), 0, -1) if comm.size % r == 0)
    (r0, r1), (c0, c1) = (
        cut(full.shape[0], rows)[comm.rank % rows],
        cut(full.shape[1], comm.size // rows)[comm.rank // rows],
    )
    return hc.Sharded(full[r0:r1, c0:c1].copy(), full.shape, (r0, c0, *[0] * (full.ndim - 2)))


FULL = np.random.default_rng(3).integers(-(2**62), 2**62, (23, 17, 3))

WAYS = {
    "rows": lambda full, comm: strip(full, comm, 0),
    "columns": lambda full, comm: strip(full, comm, 1),
    "last axis": lambda full, comm: strip(full, comm, 2),
    "grid": tile,
    "everyone has all": lambda full, comm: hc.Sharded(full.copy(), full.shape, (0, 0, 0)),
}


def save_sharded(group: Any, run_dir: Any, n_ranks: int, way: str, full: np.ndarray[Any, Any] = FULL) -> list[Any]:
    def body(comm: Any) -> Any:
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.save(n_ranks, {"x": WAYS[way](full, comm)}).result()

    return group(n_ranks, body)


def restore_sharded(group: Any, run_dir: Any, n_ranks: int, way: str, full: np.ndarray[Any, Any] = FULL) -> None:
    def body(comm: Any) -> None:
        expected = WAYS[way](full, comm)
        blank = hc.Sharded(np.zeros_like(expected.array), expected.global_shape, expected.offset)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            assert ckpt.restore({"x": blank}).warnings == ()
        assert blank.array.tobytes() == expected.array.tobytes()

    group(n_ranks, body)


@pytest.mark.parametrize(("n", "m"), [*itertools.product(COUNTS, COUNTS)])
def test_replicated_tensors_saved_on_n_ranks_come_back_on_m(group, run_dir, n, m):
    full = {"w": FULL, "b": FULL[0], "s": np.float16(1.25), "e": np.zeros(0)}

    def save(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, full).result()

    def restore(comm):
        state = {name: np.zeros_like(value) for name, value in full.items()}
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.restore(state)
        return {name: value.tobytes() for name, value in state.items()}

    group(n, save)
    assert group(m, restore) == [{name: value.tobytes() for name, value in full.items()}] * m


@pytest.mark.parametrize(("n", "m"), [*itertools.product(COUNTS, COUNTS)])
def test_sharded_tensors_saved_on_n_ranks_come_back_on_m(group, run_dir, n, m):
    save_sharded(group, run_dir, n, "rows")
    restore_sharded(group, run_dir, m, "columns")


@pytest.mark.parametrize(("before", "after"), [*itertools.product(WAYS, WAYS)])
def test_a_tensor_cut_one_way_comes_back_cut_another(group, run_dir, before, after):
    save_sharded(group, run_dir, 4, before)
    restore_sharded(group, run_dir, 3, after)


@pytest.mark.parametrize("way", WAYS)
def test_a_sharded_tensor_is_loaded_whole_without_ranks(group, run_dir, way):
    save_sharded(group, run_dir, 4, way)
    assert hc.load(run_dir)["x"].tobytes() == FULL.tobytes()


def test_scratch_buffers_of_a_restore_are_freed_as_it_proceeds(group, run_dir, monkeypatch):
    save_sharded(group, run_dir, 4, "columns")
    buffers: list[Any] = []

    def watched(*args: Any) -> Any:
        for transfer in read_plan.plan_transfers(*args):
            buffers.append(weakref.ref(transfer.request.into))
            yield transfer

    monkeypatch.setattr(reader, "plan_transfers", watched)
    monkeypatch.setattr(reader, "PIECE_BYTES", 1)
    target, n_alive = np.zeros_like(FULL), []
    step = reader.open_step(run_dir)
    step.fill(
        [("x", Extent.whole(FULL.shape), target)],
        lambda *_: n_alive.append(sum(buffer() is not None for buffer in buffers)),
    )
    assert target.tobytes() == FULL.tobytes()
    assert n_alive == [4, 3, 2, 1]


def test_a_tensor_saved_whole_can_be_restored_in_shards(group, run_dir):
    def save(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"x": FULL}).result()

    group(2, save)
    restore_sharded(group, run_dir, 3, "grid")


def test_a_tensor_saved_in_shards_can_be_restored_whole(group, run_dir):
    save_sharded(group, run_dir, 3, "grid")

    def restore(comm):
        state = {"x": np.zeros_like(FULL)}
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.restore(state)
        return state["x"].tobytes()

    assert group(2, restore) == [FULL.tobytes()] * 2


def test_a_rank_may_hold_several_boxes_under_several_names_and_none_of_others(group, run_dir):
    def state(comm, fill):
        mine = comm.rank == 1
        array = np.arange(6.0) if fill else np.zeros(6)
        return {
            "only one": hc.Sharded(array if mine else array[:0], (6,), (0,)),
            "empty": hc.Sharded(np.zeros((0, 4)), (0, 4), (0, 0)),
        }

    def body(comm):
        target = state(comm, fill=False)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(comm, fill=True)).result()
            ckpt.restore(target)
        return target["only one"].array.tolist()

    assert group(3, body) == [[], [0, 1, 2, 3, 4, 5], []]


# -- written once, evenly ------------------------------------------------------------------------


def data_bytes(step_dir: Any) -> list[int]:
    """Return the bytes behind the header of every data file, by rank."""
    sizes = []
    for path in sorted((step_dir / "data").iterdir()):
        header = int.from_bytes(path.read_bytes()[:8], "little") + 8
        sizes.append(path.stat().st_size - header)
    return sizes


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_replicated_bytes_are_written_once_and_evenly(group, run_dir, n):
    state = {f"layer{k}": np.ones((1, size), np.float32) for k, size in enumerate([3, 400_000, 7, 90_001, 1, 0])}
    total = sum(array.nbytes for array in state.values())

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.save(1, state).result()

    saved = group(n, body)
    sizes = data_bytes(saved[0].path)
    assert sum(sizes) == total == saved[0].nbytes
    assert max(sizes) / (total / n) <= 1.05


@pytest.mark.parametrize("n", [2, 4, 8])
def test_replicated_bytes_level_what_shards_leave_uneven(group, run_dir, n):
    def body(comm):
        state = {
            "shard": hc.Sharded(
                np.ones(300_000 if comm.rank == 0 else 0), (300_000,), (0 if comm.rank == 0 else 300_000,)
            ),
            "dense": np.ones(300_000 * (n - 1)),
        }
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.save(1, state).result()

    sizes = data_bytes(group(n, body)[0].path)
    assert sum(sizes) == 300_000 * n * 8
    assert max(sizes) / min(sizes) <= 1.05


def test_a_box_that_several_ranks_hold_is_written_once(group, run_dir):
    full = np.arange(2 * 100_000.0).reshape(2, -1)

    def body(comm):
        row = comm.rank % 2  # ranks 0 and 2 hold row 0; ranks 1 and 3 hold row 1
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.save(1, {"x": hc.Sharded(full[row : row + 1], full.shape, (row, 0))}).result()

    saved = group(4, body)[0]
    sizes = data_bytes(saved.path)
    assert sum(sizes) == full.nbytes == saved.nbytes
    assert max(sizes) / (full.nbytes / 4) <= 1.05
    assert hc.load(run_dir)["x"].tobytes() == full.tobytes()


@pytest.mark.counts(1, 2, 5)
def test_every_rank_is_told_the_same_of_a_save(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            saved = ckpt.save(7, {"x": np.ones(1000)}).result()
        return saved.step, str(saved.path), saved.nbytes, saved.files, saved.kept, saved.backend, saved.warnings

    assert ranks(body) == [(7, str(run_dir / "step-0000000007"), 8000, ranks.size, 1, "rankfile", ())] * ranks.size


# -- per rank ------------------------------------------------------------------------------------


def per_rank_state(comm: Any, fill: bool) -> dict[str, Any]:
    """Return what differs between ranks, also in shape, beside something that does not."""
    return {
        "array": hc.PerRank(np.full(comm.rank + 1, comm.rank) if fill else np.full(1, -1)),
        "position": hc.PerRank({"epoch": comm.rank, "seeds": [comm.rank] * 2} if fill else None),
        "weights": np.ones(5) if fill else np.zeros(5),
    }


@pytest.mark.parametrize("n", COUNTS)
def test_each_rank_gets_its_own_entries_back_on_the_same_count(group, run_dir, n):
    def body(comm):
        target = per_rank_state(comm, fill=False)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, per_rank_state(comm, fill=True)).result()
            assert ckpt.restore(target).warnings == ()
        return target["array"].value.tolist(), target["position"].value

    assert group(n, body) == [([r] * (r + 1), {"epoch": r, "seeds": [r, r]}) for r in range(n)]


@pytest.mark.parametrize(("n", "m"), [(n, m) for n, m in itertools.product((1, 2, 4), (1, 2, 4)) if n != m])
def test_per_rank_entries_are_left_alone_on_another_count_with_a_warning(group, run_dir, n, m):
    def save(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, per_rank_state(comm, fill=True)).result()

    def restore(comm):
        target = per_rank_state(comm, fill=False)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            (warning,) = ckpt.restore(target).warnings
        assert f"saved on {n} rank{'s' if n > 1 else ''}, restored on {m}" in warning
        assert "array" in warning
        assert "position" in warning
        return target["array"].value.tolist(), target["position"].value, target["weights"].sum()

    group(n, save)
    assert group(m, restore) == [([-1], None, 5.0)] * m


def test_per_rank_entries_are_loaded_once_for_each_rank(group, run_dir):
    def save(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, per_rank_state(comm, fill=True)).result()

    group(3, save)
    loaded = hc.load(run_dir, "array")
    assert {name: array.tolist() for name, array in loaded.items()} == {
        "array#0": [0],
        "array#1": [1, 1],
        "array#2": [2] * 3,
    }


@pytest.mark.parametrize("strict", [True, False])
def test_values_of_each_rank_that_are_not_restored_are_logged_once(run_dir, caplog, strict):
    def save(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"w": np.ones(3), "rng": hc.PerRank([comm.rank]), "mine": hc.PerRank(np.ones(2))}).result()

    def restore(comm):
        state = {"w": np.zeros(3), "rng": hc.PerRank([9]), "mine": hc.PerRank(np.zeros(2))}
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            restored = ckpt.restore(state, strict=strict)
        return state["rng"].value, state["w"].tolist(), restored.warnings, restored.logged

    run_ranks(2, save)
    with caplog.at_level(logging.WARNING, "hpcckpt"):
        results = run_ranks(3, restore)
    warning = (
        'state["mine"], state["rng"] were not restored: saved on 2 ranks, restored on 3; '
        "set them in the program, or restart on 2 ranks"
    )
    assert results == [([9], [1.0] * 3, (warning,), (warning,))] * 3
    assert [record.getMessage() for record in caplog.records] == [f"hpcckpt: restored step 1: {warning}"]


@pytest.mark.parametrize("more", [{}, {"seeds": [3]}], ids=["alone", "with a value of the program"])
def test_of_a_keras_training_no_part_is_said_to_need_the_program(more, run_dir):
    def state():
        parts = {name: hc.PerRank(np.zeros(2)) for name in ("callbacks", "iterator", "random")}
        own = {"mine": {name: hc.PerRank(value) for name, value in more.items()}}
        return {"model": {"w": np.ones(3), "mean": hc.PerRank(np.ones(1))}, "training": parts, **own}

    def save(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state()).result()

    def restore(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.restore(state()).warnings

    run_ranks(2, save)
    (warning,) = run_ranks(1, restore)[0]
    training = (
        "saved on 2 ranks, now 1: the training resumes at level weights, with rank 0's callbacks and statistics, "
        "and new random streams"
    )
    own = '; state["mine"] (seeds) was not restored: saved on 2 ranks, restored on 1; set it in the program, or restart'
    assert warning == (f"{training}{own} on 2 ranks" if more else training)


def test_values_of_each_rank_that_are_not_restored_are_named_on_stderr(run_dir):
    run_ranks(2, lambda comm: _save_own(run_dir, comm))
    script = (
        "import sys, hpcckpt as hc, numpy as np\n"
        "with hc.Checkpointer(sys.argv[1]) as ckpt:\n"
        "    ckpt.restore({'own': hc.PerRank(np.zeros(1))}, strict=False)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(run_dir)], capture_output=True, text=True, timeout=240, check=True
    )
    (line,) = ended.stderr.splitlines()
    assert 'state["own"] was not restored: saved on 2 ranks, restored on 1; set it in the program, or' in line


def test_what_a_restore_with_strict_false_leaves_out_is_logged_once_on_root(run_dir, caplog):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"u": np.ones(3), "t": np.ones(2)}).result()
            return ckpt.restore({"U": np.zeros(3), "t": np.zeros(2)}, strict=False).warnings

    with caplog.at_level(logging.WARNING, "hpcckpt"):
        (warnings, _) = run_ranks(2, body)
    assert warnings == ("not in the checkpoint, left as they are: U", "in the checkpoint, not used: u")
    assert [record.getMessage() for record in caplog.records] == [f"hpcckpt: restored step 1: {'; '.join(warnings)}"]


def _save_own(run_dir, comm):
    with hc.Checkpointer(run_dir, comm=comm) as ckpt:
        ckpt.save(1, {"own": hc.PerRank(np.full(1, float(comm.rank))), "w": np.ones(2)}).result()


def test_the_same_number_of_ranks_logs_nothing(run_dir, caplog):
    run_ranks(2, lambda comm: _save_own(run_dir, comm))

    def restore(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.restore({"own": hc.PerRank(np.zeros(1)), "w": np.zeros(2)}).warnings

    with caplog.at_level(logging.WARNING, "hpcckpt"):
        assert run_ranks(2, restore) == [(), ()]
    assert caplog.records == []
