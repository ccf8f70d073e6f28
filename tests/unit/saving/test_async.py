"""Saves in the background: the state as it was, in order, with every failure reported once and on all ranks."""

from __future__ import annotations

import errno
import gc
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.checkpointer import shutdown
from hpcckpt.collective.deadlines import Patience
from hpcckpt.core import failpoints
from hpcckpt.format import layout
from hpcckpt.rundir.discovery import read_manifest, step_numbers
from hpcckpt.testing.faults import Fault, armed
from hpcckpt.testing.ranks import ThreadCommunicator, run_ranks
from tests.support.listing import listed

DEADLINE_S = 60.0


class Gate:
    """A phase at which every thread waits until the gate is opened."""

    def __init__(self, phase: str, rank: int | None, arrivals: int) -> None:
        assert phase in failpoints.PHASES
        self.phase, self.rank = phase, rank
        self._left = arrivals
        self._guard = threading.Lock()
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, phase: str, rank: int) -> None:
        """Wait, if this is one of the arrivals meant."""
        if phase != self.phase or self.rank not in {None, rank}:
            return
        with self._guard:
            self._left -= 1
            is_meant = self._left >= 0
        if is_meant:
            self.entered.set()
            assert self.opened.wait(DEADLINE_S), "nobody opened the gate"

    def open_later(self) -> None:
        """Open it from another thread, when the caller has had time to wait in vain."""
        threading.Timer(0.2, self.opened.set).start()


@pytest.fixture
def gate() -> Iterator[Callable[..., Gate]]:
    """Close a gate: ``gate(phase, rank=None, arrivals=...)``."""
    made: list[Gate] = []

    def close(phase: str, rank: int | None = None, arrivals: int = 10**6) -> Gate:
        made.append(Gate(phase, rank, arrivals))
        failpoints.install_hook(made[-1])
        return made[-1]

    yield close
    failpoints.install_hook(None)
    for each in made:
        each.opened.set()


def soon(condition: Callable[[], bool]) -> bool:
    """Wait for something that others bring about."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def last(comm: Any) -> bool:
    return comm.rank == comm.size - 1


def state(comm: Any, value: float) -> dict[str, Any]:
    """Return a state with a value of every kind."""
    value = float(value)
    return {
        "w": np.full((64, 3), value),
        "big": np.full(50_000, value, np.float32),
        "strided": np.full((30, 30), value)[::2, ::3],
        "shard": hc.Sharded(np.full((2, 5), value + comm.rank), (2 * comm.size, 5), (2 * comm.rank, 0)),
        "own": hc.PerRank(np.full(10 + comm.rank, value + comm.rank)),
        "position": hc.PerRank({"at": [value, comm.rank]}),
        "root": hc.RootOnly(np.full(7, value if comm.rank == 0 else -2.0)),
        "epoch": int(value),
        "log": {"lines": [value], "deep": {"a": [{"b": value}]}},
    }


def scribble(held: Any) -> None:
    """Change everything in a state, in place."""
    if isinstance(held, np.ndarray):
        held[...] = -1
    elif isinstance(held, hc.Sharded):
        scribble(held.array)
    elif isinstance(held, hc.PerRank | hc.RootOnly):
        scribble(held.value)
    elif isinstance(held, dict):
        for key, value in list(held.items()):
            scribble(value)
            if isinstance(value, int | float):
                held[key] = -1
    elif isinstance(held, list):
        for value in held:
            scribble(value)
        held.append("scribbled")


def plain(held: Any) -> Any:
    """Return a state in values that can be compared and sent."""
    if isinstance(held, np.ndarray):
        return held.tolist()
    if isinstance(held, hc.Sharded):
        return plain(held.array)
    if isinstance(held, hc.PerRank | hc.RootOnly):
        return plain(held.value)
    return {key: plain(value) for key, value in held.items()} if isinstance(held, dict) else held


def wanted(comm: Any, value: float) -> Any:
    """Return what a restore of `state(comm, value)` brings back."""
    return plain(state(comm, value) | {"root": np.full(7, float(value))})


# -- the snapshot --------------------------------------------------------------------------------


@pytest.mark.parametrize("check_replicas", [0, 1])
@pytest.mark.parametrize("n_before", [0, 1])
def test_what_changes_after_save_does_not_reach_the_checkpoint(ranks, run_dir, gate, n_before, check_replicas):
    """The bytes are held back until everything has been scribbled over."""

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, check_replicas=check_replicas) as ckpt:
            for step in range(n_before):
                ckpt.save(step, state(comm, 9)).result()
            comm.barrier()
            closed = gate("2-write") if comm.is_root or not isinstance(comm, ThreadCommunicator) else None
            comm.barrier()
            held, metrics, objects = state(comm, 1), {"loss": 0.5}, {"lr": [0.1]}
            pending = ckpt.save(5, held, metrics=metrics, objects=objects)
            scribble(held)
            metrics["loss"] = 7.0
            objects["lr"].append(7.0)
            is_early = not pending.done()
            comm.barrier()
            if closed is not None:
                closed.opened.set()
            pending.result()
            target = state(comm, 0)
            found = ckpt.restore(target)
        assert (found.step, found.metrics, found.objects) == (5, {"loss": 0.5}, {"lr": [0.1]})
        return is_early, plain(target) == wanted(comm, 1)

    assert ranks(body) == [(True, True)] * ranks.size


def test_memory_for_copies_is_used_again_without_mixing_steps(ranks, run_dir):
    def body(comm):
        held = state(comm, 0)
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=None, max_in_flight=2) as ckpt:
            for step in range(1, 6):
                for name, value in state(comm, step).items():
                    held[name] = value
                ckpt.save(step, held)
                scribble(held)
            found = []
            for step in range(1, 6):
                target = state(comm, 0)
                ckpt.restore(target, step)
                found.append(plain(target) == wanted(comm, step))
        return found

    assert ranks(body) == [[True] * 5] * ranks.size


# -- polling and results ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("phase", ["2-write", "4-manifest", "8-retention"])
def test_polling_never_blocks_while_a_drain_or_a_commit_hangs(run_dir, gate, n_ranks, phase):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(comm, 1)).result()
            comm.barrier()
            closed = comm.bcast(0) if not comm.is_root else gates.append(gate(phase)) or comm.bcast(0)
            pending = ckpt.save(2, state(comm, 2))
            assert soon(lambda: pending.done() or gates[0].entered.is_set())
            began = time.monotonic()
            for _ in range(100):
                ckpt.poll()
                assert not pending.done()
            took = time.monotonic() - began
            comm.barrier()
            gates[0].opened.set()
            assert soon(pending.done), "done() is local: it turns true without a collective call"
            return closed, took < DEADLINE_S / 2, pending.result().step

    gates: list[Gate] = []
    assert run_ranks(n_ranks, body) == [(0, True, 2)] * n_ranks


@pytest.mark.counts(1, 2, 5)
def test_a_result_is_the_same_on_all_ranks_and_twice(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            pending = ckpt.save(1, state(comm, 1))
            one = pending.result()
            ckpt.save(2, state(comm, 2)).result()
            return one, pending.result(), pending.done()

    results = ranks(body)
    saved, again, is_done = results[0]
    assert results == [results[0]] * ranks.size
    assert (saved, is_done, saved.step, saved.path) == (again, True, 1, run_dir / layout.step_dirname(1))
    assert saved.stall_seconds <= saved.seconds


def test_a_result_may_be_asked_for_after_closing(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            pending = ckpt.save(1, state(comm, 1))
        return pending.done(), pending.result().step

    assert ranks(body) == [(True, 1)] * ranks.size


# -- several saves under way -----------------------------------------------------------------------


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("max_in_flight", [2, 3])
def test_steps_are_committed_in_order_however_long_one_takes(run_dir, max_in_flight, n_ranks):
    """The first save of the last rank is held back until the later ones are written."""
    seen: list[list[int]] = []
    first = Gate("2-write", n_ranks - 1, 1)

    def hook(phase: str, rank: int) -> None:
        if phase == "6-parent-synced":
            seen.append(step_numbers(run_dir))
        first(phase, rank)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=None, max_in_flight=max_in_flight) as ckpt:
            pendings = [ckpt.save(1, state(comm, 1))]
            assert first.entered.wait(DEADLINE_S)
            pendings += [ckpt.save(step, state(comm, step)) for step in range(2, max_in_flight + 1)]
            for pending in pendings[1:]:
                assert soon(lambda pending=pending: pending._save.task.local.outcome is not None)
            ckpt.poll()
            assert ckpt.all_steps() == []
            first.opened.set()
            steps = [pending.result().step for pending in reversed(pendings)]
            target = state(comm, 0)
            ckpt.restore(target)
        return steps, plain(target) == wanted(comm, max_in_flight)

    failpoints.install_hook(hook)
    try:
        results = run_ranks(n_ranks, body)
    finally:
        failpoints.install_hook(None)
        first.opened.set()
    steps = list(range(1, max_in_flight + 1))
    assert results == [(steps[::-1], True)] * n_ranks
    assert seen == [steps[:n] for n in steps]
    manifests = [read_manifest(run_dir / layout.step_dirname(step)) for step in steps]
    assert [m.parent for m in manifests] == [None, *(m.save_id for m in manifests[:-1])]


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_save_beyond_those_that_may_be_under_way_waits_for_the_oldest(run_dir, gate, max_in_flight, n_ranks):
    closed = gate("2-write", rank=n_ranks - 1, arrivals=1)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=None, max_in_flight=max_in_flight) as ckpt:
            pendings = [ckpt.save(1, state(comm, 1))]
            assert closed.entered.wait(DEADLINE_S)
            pendings += [ckpt.save(step, state(comm, step)) for step in range(2, max_in_flight + 1)]
            was_open = closed.opened.is_set()
            comm.barrier()
            closed.open_later()
            ckpt.save(9, state(comm, 9))
            return was_open, closed.opened.is_set(), pendings[0].done()

    assert run_ranks(n_ranks, body) == [(False, True, True)] * n_ranks
    assert step_numbers(run_dir) == [*range(1, max_in_flight + 1), 9]


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("limit", [0, 1000])
def test_a_save_that_may_hold_no_bytes_returns_when_they_are_written(run_dir, gate, limit, n_ranks):
    """It reads them where they are, once all before it are written."""

    def body(comm):
        big = {"w": np.full(100_000, 1.0), "own": hc.PerRank(np.full(50_000, 1.0 + comm.rank))}
        with hc.Checkpointer(run_dir, comm=comm, max_in_flight=3, max_bytes_in_flight=limit) as ckpt:
            waited = []
            for step in (1, 2):
                comm.barrier()
                if comm.is_root:
                    gates.append(gate("2-write", arrivals=n_ranks))
                comm.barrier()
                gates[-1].open_later()
                ckpt.save(step, big)
                waited.append(gates[-1].opened.is_set())
                big["w"][:] = step + 1.0
            ckpt.wait()
            target = {"w": np.zeros(100_000), "own": hc.PerRank(np.zeros(50_000))}
            ckpt.restore(target)
            return (
                waited,
                set(target["w"].tolist()),
                set(target["own"].value.tolist()),
                ckpt._session.queue.arenas._free,
            )

    gates: list[Gate] = []
    results = run_ranks(n_ranks, body)
    assert results == [([True, True], {2.0}, {1.0 + rank}, []) for rank in range(n_ranks)]


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_save_waits_until_the_bytes_before_it_are_written(run_dir, gate, n_ranks):
    """There is room for one save at a time: the first is held, the second waits for it."""
    closed = gate("2-write", arrivals=n_ranks)

    def body(comm):
        state = {"w": np.full(100_000, 1.0)}
        with hc.Checkpointer(run_dir, comm=comm, max_in_flight=3, max_bytes_in_flight=1 << 20) as ckpt:
            ckpt.save(1, state)
            was_held = not closed.opened.is_set()
            state["w"][:] = 2.0
            comm.barrier()
            closed.open_later()
            ckpt.save(2, state)
            waited = closed.opened.is_set()
            state["w"][:] = 3.0
        return was_held, waited, [set(hc.load(run_dir / layout.step_dirname(step))["w"].tolist()) for step in (1, 2)]

    assert run_ranks(n_ranks, body) == [(True, True, [{1.0}, {2.0}])] * n_ranks


# -- failures ------------------------------------------------------------------------------------

EVERY_RANK = ["0-plan", "2-write", "2-written", "2-synced", "3-report"]
ROOT_ONLY = ["1-begin", "4-sealed", "4-check", "4-manifest", "4-durable", "5-published", "6-parent-synced"]
NEXT = {
    "save": lambda ckpt, comm: ckpt.save(3, state(comm, 3)),
    "wait": lambda ckpt, comm: ckpt.wait(),
    "restore": lambda ckpt, comm: ckpt.restore(state(comm, 0)),
    "close": lambda ckpt, comm: ckpt.close(),
}


def told(call: Callable[[], Any]) -> tuple[str, str] | None:
    """Call; return what was raised, in words, or nothing."""
    try:
        call()
    except errors.CollectiveError as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.counts(1, 3)
@pytest.mark.parametrize("at", NEXT)
@pytest.mark.parametrize(
    ("phase", "who"), [(p, w) for p in EVERY_RANK for w in ("last", "all")] + [(p, "first") for p in ROOT_ONLY]
)
def test_a_failure_that_nobody_asked_for_is_raised_once_and_training_goes_on(ranks, run_dir, caplog, phase, who, at):
    failing = {"first": {0}, "last": {ranks.size - 1}, "all": set(range(ranks.size))}[who]

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm)
        ckpt.save(1, state(comm, 1)).result()
        pending = ckpt.save(2, state(comm, 2))
        assert soon(pending.done)
        n_logged = len([r for r in caplog.records if r.name == "hpcckpt" and r.levelno >= logging.ERROR])
        first = told(lambda: NEXT[at](ckpt, comm))
        again = told(ckpt.close if at == "close" else ckpt.wait)
        if at == "close":
            ckpt = hc.Checkpointer(run_dir, comm=comm)  # its lock and its communicator are free again
        target = state(comm, 0)
        step = ckpt.restore(target).step
        assert plain(target) == wanted(comm, 1)
        ckpt.save(4, state(comm, 4)).result()
        ckpt.close()
        return first, again, step, told(pending.result) == first, n_logged

    with (
        caplog.at_level(logging.ERROR, "hpcckpt"),
        armed(*(Fault(phase, "raise", rank, 2, error=OSError(28, "full")) for rank in failing)),
    ):
        results = ranks(body)
    assert [r[:4] for r in results] == [results[0][:4]] * ranks.size
    (name, text), again, step, is_kept, n_logged = results[0]
    assert (name, again, step, is_kept, n_logged) == ("NoSpaceError", None, 1, True, 1)
    assert "save step 2" in text
    assert step_numbers(run_dir) == [1, 4]


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_closing_waits_for_all_saves_and_gives_everything_back_whatever_failed(run_dir, n_ranks):
    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm, max_in_flight=3)
        for step in (1, 2, 3):
            ckpt.save(step, state(comm, step))
        return told(ckpt.close)

    with armed(Fault("2-written", "raise", n_ranks - 1, 1, error=OSError(28, "full"))):
        results = run_ranks(n_ranks, body)
    assert results == [results[0]] * n_ranks
    assert results[0][0] == "NoSpaceError"
    names = listed(run_dir)
    assert names == [name for name in names if layout.parse_step(name) is not None]
    assert len(names) == 2


def test_the_failure_of_one_of_two_saves_under_way_does_not_touch_the_other(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm, max_in_flight=2, max_to_keep=None) as ckpt:
            ckpt.save(1, state(comm, 1)).result()
            failing, good = ckpt.save(2, state(comm, 2)), ckpt.save(3, state(comm, 3))
            return told(failing.result)[0], good.result().step, told(failing.result)[0], ckpt.all_steps()

    with armed(Fault("4-check", "raise", 0, 2, error=OSError(5, "broken"))):
        assert ranks(body) == [("StorageError", 3, "StorageError", [1, 3])] * ranks.size


@pytest.mark.counts(1, 2, 5)
@pytest.mark.parametrize("phase", ["2-write", "4-durable"])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_thread_that_is_ended_is_a_failure_on_all_ranks(ranks, run_dir, phase, error):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(comm, 1)).result()
            failure = told(ckpt.save(2, state(comm, 2)).result)
            ckpt.save(3, state(comm, 3)).result()
            return failure, ckpt.all_steps()

    with armed(Fault(phase, "raise", 0, 2, error=error)):
        results = ranks(body)
    assert results == [results[0]] * ranks.size
    assert type(error).__name__ in results[0][0][1]
    assert results[0][1] == [1, 3]


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("which", ["a part", "the conclusion"])
def test_a_thread_that_vanishes_is_a_failure_on_all_ranks(run_dir, monkeypatch, n_ranks, which):
    """hpcckpt ends no thread silently; if it happens, no call waits for it."""
    start = threading.Thread.start
    doomed = threading.local()

    def vanish(thread: threading.Thread) -> None:
        if getattr(doomed, "countdown", 0) and thread.name == "hpcckpt-task":
            doomed.countdown -= 1
            if doomed.countdown == 0:
                thread._target = lambda: None  # type: ignore[attr-defined]
        start(thread)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(comm, 1)).result()
            if (which == "a part" and last(comm)) or (which == "the conclusion" and comm.is_root):
                doomed.countdown = 1 if which == "a part" else 2
            failure = told(ckpt.save(2, state(comm, 2)).result)
            ckpt.save(3, state(comm, 3)).result()
            return failure, ckpt.all_steps()

    monkeypatch.setattr(threading.Thread, "start", vanish)
    results = run_ranks(n_ranks, body)
    assert results == [results[0]] * n_ranks
    assert "the thread of this task ended without an outcome" in results[0][0][1]
    assert results[0][1] == [1, 3]


def test_a_rank_that_waits_too_long_for_a_peer_says_for_whom_and_ends_the_job(run_dir, gate, caplog, monkeypatch):
    """Also while its own part is done and the peer's is not; `abort` of threads is an exception."""
    monkeypatch.setattr(shutdown, "_orphans", set())  # what the job leaves is not for this process to finish
    closed = gate("2-write", rank=2)

    def body(comm):
        ckpt = hc.Checkpointer(run_dir, comm=comm, peer_timeout_s=2.0)
        pending = ckpt.save(1, state(comm, 1))
        if comm.rank < 2:
            assert soon(lambda: pending._save.task.local.outcome is not None)
            ckpt.poll()  # it has reported: root misses rank 2 alone
        comm.barrier()
        if comm.rank < 2:
            pending.result()
        assert soon(lambda: comm._group.is_broken)  # rank 2 does not come until the others have given up
        closed.opened.set()

    with caplog.at_level(logging.CRITICAL, "hpcckpt"), pytest.raises(SystemExit) as caught:
        run_ranks(3, body)
    assert caught.value.code == 1
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
    assert any("[rank 0] save step 1: no word from rank 2 for " in text for text in said)
    assert all("the job is ended" in text for text in said)
    assert hc.latest_checkpoint(run_dir) is None
    del caught
    gc.collect()


# -- states that change --------------------------------------------------------------------------


def shape_of(comm: Any, turn: int) -> dict[str, Any]:
    """Return states of which each has other names, shapes, kinds, shards and objects than the one before."""
    full = np.arange(24.0).reshape(6, 4) + 100 * turn
    begin, end = comm.rank * 6 // comm.size, (comm.rank + 1) * 6 // comm.size
    rows = hc.Sharded(full[begin:end].copy(), (6, 4), (begin, 0))
    begin, end = comm.rank * 4 // comm.size, (comm.rank + 1) * 4 // comm.size
    columns = hc.Sharded(full[:, begin:end].copy(), (6, 4), (0, begin))
    return [
        {"w": np.full(1000, 1.0 + turn), "s": rows},
        {"w": np.full((20, 9), 1.0 + turn), "s": columns, "more": np.full(3, turn, np.int16), "epoch": turn},
        {"v": np.full(5, 1.0 + turn), "s": np.full(3, turn), "own": hc.PerRank(np.full(comm.rank + turn, turn))},
    ][turn % 3]


@pytest.mark.parametrize("order", [(0, 1, 2, 0), (0, 1, 0, 1), (0, 0, 1, 1, 3, 2), (0, 1, 1, 0)])
@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_a_state_that_changes_on_all_ranks_is_planned_anew(ranks, run_dir, max_in_flight, order):
    def body(comm):
        found = []
        with hc.Checkpointer(run_dir, comm=comm, max_to_keep=None, max_in_flight=max_in_flight) as ckpt:
            for step, turn in enumerate(order):
                held = shape_of(comm, turn)
                ckpt.save(step, held)
                scribble(held)
            for step, turn in enumerate(order):
                target = shape_of(comm, turn)
                expected = plain(target)
                scribble(target)
                ckpt.restore(target, step)
                found.append(plain(target) == expected)
        return found

    assert ranks(body) == [[True] * len(order)] * ranks.size
    manifests = [read_manifest(run_dir / layout.step_dirname(step)) for step in range(len(order))]
    assert [m.parent for m in manifests] == [None, *(m.save_id for m in manifests[:-1])]


OTHER = {
    "a name": {"v": np.zeros(10)},
    "a shape": {"w": np.zeros(11)},
    "a dtype": {"w": np.zeros(10, np.float32)},
    "a kind": {"w": hc.PerRank(np.zeros(10))},
    "an object": {"w": np.zeros(10), "epoch": 1},
}


@pytest.mark.parametrize("odd", ["first", "last"])
@pytest.mark.parametrize("what", OTHER)
def test_a_state_that_changes_on_one_rank_only_is_told_on_all(ranks, run_dir, what, odd):
    if ranks.size == 1:
        pytest.skip("one rank agrees with itself")
    rank = 0 if odd == "first" else ranks.size - 1

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"w": np.ones(10)})
            with pytest.raises(errors.TreeMismatchError) as caught:
                ckpt.save(2, OTHER[what] if comm.rank == rank else {"w": np.ones(10)}).result()
            ckpt.save(3, {"w": np.full(10, 3.0)}).result()
            ckpt.save(4, OTHER[what]).result()
            return str(caught.value), ckpt.all_steps()

    results = ranks(body)
    assert results == [(results[0][0], [1, 3, 4])] * ranks.size
    named = range(1, ranks.size) if rank == 0 else [rank]
    assert all(f"rank {number}" in results[0][0] for number in named)


@pytest.mark.counts(1, 2, 5)
def test_shards_that_change_on_one_rank_and_leave_a_hole_are_told_on_all(ranks, run_dir):
    def body(comm):
        def shard(n_missing):
            return {"s": hc.Sharded(np.ones(4 - n_missing), (4 * comm.size,), (4 * comm.rank,))}

        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, shard(0))
            failure = told(ckpt.save(2, shard(int(last(comm)))).result)
            ckpt.save(3, shard(0)).result()
            return failure[0], "other ranks did not" in failure[1], ckpt.all_steps()

    assert ranks(body) == [("ShardingError", ranks.size > 1, [1, 3])] * ranks.size


@pytest.mark.counts(1, 2, 5)
def test_shards_that_are_cut_anew_on_some_ranks_only_are_saved_the_second_time(ranks, run_dir):
    """The ranks whose shards stayed have written theirs by the old plan when that comes out."""
    if ranks.size < 3:
        pytest.skip("a boundary between two ranks concerns both")

    def body(comm):
        def shard(shift, value):
            cuts = [4 * rank for rank in range(comm.size + 1)]
            cuts[-2] += shift
            begin, end = cuts[comm.rank], cuts[comm.rank + 1]
            return {"s": hc.Sharded(np.arange(begin, end) + value, (4 * comm.size,), (begin,))}

        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, shard(0, 100))
            failure = told(ckpt.save(2, shard(1, 200)).result)
            ckpt.save(3, shard(1, 300)).result()
            ckpt.save(4, shard(1, 400)).result()
            return failure[0], "save again" in failure[1], ckpt.all_steps()

    assert ranks(body) == [("ShardingError", True, [1, 3, 4])] * ranks.size
    assert hc.load(run_dir)["s"].tolist() == [400 + n for n in range(4 * ranks.size)]


@pytest.mark.counts(1, 2, 5)
def test_ranks_that_ask_for_different_steps_later_on_are_told(ranks, run_dir):
    if ranks.size == 1:
        pytest.skip("one rank agrees with itself")

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(comm, 1))
            with pytest.raises(errors.TreeMismatchError, match="different steps") as caught:
                ckpt.save(3 if last(comm) else 2, state(comm, 2)).result()
            ckpt.save(4, state(comm, 4)).result()
            return str(caught.value), ckpt.all_steps()

    text = f"save step 2: commit: [rank 0] ranks save different steps: rank 0 step 2, rank {ranks.size - 1} step 3"
    found = ranks(body)
    assert found == [found[0]] * ranks.size
    assert (found[0][0].startswith(text), found[0][1]) == (True, [1, 4])


# -- what it costs -------------------------------------------------------------------------------


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
def test_later_saves_make_no_collective_call_and_send_two_messages_per_rank(run_dir, monkeypatch, n_ranks):
    """Also when values that each rank has for itself change their size; a new plan takes two messages more."""
    counts: Counter[str] = Counter()
    guard = threading.Lock()  # ranks are threads, and adding one is not one step

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(ThreadCommunicator, name)

        def count(self: ThreadCommunicator, *args: Any) -> Any:
            with guard:
                counts[name] += 1
            return call(self, *args)

        return count

    for name in ("bcast", "gather", "allgather", "allreduce", "barrier", "duplicate", "send"):
        monkeypatch.setattr(ThreadCommunicator, name, counted(name))
    seen: list[dict[str, int]] = []
    together = threading.Barrier(n_ranks, timeout=100.0)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(0, {"w": np.zeros(9), "own": hc.PerRank(np.zeros(3))})
            ckpt.wait()
            for step in (1, 2, 3):
                together.wait()
                if comm.is_root:
                    counts.clear()
                together.wait()  # not counted
                for _ in range(2 if step < 3 else 1):
                    w = np.zeros(9 if step < 3 else 8)
                    pending = ckpt.save(10 * step + _, {"w": w, "own": hc.PerRank(np.zeros(3 + step + comm.rank))})
                    assert pending.result().step == 10 * step + _
                    ckpt.poll()
                together.wait()
                if comm.is_root:
                    seen.append(dict(counts))
                together.wait()

    run_ranks(n_ranks, body, patience=Patience(status_s=600.0))
    messages = 2 * (n_ranks - 1)
    quiet = {"send": 2 * messages} if messages else {}
    assert seen == [quiet, quiet, quiet]


# -- values that are not finite ------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "complex64"])
def test_a_step_with_values_that_are_not_finite_displaces_no_good_one(ranks, run_dir, dtype, value):
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))

    def body(comm):
        def held(spoilt):
            array = np.ones(1000, kind)
            array[997] = value if spoilt and last(comm) else 1
            return {"fine": np.ones(5), "counts": np.ones(3, np.int64), "own": hc.PerRank(array)}

        with hc.Checkpointer(run_dir, comm=comm, nan_guard=True, max_to_keep=1) as ckpt:
            ckpt.save(1, held(spoilt=False)).result()
            with pytest.raises(errors.NonFiniteError, match="'own'") as caught:
                ckpt.save(2, held(spoilt=True)).result()
            steps = ckpt.all_steps()
            ckpt.save(3, held(spoilt=False)).result()
        assert "fine" not in str(caught.value)
        return str(caught.value), steps

    results = ranks(body)
    assert results == [(results[0][0], [1])] * ranks.size
    assert step_numbers(run_dir) == [3]


LIKE_NUMBERS = {
    "a float": lambda value: value,
    "a list": lambda value: [1.0, {"deep": (0, value)}],
    "a per-rank float": lambda value: hc.PerRank(value),
    "a per-rank dict": lambda value: hc.PerRank({"a": [value]}),
    "a long double": lambda value: np.array([1, value], np.longdouble),
    "a long complex number": lambda value: np.array([1, complex(0, value)], np.clongdouble),
}


@pytest.mark.parametrize("case", LIKE_NUMBERS)
def test_a_nan_in_any_value_of_the_state_is_guarded_against(ranks, run_dir, case):
    def body(comm):
        def held(value):
            return {"fine": np.ones(5), "odd": LIKE_NUMBERS[case](value)}

        with hc.Checkpointer(run_dir, comm=comm, nan_guard=True) as ckpt:
            ckpt.save(1, held(1.0)).result()
            with pytest.raises(errors.NonFiniteError, match="'odd'"):
                ckpt.save(2, held(float("nan"))).result()

    ranks(body)
    assert step_numbers(run_dir) == [1]


def test_an_infinite_bound_among_python_values_is_no_reason_to_refuse_a_step(ranks, run_dir):
    def body(comm):
        state = {"w": np.ones(1), "best": float("inf"), "own": hc.PerRank({"best": -float("inf")})}
        with hc.Checkpointer(run_dir, comm=comm, nan_guard=True) as ckpt:
            return ckpt.save(1, state).result().step

    assert ranks(body) == [1] * ranks.size


def test_values_that_are_not_finite_are_saved_when_nobody_guards(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.save(1, {"w": np.array([np.nan, np.inf])}).result().step

    assert ranks(body) == [1] * ranks.size


# -- memory ------------------------------------------------------------------------------------------


def test_a_closed_checkpointer_keeps_no_memory_of_snapshots(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.ones(1000)}).result()
        arena = ckpt._session.queue.arenas.take(1)
        kept = weakref.ref(arena)
        ckpt._session.queue.arenas.give_back(arena)
        del arena
        assert kept() is not None
    assert kept() is None


def test_no_room_for_a_snapshot_names_what_needs_less(run_dir, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.ones(10)}).result()
        monkeypatch.setattr("hpcckpt.native.arena.mmap.mmap", refuse)
        with pytest.raises(errors.HostMemoryError, match="async_save=False or with max_bytes_in_flight"):
            ckpt.save(2, {"w": np.ones(1000)}).result()
        monkeypatch.undo()
        assert ckpt.save(3, {"w": np.ones(1000)}).result().step == 3
