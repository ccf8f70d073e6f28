"""Ranks that do not agree are told what differs and where, all of them, and nothing hangs."""

from __future__ import annotations

import re
import threading
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.checkpointer.open import MAY_DIFFER
from hpcckpt.core.options import Options
from hpcckpt.restoring import restore as restoring


def failures(ranks: Any, run_dir: Any, state: Any, expected: type[errors.HpcckptError], **options: Any) -> str:
    """Save `state(comm)`, which must fail with the same error on every rank; return the message."""

    def body(comm: Any) -> str:
        with hc.Checkpointer(run_dir, comm=comm, **options) as ckpt:
            with pytest.raises(expected) as caught:
                ckpt.save(1, state(comm)).result()
            comm.barrier()
            ckpt.save(1, {"w": np.ones(3)}).result()
        return str(caught.value)

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    return results[0]


@pytest.fixture
def many(ranks):
    """Ranks, where there are several."""
    if ranks.size == 1:
        pytest.skip("one rank agrees with itself")
    return ranks


def last(comm: Any) -> bool:
    return comm.rank == comm.size - 1


DIFFERENT = {
    "a name": lambda comm: {"v" if last(comm) else "w": np.zeros(3)},
    "a tensor more": lambda comm: {"w": np.zeros(3), **({"v": np.zeros(1)} if last(comm) else {})},
    "a tensor less": lambda comm: {"w": np.zeros(3), **({} if last(comm) else {"v": np.zeros(1)})},
    "a shape": lambda comm: {"w": np.zeros(4 if last(comm) else 3)},
    "a dtype": lambda comm: {"w": np.zeros(3, np.int8 if last(comm) else np.int16)},
    "an object": lambda comm: {"w": np.zeros(3), **({"epoch": 1} if last(comm) else {})},
    "a global shape": lambda comm: {"w": hc.Sharded(np.zeros(0), (4 if last(comm) else 3,), (0,))},
    "a kind": lambda comm: {"w": hc.PerRank(np.zeros(3)) if last(comm) else np.zeros(3)},
    "everything": lambda comm: {} if last(comm) else {f"w{k}": np.zeros(3) for k in range(100)},
}


@pytest.mark.counts(1, 2, 5)
@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_with_different_trees_are_told_who_and_what(many, run_dir, what):
    text = failures(many, run_dir, DIFFERENT[what], errors.TreeMismatchError)
    assert f"rank {many.size - 1}" in text
    assert "rank 0" in text


@pytest.mark.parametrize("rank", [0, -1])
def test_a_rank_whose_replicated_tensor_differs_is_named(many, run_dir, rank):
    """The odd one out is named against rank 0, whichever is right."""
    odd = rank % many.size

    def state(comm):
        return {"same": np.ones(3), "w": np.full(1000, 1.0 if comm.rank == odd else 2.0)}

    text = failures(many, run_dir, state, errors.ReplicaMismatchError)
    others = range(1, many.size) if odd == 0 else [odd]
    assert f"'w' on rank {', '.join(map(str, others))}" in text
    assert "same" not in text
    assert "broadcast" in text


def test_a_single_differing_bit_is_noticed(many, run_dir):
    def state(comm):
        array = np.zeros(10_000, np.uint8)
        array[-1] = last(comm)
        return {"w": array}

    failures(many, run_dir, state, errors.ReplicaMismatchError)


def test_replicas_are_not_compared_when_that_is_turned_off(many, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, check_replicas=0) as ckpt:
            return ckpt.save(1, {"w": np.full(10, comm.rank)}).result().step

    assert many(body) == [1] * many.size


def test_replicas_are_compared_every_so_many_saves(many, run_dir):
    def body(comm):
        found = []
        with hc.Checkpointer(run_dir, comm=comm, check_replicas=3) as ckpt:
            for step in range(7):
                array = np.full(10, comm.rank if step in {1, 2, 6} else 0)
                try:
                    ckpt.save(step, {"w": array}).result()
                except errors.ReplicaMismatchError:
                    found.append(step)
        return found

    assert many(body) == [[6]] * many.size


def test_a_rank_that_is_shown_other_bytes_of_a_step_is_noticed_by_all(many, run_dir, monkeypatch):
    """As by a stale page cache of one node: file names and sizes are right, and a rank's bytes are older ones."""
    from hpcckpt.backends import spans

    reading = threading.local()
    open_regular = spans.open_regular

    def shown_elsewhere(path):
        return open_regular(path.replace(str(run_dir), str(reading.directory)))

    read = restoring._Reading.__call__

    def read_elsewhere(self):
        """Each rank reads on a separate thread."""
        reading.directory = run_dir.with_name("stale") if self._rank == many.size - 1 else run_dir
        return read(self)

    monkeypatch.setattr(restoring._Reading, "__call__", read_elsewhere)

    def body(comm):
        state = {"w": np.zeros(10_000), "n": 0}
        for directory, value in ((run_dir, 1.0), (run_dir.with_name("stale"), 2.0)):
            with hc.Checkpointer(directory, comm=comm) as ckpt:
                ckpt.save(1, {"w": np.full(10_000, value), "n": 7})
        reading.directory = run_dir
        comm.barrier()
        monkeypatch.setattr(spans, "open_regular", shown_elsewhere)
        comm.barrier()
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(errors.CorruptError) as caught:
            ckpt.restore(state, step=1)
        return state["n"], list(caught.value.failures), str(caught.value)

    results = many(body)
    assert results == [(0, [many.size - 1], results[0][2])] * many.size
    assert "checksum mismatch" in results[0][2]


# -- shards --------------------------------------------------------------------------------------


def halves(comm: Any, begin: Any, end: Any) -> hc.Sharded:
    """Return a shard of a tensor of 10 per rank that ranks would tile if `begin` and `end` were 0 and 0."""
    low, high = 10 * comm.rank + begin(comm), 10 * (comm.rank + 1) + end(comm)
    return hc.Sharded(np.zeros(high - low), (10 * comm.size,), (low,))


@pytest.mark.counts(2)
def test_long_doubles_that_are_equal_do_not_differ_by_their_unused_bytes(ranks, run_dir):
    def body(comm):
        values = {"real": np.ones(3, np.longdouble), "complex": np.ones(3, np.clongdouble)}
        for array in values.values():
            unused = array.view(np.uint8).reshape(-1, np.dtype(np.longdouble).itemsize)[:, 10:]
            if np.finfo(np.longdouble).nmant == 63:  # 80 bits, as on x86
                unused[:] = comm.rank
        with hc.Checkpointer(run_dir, comm=comm, check_replicas=1) as ckpt:
            ckpt.save(1, values).result()
            values["real"][0] += comm.rank
            with pytest.raises(errors.ReplicaMismatchError, match="'real' on rank 1"):
                ckpt.save(2, values).result()

    ranks(body)


@pytest.mark.counts(1, 2, 5)
def test_shards_that_leave_a_hole_are_refused(ranks, run_dir):
    def state(comm):
        return {"x": halves(comm, lambda c: int(last(c)), lambda c: 0)}

    text = failures(ranks, run_dir, state, errors.ShardingError)
    assert f"x: shards cover {10 * ranks.size - 1} of {10 * ranks.size} elements" in text


@pytest.mark.counts(1, 2, 5)
def test_shards_that_overlap_are_refused(many, run_dir):
    def state(comm):
        return {"x": halves(comm, lambda c: -int(last(c)), lambda c: 0)}

    text = failures(many, run_dir, state, errors.ShardingError)
    assert "x: shards overlap" in text
    assert f"[{10 * many.size - 11}:{10 * many.size}]" in text


@pytest.mark.counts(1, 2, 5)
def test_shards_that_overlap_and_leave_a_hole_of_the_same_size_are_refused(many, run_dir):
    """Counting elements is not enough."""

    def state(comm):
        shift = {0: 1}.get(comm.rank, 0)
        return {"x": halves(comm, lambda c: shift, lambda c: shift)}

    assert "overlap" in failures(many, run_dir, state, errors.ShardingError)


def test_every_wrong_tensor_is_named_at_once(many, run_dir):
    def state(comm):
        hole = halves(comm, lambda c: int(last(c)), lambda c: 0)
        overlap = halves(comm, lambda c: -int(last(c)), lambda c: 0)
        return {"hole": hole, "overlap": overlap, "fine": halves(comm, lambda c: 0, lambda c: 0)}

    text = failures(many, run_dir, state, errors.ShardingError)
    assert "hole: " in text
    assert "overlap: " in text
    assert "fine" not in text


@pytest.mark.counts(1, 2, 5)
def test_a_tensor_that_no_rank_holds_is_a_hole(ranks, run_dir):
    text = failures(ranks, run_dir, lambda comm: {"x": hc.Sharded(np.zeros(0), (5,), (0,))}, errors.ShardingError)
    assert "shards cover 0 of 5 elements" in text


@pytest.mark.parametrize(
    ("shape", "global_shape", "offset"),
    [((3,), (2,), (0,)), ((1,), (2,), (2,)), ((1,), (2,), (-1,)), ((1, 1), (2,), (0,)), ((), (2,), (0,))],
)
def test_a_shard_outside_its_tensor_is_refused_when_it_is_made(shape, global_shape, offset):
    with pytest.raises(errors.ShardingError, match="does not fit"):
        hc.Sharded(np.zeros(shape), global_shape, offset)


# -- checkpointers -------------------------------------------------------------------------------


OPTIONS = {
    "max_to_keep": 0, "keep_period": 0, "on_newer": "maybe", "check_replicas": -1, "lock_expiry_s": 0, "threads": -1,
    "keep_best": "min:loss:0",
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_out_of_range_is_named_on_every_rank(ranks, run_dir, name):
    def body(comm):
        value = OPTIONS[name] if last(comm) else hc.Checkpointer.__init__.__kwdefaults__.get(name, None)
        with pytest.raises(errors.OptionError, match=f"options.{name}") as caught:
            hc.Checkpointer(run_dir, comm=comm, **{name: value})
        assert isinstance(caught.value, ValueError)
        return str(caught.value)

    results = ranks(body)
    assert results == [results[0]] * ranks.size


def test_all_wrong_options_are_named_at_once(run_dir):
    with pytest.raises(errors.OptionError) as caught:
        hc.Checkpointer(run_dir, **OPTIONS)
    assert all(f"options.{name}" in str(caught.value) for name in OPTIONS)


CALLS = {
    "save": lambda ckpt: ckpt.save(1, {"w": np.zeros(1)}),
    "restore": lambda ckpt: ckpt.restore({"w": np.zeros(1)}),
    "latest_step": lambda ckpt: ckpt.latest_step(),
    "all_steps": lambda ckpt: ckpt.all_steps(),
    "best_step": lambda ckpt: ckpt.best_step(),
    "pin": lambda ckpt: ckpt.pin(1),
    "unpin": lambda ckpt: ckpt.unpin(1),
    "poll": lambda ckpt: ckpt.poll(),
    "wait": lambda ckpt: ckpt.wait(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_checkpointer_says_so(ranks, run_dir, call):
    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.close()
        ckpt.close()
        with pytest.raises(errors.ClosedError, match="closed"):
            CALLS[call](ckpt)

    ranks(body)


def test_a_save_is_done_when_it_returns(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            pending = ckpt.save(1, {"w": np.zeros(1)})
            ckpt.poll()
            ckpt.wait()
            return pending.done(), pending.result().step

    assert ranks(body) == [(True, 1)] * ranks.size


def test_ranks_with_different_directories_are_refused(many, run_dir):
    def body(comm):
        with pytest.raises(errors.OptionError) as caught:
            hc.Checkpointer(run_dir.with_name(f"of-rank-{comm.rank % 2}"), comm=comm)
        return str(caught.value)

    texts = many(body)
    assert texts == [texts[0]] * many.size
    assert re.search(r"\[ranks? 1\b[^]]*\] directory: is ", texts[0])
    assert not list(run_dir.parent.glob("of-rank-*"))


DIFFERING: dict[str, tuple[Any, Any]] = {
    "max_to_keep": (3, 4),
    "keep_best": ("loss", None),
    "keep_period": (None, 2),
    "async_save": (True, False),
    "on_newer": ("error", "aside"),
    "check_replicas": (0, 1),
    "lock_expiry_s": (60.0, 61.0),
    "max_in_flight": (1, 2),
    "max_bytes_in_flight": (None, 1),
    "recycle": (True, False),
    "incremental": (True, False),
    "nan_guard": (True, False),
    "peer_timeout_s": (60.0, 61.0),
    "scratch_bandwidth": (None, 1.0),
    "scratch_keep": (1, 2),
}


def test_the_table_has_every_option_that_must_not_differ():
    named = {field.name for field in fields(Options)}
    assert named - MAY_DIFFER - {"backend"} == set(DIFFERING)


@pytest.mark.counts(3)
@pytest.mark.parametrize("option", DIFFERING)
def test_ranks_with_different_options_are_refused(many, run_dir, option):
    of_last, of_others = DIFFERING[option]

    def body(comm):
        with pytest.raises(errors.OptionError) as caught:
            hc.Checkpointer(run_dir, comm=comm, **{option: of_last if last(comm) else of_others})
        return str(caught.value)

    texts = many(body)
    assert texts == [texts[0]] * many.size
    assert f"[rank {many.size - 1}] options.{option}: is " in texts[0]


@pytest.mark.counts(3)
def test_each_rank_may_choose_its_threads(many, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, threads=1 + comm.rank % 2) as ckpt:
            return ckpt.save(1, {"w": np.ones(3)}).result().step

    assert many(body) == [1] * many.size


def test_something_else_than_a_communicator_is_refused():
    with pytest.raises(TypeError, match="mpi4py communicator"):
        hc.Checkpointer("anywhere", comm=7)


@pytest.mark.mpi
def test_an_mpi4py_communicator_is_duplicated(run_dir):
    from mpi4py import MPI

    with hc.Checkpointer(run_dir, comm=MPI.COMM_WORLD) as ckpt:
        assert ckpt.comm.size == MPI.COMM_WORLD.Get_size()
        ckpt.save(1, {"w": np.ones(4)})
        assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.Get_size()
    assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.Get_size()


@pytest.mark.mpi
def test_an_intercommunicator_is_refused(run_dir):
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.size == 1:
        pytest.skip("it needs two groups")
    group = world.Split(int(world.rank > 0))
    between = group.Create_intercomm(0, world, 1 if world.rank == 0 else 0)
    try:
        with pytest.raises(TypeError, match=r"intercommunicator: pass comm\.Merge\(\)"):
            hc.Checkpointer(run_dir, comm=between)
    finally:
        between.Free()
        group.Free()


@pytest.mark.mpi
def test_a_rank_without_a_communicator_is_told_so(run_dir):
    from mpi4py import MPI

    with pytest.raises(TypeError, match=r"comm is MPI\.COMM_NULL"):
        hc.Checkpointer(run_dir, comm=MPI.COMM_NULL)


@pytest.mark.mpi
def test_without_a_communicator_all_ranks_of_the_launch_save_together(run_dir):
    from mpi4py import MPI

    with hc.Checkpointer(run_dir) as ckpt:
        assert ckpt.save(1, {"w": np.ones(4)}).result().files == MPI.COMM_WORLD.Get_size()


def test_a_partial_restore_compares_only_what_it_restored(ranks, run_dir):
    """What the checkpoint does not have may differ between ranks still: it is about to be made equal by the program."""

    def save(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"old": np.arange(4.0)})

    def restore(comm):
        state = {"old": np.zeros(4), "new": np.full(3, float(comm.rank))}
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            restored = ckpt.restore(state, strict=False)
        return state["old"].tolist(), state["new"].tolist(), restored.missing

    ranks(save)
    for rank, (old, new, missing) in enumerate(ranks(restore)):
        assert (old, new, missing) == ([0.0, 1.0, 2.0, 3.0], [float(rank)] * 3, ("new",))


def test_a_domain_decomposed_array_given_as_it_is_names_sharded(many, run_dir):
    text = failures(many, run_dir, lambda comm: {"u": np.full(4, comm.rank)}, errors.ReplicaMismatchError)
    assert "hpcckpt.Sharded(part, global_shape, offset)" in text
    assert "training" not in text


def test_parts_of_other_sizes_name_the_array_and_sharded(many, run_dir):
    text = failures(many, run_dir, lambda comm: {"u": np.zeros(4 + last(comm))}, errors.TreeMismatchError)
    assert "'u', pass hpcckpt.Sharded(part, global_shape, offset)" in text
    assert f"'u': has shape (4,) on rank 0 and (5,) on rank {many.size - 1};" in text
    other_dir = run_dir.with_name("other")
    other = failures(many, other_dir, lambda comm: {"v" if last(comm) else "w": np.zeros(3)}, errors.TreeMismatchError)
    assert "Sharded" not in other


def test_parts_of_other_sizes_in_a_later_save_name_sharded_too(many, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"u": np.zeros(4)}).result()
            with pytest.raises(errors.TreeMismatchError, match=r"hpcckpt\.Sharded"):
                ckpt.save(2, {"u": np.zeros(4 + last(comm))}).result()

    many(body)


def test_a_part_restored_without_sharded_names_it_and_no_model(many, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"u": hc.Sharded(np.zeros(4), (4 * comm.size,), (4 * comm.rank,)), "t": 1}).result()
            with pytest.raises(errors.StateMismatchError) as caught:
                ckpt.restore({"u": np.zeros(4), "t": 1})
        return str(caught.value)

    text = many(body)[0]
    assert "hpcckpt.Sharded(part, global_shape, offset)" in text
    assert " model" not in text


def test_a_state_without_a_model_that_does_not_fit_mentions_no_model(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"u": np.zeros(4)}).result()
        with pytest.raises(errors.StateMismatchError) as caught:
            ckpt.restore({"v": np.zeros(4)})
    assert "the same names" in str(caught.value)
    assert " model" not in str(caught.value)
