"""Whatever fails, wherever: the same typed error on every rank, and nothing that was there is lost."""

from __future__ import annotations

import errno
import sys
import types
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.core.failpoints import PHASES
from hpcckpt.rundir import pins as run_pins
from hpcckpt.state import tree
from hpcckpt.testing.faults import Fault, armed
from tests.support.listing import listed

EVERY_RANK = ["0-plan", "2-write", "2-written", "2-synced", "3-report"]
ROOT_ONLY = ["1-begin", "4-sealed", "4-check", "4-manifest", "4-durable", "5-published", "6-parent-synced"]
AFTER_COMMIT = ["8-retention", "8-retired"]
RESTORING = ["9-restore"]
# Nothing runs between the outcome and its use that could fail: 7-outcome is a place to be killed at.
assert {*EVERY_RANK, *ROOT_ONLY, *AFTER_COMMIT, *RESTORING, "7-outcome"} == set(PHASES)

FAILURES = {
    "full": (OSError(errno.ENOSPC, "No space left on device", "/a/file"), errors.NoSpaceError, "free space"),
    "disk": (OSError(errno.EIO, "Input/output error", "/a/file"), errors.StorageError, "Input/output error"),
    "bug": (RuntimeError("no such thing"), errors.CollectiveError, "RuntimeError: no such thing"),
}
WHO = {"rank 0": lambda size: {0}, "the last rank": lambda size: {size - 1}, "all ranks": lambda size: set(range(size))}
CASES = [*((who, "full") for who in WHO), ("the last rank", "disk"), ("the last rank", "bug")]


def state(value: float) -> dict[str, Any]:
    return {"w": np.full(100, value), "n": hc.PerRank({"v": value}), "epoch": int(value)}


def failure_of(call: Any) -> tuple[Any, ...]:
    """Return what a call raises, as other ranks can compare it."""
    with pytest.raises(errors.HpcckptError) as caught:
        call()
    error = caught.value
    assert isinstance(error, errors.CollectiveError)
    return type(error).__name__, error.kind, str(error), dict(error.failures)


@pytest.fixture
def check_failed_save(ranks: Any, run_dir: Any, saving: Any, debris: Any) -> Any:
    """A function that has the second save of three fail, and looks at what that leaves."""

    def check(phase: str, who: set[int], name: str) -> None:
        _check_failed_save(ranks, run_dir, saving, debris, phase, who, name)

    return check


def _check_failed_save(
    ranks: Any, run_dir: Any, saving: Any, debris: Any, phase: str, who: set[int], name: str
) -> None:
    error, cls, text = FAILURES[name]

    def body(comm: Any) -> Any:
        held = state(0)
        with hc.Checkpointer(run_dir, comm=comm, **saving) as ckpt:
            ckpt.save(1, state(1))
            failure = failure_of(lambda: ckpt.save(2, state(2)).result())
            comm.barrier()
            left, steps = debris(ckpt), ckpt.all_steps()
            assert ckpt.restore(held).step == 1
            comm.barrier()
            ckpt.save(2, state(2))
            ckpt.save(3, state(3))
        return failure, left, steps, held["w"].tolist(), held["epoch"]

    arrival = 2  # the first is that of step 1
    with armed(*(Fault(phase, "raise", rank, arrival, error=error) for rank in who)):
        results = ranks(body)
    assert results == [results[0]] * ranks.size
    (kind_name, _, message, failures), left, steps, values, epoch = results[0]
    assert kind_name == cls.__name__
    assert set(failures) == who
    assert text in message
    assert "step 2" in message
    assert (left, steps) == ([], [1])
    assert (values, epoch) == ([1.0] * 100, 1)
    assert hc.load(run_dir)["w"].tolist() == [3.0] * 100
    assert listed(run_dir) == ["step-0000000001", "step-0000000002", "step-0000000003"]


@pytest.mark.parametrize(("who", "name"), CASES)
@pytest.mark.parametrize("phase", EVERY_RANK)
def test_a_failure_on_any_rank_is_the_same_error_on_all_and_loses_nothing(ranks, check_failed_save, phase, who, name):
    check_failed_save(phase, WHO[who](ranks.size), name)


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("phase", ROOT_ONLY)
def test_a_failure_of_root_is_the_same_error_on_all_and_loses_nothing(check_failed_save, phase, name):
    check_failed_save(phase, {0}, name)


@pytest.mark.parametrize("phase", ROOT_ONLY)
def test_a_failed_overwrite_leaves_the_old_step_under_its_name(ranks, run_dir, saving, debris, phase):
    def body(comm):
        held = state(0)
        with hc.Checkpointer(run_dir, comm=comm, **saving) as ckpt:
            ckpt.save(1, state(1))
            failure_of(lambda: ckpt.save(1, state(2), overwrite=True).result())
            comm.barrier()
            ckpt.restore(held)
            left = debris(ckpt)
            comm.barrier()
            ckpt.save(1, state(3), overwrite=True)
        return held["epoch"], left

    with armed(Fault(phase, "raise", 0, 2, error=FAILURES["disk"][0])):
        assert ranks(body) == [(1, [])] * ranks.size
    assert hc.load(run_dir)["w"].tolist() == [3.0] * 100


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("phase", AFTER_COMMIT)
def test_a_failure_of_retention_is_a_warning_for_the_step_is_committed(ranks, run_dir, saving, phase, name):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=1, **saving) as ckpt:
            first = ckpt.save(1, state(1)).result()
            saved = ckpt.save(2, state(2)).result()
            comm.barrier()
            latest = ckpt.latest_step()
            last = ckpt.save(3, state(3)).result()
        assert first.warnings == last.warnings == ()
        return saved.step, saved.warnings, latest, last.kept

    arrival = 2 if phase == "8-retention" else 1
    with armed(Fault(phase, "raise", 0, arrival, error=FAILURES[name][0])):
        results = ranks(body)
    assert results == [results[0]] * ranks.size
    step, (warning,), latest, kept = results[0]
    assert (step, latest, kept) == (2, 2, 1)
    assert "step 2" in warning
    assert listed(run_dir) == ["step-0000000003"]


@pytest.mark.counts(1, 2, 5)
@pytest.mark.parametrize(("who", "name"), CASES)
@pytest.mark.parametrize("phase", RESTORING)
def test_a_restore_that_fails_is_the_same_error_on_all_and_can_be_repeated(ranks, run_dir, phase, who, name):
    error, cls, _ = FAILURES[name]
    failing = WHO[who](ranks.size)

    def body(comm):
        held = state(0)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(1))
            failure = failure_of(lambda: ckpt.restore(held, 1))
            comm.barrier()
            pins = run_pins.pins(run_dir)
            comm.barrier()
            ckpt.restore(held)
        return failure, pins, held["epoch"]

    with armed(*(Fault(phase, "raise", rank, error=error) for rank in failing)):
        results = ranks(body)
    assert results == [results[0]] * ranks.size
    failure, pins, epoch = results[0]
    assert (failure[0], set(failure[3])) == (cls.__name__, failing)
    assert (pins, epoch) == (set(), 1)


@pytest.mark.counts(1, 2, 5)
def test_failures_of_different_kinds_are_told_together(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return failure_of(lambda: ckpt.save(1, state(1)).result())

    size = ranks.size
    with armed(
        Fault("2-write", "raise", 0, error=FAILURES["full"][0]),
        Fault("2-write", "raise", size - 1, error=FAILURES["disk"][0]),
    ):
        results = ranks(body)
    assert results == [results[0]] * size
    _, _, message, failures = results[0]
    assert set(failures) == {0, size - 1}
    assert size == 1 or ("No space" in message and "Input/output" in message)


# -- what frameworks do ---------------------------------------------------------------------------


class Stubborn:
    """Something of a framework whose values cannot be read, or not be put back, on one rank."""

    def __init__(self, comm, rank, doing):
        self.fails = comm.rank == rank
        self.doing = doing


@pytest.fixture
def stubborn(monkeypatch):
    """Teach the engine about `Stubborn`."""

    def tensor(obj, name):
        array = np.zeros(4)

        def read():
            if obj.fails and obj.doing == "read":
                raise ValueError("cannot be read")
            return array

        def assign(new):
            if obj.fails and obj.doing == "assign":
                raise ValueError("cannot be assigned")

        yield tree.TensorLeaf(tree.declare(array, name, "replicated"), read, assign)

    class Item(tree.ObjectLeaf):
        def read(self):
            if self.value.fails and self.value.doing == "read object":
                raise ValueError("cannot be read")
            return 1

    def item(obj, name):
        yield Item(name, obj, {}, name)

    def leaves(obj, name):
        return (item if obj.doing == "read object" else tensor)(obj, name) if isinstance(obj, Stubborn) else None

    adapter = types.ModuleType("stubborn_adapter")
    adapter.leaves = leaves
    monkeypatch.setitem(sys.modules, "stubborn_adapter", adapter)
    monkeypatch.setitem(tree.ADAPTERS, Stubborn.__module__.partition(".")[0], "stubborn_adapter")


@pytest.mark.counts(1, 2, 5)
@pytest.mark.parametrize("check_replicas", [0, 100])
@pytest.mark.parametrize("who", ["rank 0", "the last rank"])
def test_a_value_that_cannot_be_read_on_one_rank_fails_on_all(ranks, run_dir, stubborn, who, check_replicas):
    (rank,) = WHO[who](ranks.size)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, check_replicas=check_replicas) as ckpt:
            # a framework's tensor of which every rank writes a part
            stubborn = {"x": Stubborn(comm, rank, "read"), "y": np.zeros(1000)}
            failure = failure_of(lambda: ckpt.save(1, stubborn).result())
            ckpt.save(1, state(1))
        return failure

    if check_replicas == 0 and rank != 0:
        pytest.skip("only rank 0 reads so small a tensor when replicas are not compared")
    results = ranks(body)
    assert results == [results[0]] * ranks.size
    assert list(results[0][3]) == [rank]


def test_an_object_that_cannot_be_read_on_root_fails_on_all(ranks, run_dir, stubborn):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            failure = failure_of(lambda: ckpt.save(1, {"x": Stubborn(comm, 0, "read object")}).result())
            ckpt.save(1, state(1))
        return failure

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    assert list(results[0][3]) == [0]


@pytest.mark.parametrize("who", ["rank 0", "the last rank"])
def test_a_value_that_cannot_be_assigned_on_one_rank_fails_on_all(ranks, run_dir, stubborn, who):
    (rank,) = WHO[who](ranks.size)

    def body(comm):
        held = {"x": Stubborn(comm, rank, "assign")}
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, held)
            return failure_of(lambda: ckpt.restore(held))

    results = ranks(body)
    assert results == [results[0]] * ranks.size
    assert list(results[0][3]) == [rank]


@pytest.mark.parametrize("phase", ["0-plan", "2-write"])
def test_an_interrupt_on_one_rank_reaches_all_and_loses_nothing(ranks, run_dir, debris, phase):
    """In the program's thread it goes on as what it is, once the other ranks know."""

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(1))
            names = []
            for call in (lambda: ckpt.save(2, state(2)).result(), ckpt.wait):
                try:
                    call()
                except (KeyboardInterrupt, errors.CollectiveError) as error:
                    names.append(type(error).__name__)
            left = debris(ckpt)
            ckpt.save(2, state(2))
        return names, left

    with armed(Fault(phase, "raise", 0, 2, error=KeyboardInterrupt())):
        results = ranks(body)
    own = ["KeyboardInterrupt", "CollectiveError"] if phase == "0-plan" else ["CollectiveError"]
    assert results == [(own, []), *[(["CollectiveError"], [])] * (ranks.size - 1)]
    assert hc.load(run_dir)["w"].tolist() == [2.0] * 100
