"""Ranks as threads behave as processes do: nothing shared, no rank left waiting."""

from __future__ import annotations

import operator
import pickle
import time

import pytest

from hpcckpt.collective.communicator import SerialCommunicator, launched_rank, launched_size
from hpcckpt.collective.connect import as_communicator
from hpcckpt.errors import CollectiveError, StepNotFoundError
from hpcckpt.testing.ranks import ThreadCommunicator, run_ranks

pytestmark = pytest.mark.one_case


def body_of_all(comm):
    shared = comm.bcast([1, 2] if comm.rank == 0 else None)
    shared.append(comm.rank)
    gathered = comm.gather(comm.rank * 10)
    return (
        shared,
        gathered,
        comm.allgather(comm.rank),
        comm.agree("p", lambda: comm.rank),
        comm.on_root("p", lambda: comm.rank),
    )


@pytest.mark.parametrize("n", [1, 2, 5])
def test_messages_are_copies_and_arrive_in_rank_order(n):
    results = run_ranks(n, body_of_all)
    everyone = list(range(n))
    for rank, (shared, gathered, every, agreed, of_root) in enumerate(results):
        assert shared == [1, 2, rank]
        assert gathered == ([10 * r for r in everyone] if rank == 0 else None)
        assert (every, agreed, of_root) == (everyone, rank, 0)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_distinct_values_are_in_rank_order(n):
    assert run_ranks(n, lambda comm: comm.distinct(["all", comm.rank, "all"])) == [["all", *range(n)]] * n


@pytest.mark.parametrize("n", [1, 2, 5])
def test_values_of_all_ranks_merge_in_rank_order(n):
    everyone = "".join(map(str, range(n)))
    assert run_ranks(n, lambda comm: comm.allreduce(str(comm.rank), operator.add)) == [everyone] * n
    assert run_ranks(n, lambda comm: comm.allreduce(comm.rank, max)) == [n - 1] * n


@pytest.mark.parametrize(
    "collect",
    [lambda comm: comm.distinct(["a" * 1000]), lambda comm: comm.allreduce("a" * 1000, max)],
    ids=["distinct", "allreduce"],
)
def test_messages_do_not_grow_with_the_number_of_ranks(collect, monkeypatch):
    def longest(n: int) -> int:
        lengths = []

        def measured(comm, dest, message):
            lengths.append(len(pickle.dumps(message)))
            post(comm, dest, message)

        monkeypatch.setattr(ThreadCommunicator, "_post", measured)
        run_ranks(n, collect)
        return max(lengths)

    post = ThreadCommunicator._post
    assert longest(6) < longest(2) + 500


def test_one_rank_is_like_a_group_of_one():
    assert body_of_all(SerialCommunicator()) == run_ranks(1, body_of_all)[0]


@pytest.mark.parametrize("n", [1, 3])
def test_a_failure_in_agree_is_the_same_on_every_rank(n):
    def body(comm):
        def fail():
            if comm.rank == comm.size - 1:
                raise StepNotFoundError("not here")

        with pytest.raises(StepNotFoundError) as caught:
            comm.agree("look", fail)
        assert isinstance(caught.value, CollectiveError)
        has_cause = caught.value.__cause__ is not None
        return str(caught.value), has_cause == (comm.rank == comm.size - 1)

    assert run_ranks(n, body) == [(f"look: [rank {n - 1}] not here", True)] * n


def test_a_failure_of_root_is_the_same_on_every_rank():
    def body(comm):
        with pytest.raises(CollectiveError) as caught:
            comm.on_root("decide", lambda: 1 // 0)
        return caught.value.failures

    assert run_ranks(3, body) == [{0: "ZeroDivisionError: integer division or modulo by zero"}] * 3


def test_only_root_does_what_is_roots():
    done = []
    run_ranks(3, lambda comm: comm.on_root("p", lambda: done.append(comm.rank)))
    assert done == [0]


@pytest.mark.parametrize("duplicate", [False, True])
def test_a_rank_that_ends_leaves_nobody_waiting(duplicate):
    """Also those that wait in a duplicate, as a checkpointer's are."""

    def body(comm):
        own = comm.duplicate() if duplicate else comm
        if comm.rank == 1:
            raise ZeroDivisionError
        own.barrier()

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        run_ranks(3, body, timeout_s=50.0)
    assert time.monotonic() - began < 40


def test_a_rank_that_misses_a_collective_call_is_noticed():
    """`abort` of threads is an exception."""
    with pytest.raises(SystemExit):
        run_ranks(2, lambda comm: comm.barrier() if comm.rank == 0 else None, timeout_s=0.2)


@pytest.mark.parametrize(
    ("variables", "size", "rank"),
    [
        ({}, None, None),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}, 4, 3),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, 2, 1),
        ({"SLURM_PROCID": "0"}, None, None),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5"}, 8, 5),
        ({"OMPI_COMM_WORLD_SIZE": "many"}, None, None),
    ],
)
def test_a_launcher_is_recognised_by_what_it_says(monkeypatch, variables, size, rank):
    import os

    for name in list(os.environ):
        if name.startswith(("OMPI", "PMI", "PALS", "SLURM", "MPI_", "ALPS")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (launched_size(), launched_rank()) == (size, rank)


def test_a_communicator_of_ours_is_duplicated():
    comm = SerialCommunicator()
    assert as_communicator(comm) is not comm
