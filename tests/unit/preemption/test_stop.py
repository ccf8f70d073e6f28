"""A job that is asked to stop saves one step, the same on all ranks, and ends with code 75."""

from __future__ import annotations

import os
import random
import threading
import time

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import preemption
from hpcckpt.core import failpoints
from hpcckpt.errors import CodeError, CollectiveError, OptionError
from hpcckpt.format import layout
from hpcckpt.preemption import halt
from hpcckpt.preemption.agreement import Agreement, BoundaryRequest
from hpcckpt.preemption.walltime import TimeNeeded
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.rundir.journal import read_journal
from hpcckpt.testing.ranks import ThreadCommunicator, run_ranks

pytestmark = pytest.mark.stack_b
N_STEPS = 1_000
"""More than ranks make that give up waiting for each other some times, each time for longer."""
MANY_STEPS = 20_000
"""More than ranks make that go on while another one's thread waits for a core."""
LONG_S = 20.0
"""A patience that is long enough on a busy machine, where no rank has to continue."""


class Training:
    """One rank's training: each batch ends with a collective call, or the ranks drift apart."""

    def __init__(self, comm, run_dir, rng, **options):
        self.comm, self.rng = comm, rng
        self.batches = comm.duplicate()
        self.ckpt = hc.Checkpointer(run_dir, comm=comm, max_to_keep=None)
        chosen = {"signals": (), "verbose": 0, "patience_s": 0.1, "halt_every_s": 0, **options}
        self.guard = preemption.watch(self.ckpt, **chosen)
        self.w = np.zeros(1000)

    def batch(self, step, *, is_synchronous):
        time.sleep(self.rng.choice([0, 0, 0.001, 0.003]))
        if is_synchronous:
            self.batches.barrier()
        self.w[:] = step

    def validate(self, step, n_batches):
        for _ in range(n_batches):
            time.sleep(self.rng.choice([0, 0.001]))
            if self.guard.check(step).stop:
                return True
        return False

    def end(self, state=None):
        with pytest.raises(preemption.Preempted) as ended:
            self.guard.save_and_exit({"w": self.w} if state is None else state)
        assert ended.value.code == 75
        return ended.value.step


def check_saved(run_dir, step, *others):
    assert step_numbers(run_dir) == sorted([*others, step])
    loaded = hc.load(hc.latest_checkpoint(run_dir))
    assert set(loaded["w"].tolist()) == {float(step)}


# -- which step ------------------------------------------------------------------------------------


@pytest.mark.counts(1, 2, 5)
@pytest.mark.parametrize("is_synchronous", [True, False], ids=["in step", "apart"])
@pytest.mark.parametrize("seed", range(4))
def test_all_ranks_stop_at_one_step_soon_after_one_was_asked(ranks, run_dir, seed, is_synchronous):
    def body(comm):
        shared = random.Random(seed)
        asked = {(shared.randrange(comm.size), shared.randint(1, 40)) for _ in range(shared.randint(1, 3))}
        first = min(step for _, step in asked)
        patience_s = LONG_S if is_synchronous else 0.1
        training = Training(comm, run_dir, random.Random(f"{seed}/{comm.rank}"), patience_s=patience_s)
        n_steps = N_STEPS if is_synchronous else MANY_STEPS
        for step in range(1, n_steps + 1):
            training.batch(step, is_synchronous=is_synchronous)
            if (comm.rank, step) in asked:
                training.guard.ask_to_stop("asked")
            if training.guard.should_stop(step):
                return first, training.end()
        raise AssertionError("nobody stopped")

    results = ranks(body)
    first, stopped = results[0]
    assert len(set(results)) == 1
    assert stopped == first if ranks.size == 1 else stopped > first
    assert not is_synchronous or stopped <= first + 1, "one step after the one in which it was asked"
    check_saved(run_dir, stopped)


@pytest.mark.counts(3)
@pytest.mark.parametrize("seed", range(5))
def test_a_stop_comes_within_a_validation(ranks, run_dir, seed):
    """Every rank validates by itself, some longer than others; a batch of training needs all of them."""

    def body(comm):
        rng = random.Random(f"{seed}/{comm.rank}")
        training = Training(comm, run_dir, rng)
        who, when = random.Random(seed).randrange(comm.size), random.Random(seed).randint(0, 3)
        for step in range(1, N_STEPS + 1):
            training.batch(step, is_synchronous=True)
            if training.guard.should_stop(step):
                return training.end()
            if step % 5 == 0:
                if (comm.rank, step) == (who, 10):
                    training.validate(step, when)
                    training.guard.ask_to_stop("asked")
                if training.validate(step, rng.randint(2, 12)):
                    return training.end()
        raise AssertionError("nobody stopped")

    stopped = ranks(body)
    assert len(set(stopped)) == 1
    assert 10 <= stopped[0] < N_STEPS, "at once, or some batches later on a machine that is busy"
    check_saved(run_dir, stopped[0])


@pytest.mark.counts(1, 2, 3)
def test_a_stop_that_was_asked_for_before_the_first_step_comes_with_it(ranks, run_dir):
    def body(comm):
        training = Training(comm, run_dir, random.Random(comm.rank), patience_s=LONG_S)
        if comm.rank == comm.size - 1:
            training.guard.ask_to_stop("in warm-up")
        for step in range(1, N_STEPS + 1):
            training.batch(step, is_synchronous=True)
            if training.guard.should_stop(step):
                return training.end()
        raise AssertionError("nobody stopped")

    stopped = ranks(body)
    assert len(set(stopped)) == 1
    assert stopped[0] <= 2


@pytest.mark.counts(2, 3)
def test_a_step_that_is_being_saved_anyway_is_saved_once(ranks, run_dir):
    def body(comm):
        training = Training(comm, run_dir, random.Random(comm.rank))
        for step in range(1, N_STEPS + 1):
            training.batch(step, is_synchronous=True)
            if step == 7 and comm.rank == comm.size - 1:
                training.guard.ask_to_stop("asked")
            training.ckpt.save(step, {"w": training.w})
            if training.guard.should_stop(step):
                return training.end()
        raise AssertionError("nobody stopped")

    stopped = ranks(body)
    assert len(set(stopped)) == 1
    check_saved(run_dir, stopped[0], *range(1, stopped[0]))


@pytest.mark.counts(1, 3)
def test_the_last_save_is_made_though_the_one_before_failed(ranks, run_dir, faults):
    def fail():
        raise OSError(28, "No space left on device")

    def body(comm):
        training = Training(comm, run_dir, random.Random(comm.rank))
        training.batch(1, is_synchronous=True)
        training.ckpt.save(1, {"w": training.w})
        training.guard.ask_to_stop("asked")
        step = 1
        while not training.guard.should_stop(step):
            step += 1
            training.batch(step, is_synchronous=True)
        return training.end()

    with faults.calling("4-check", fail):
        stopped = ranks(body)
    assert len(set(stopped)) == 1
    steps = ranks.sub(1, lambda comm: step_numbers(run_dir))
    assert steps == [[stopped[0]]]


@pytest.mark.counts(2)
def test_a_last_save_that_fails_is_an_error_and_not_a_reason_to_requeue(ranks, run_dir, faults):
    def fail():
        raise OSError(28, "No space left on device")

    def body(comm):
        training = Training(comm, run_dir, random.Random(comm.rank))
        training.guard.ask_to_stop("asked")
        step = 1
        while not training.guard.should_stop(step):
            step += 1
        with pytest.raises(hc.errors.NoSpaceError):
            training.guard.save_and_exit({"w": training.w})

    with faults.calling("4-check", fail):
        ranks(body)


# -- ranks that go their own way -------------------------------------------------------------------


@pytest.mark.counts(2, 3, 5)
@pytest.mark.parametrize("seed", range(3))
def test_ranks_without_further_batches_take_part(ranks, run_dir, seed):
    """The ranks have different numbers of batches, and the one with most is asked to stop."""

    def body(comm):
        training = Training(comm, run_dir, random.Random(f"{seed}/{comm.rank}"), patience_s=LONG_S)
        for step in range(1, 11 + 10 * comm.rank):
            training.batch(step, is_synchronous=False)
            if step == 3 + 10 * comm.rank and comm.rank == comm.size - 1:
                training.guard.ask_to_stop("asked")
            if training.guard.should_stop(step):
                return training.end({"w": hc.PerRank(training.w)})
        advice = training.guard.finished()
        assert advice.stop
        return training.end({"w": hc.PerRank(training.w)})

    stopped = ranks(body)
    assert len(set(stopped)) == 1
    assert ranks.sub(1, lambda comm: step_numbers(run_dir)) == [[stopped[0]]]


@pytest.mark.counts(1, 2, 3)
def test_a_training_that_ends_first_is_not_stopped(ranks, run_dir):
    """Asked in the last batch, or when a rank has left already: it ends as if nothing had been asked."""

    def body(comm):
        training = Training(comm, run_dir, random.Random(comm.rank))
        for step in range(1, 6):
            training.batch(step, is_synchronous=True)
            if step == 5 and comm.rank == comm.size - 1 and comm.size > 1:
                training.guard.ask_to_stop("asked")
            assert not training.guard.should_stop(step)
        training.guard.close()
        training.guard.close()
        training.ckpt.close()
        return "ended"

    assert set(ranks(body)) == {"ended"}


@pytest.mark.counts(2, 3)
def test_a_rank_that_has_left_ends_the_wish_to_stop_and_nobody_hangs(ranks, run_dir):
    if ranks.size == 1:
        pytest.skip("needs 2 ranks")

    def body(comm):
        training = Training(comm, run_dir, random.Random(comm.rank))
        for step in range(1, 6 if comm.rank == 1 else 20):
            training.batch(step, is_synchronous=False)
            if step == 10 and comm.rank == 0:
                training.guard.ask_to_stop("asked")
            assert not training.guard.should_stop(step)
        training.guard.close()
        training.ckpt.close()
        return "ended"

    assert set(ranks(body)) == {"ended"}


@pytest.mark.counts(2, 3)
def test_ranks_without_a_common_boundary_stop_all_the_same(ranks):
    def body(comm):
        agreement = Agreement(comm.duplicate(), 0.05)
        for step in range(comm.rank % 2, MANY_STEPS, 2):
            agreed = agreement.boundary(step, BoundaryRequest("stop", "asked") if step > 10 else None, lambda: None)
            if agreed is not None:
                agreement.release()
                return agreed
        raise AssertionError("nobody stopped")

    agreed = ranks(body)
    assert len(set(agreed)) == 1


class SlowMail(ThreadCommunicator):
    """A rank to which messages come late: a look in `n_looks` finds something."""

    n_looks = 1

    def receive(self):
        self.looks = getattr(self, "looks", 0) + 1
        return super().receive() if self.looks % self.n_looks == 0 else None


@pytest.mark.parametrize("n_looks", [3, 7, 20])
@pytest.mark.parametrize("slow", [0, 1, 2], ids=["root is slow", "the caller is slow", "another is slow"])
def test_late_messages_cost_time_and_nothing_else(slow, n_looks):
    """In a training in which each batch needs all ranks, a rank that waits too early blocks those that do not know."""

    def body(comm):
        batches = comm.duplicate()
        own = comm.duplicate()
        if comm.rank == slow:
            own.__class__, own.n_looks = SlowMail, n_looks
        agreement = Agreement(own, 0.05)
        for step in range(1, MANY_STEPS):
            batches.barrier()
            wish = BoundaryRequest("stop", "asked") if comm.rank == 1 and step >= 5 else None
            agreed = agreement.boundary(step, wish, lambda: None)
            if agreed is not None:
                agreement.release()
                return agreed.step
        raise AssertionError("nobody stopped")

    stopped = run_ranks(3, body)
    assert len(set(stopped)) == 1


def test_nothing_is_said_while_nobody_wants_anything(run_dir):
    def body(comm):
        agreement = Agreement(comm.duplicate())
        for step in range(50):
            assert agreement.boundary(step, None, lambda: None) is None
        comm.barrier()
        return agreement.comm._group.n_messages

    assert run_ranks(3, body) == [0, 0, 0]


def test_a_rank_whose_root_is_silent_says_so_and_ends_the_job(caplog):
    def body(comm):
        agreement = Agreement(comm.duplicate(), 0.02, peer_timeout_s=0.3)
        if comm.rank == 0:
            agreement._open_round(agreement._at.next())
            time.sleep(1.0)
            return
        for step in range(100):
            time.sleep(0.01)
            agreement.boundary(step, None, lambda: None)

    with pytest.raises(SystemExit):
        run_ranks(2, body)
    assert "without an answer from rank 0" in caplog.text


# -- when to stop ----------------------------------------------------------------------------------


def steps_until_stop(training, n_steps=2000, pause_s=0.005):
    for step in range(1, n_steps):
        time.sleep(pause_s)
        training.batch(step, is_synchronous=True)
        if training.guard.should_stop(step):
            return training.end()
    raise AssertionError("nobody stopped")


@pytest.mark.parametrize("set_by_s", [-7200.0, 0.0, 45.0])
def test_a_clock_that_is_set_during_the_job_does_not_delay_its_stop(run_dir, monkeypatch, set_by_s):
    now, end = time.time, time.time() + 60.0
    with hc.Checkpointer(run_dir) as ckpt:
        guard = preemption.watch(ckpt, signals=(), verbose=0, halt_every_s=0, job_end=end, reserve=30.0)
        monkeypatch.setattr(time, "time", lambda: now() + set_by_s)
        assert guard.time_left() <= 60.0
        assert guard.should_stop(1) == (set_by_s > 30.0)


@pytest.mark.counts(1, 3)
def test_the_job_stops_before_its_walltime_is_over(ranks, run_dir):
    def body(comm):
        end = comm.bcast(time.time() + 60.0)
        training = Training(comm, run_dir, random.Random(0), job_end=end, reserve=59.7)
        assert 0 < training.guard.time_left() <= 60.0
        stopped = steps_until_stop(training)
        return stopped, end - time.time()

    results = ranks(body)
    assert len({step for step, _ in results}) == 1
    assert all(0 < left < 59.7 for _, left in results)


def test_with_scratch_the_reserve_is_learned_from_the_way_to_the_run_directory(tmp_path, request):
    """Where the last step has to come before the job ends; that it is on scratch says nothing of that."""
    held, committed, drained = threading.Event(), [], []
    failpoints.install_hook(lambda phase, _rank: held.wait(60) if phase == "drain-begun" else None)
    request.addfinalizer(lambda: failpoints.install_hook(None))
    with hc.Checkpointer(tmp_path / "run", scratch=tmp_path / "scratch") as ckpt:
        ckpt.on_saved(committed.append)
        ckpt.on_drained(drained.append)
        with preemption.watch(ckpt, signals=(), walltime="24h", verbose=0) as guard:
            unmeasured = guard._timing.reserve_s
            ckpt.save(1, {"w": np.ones(1000)}).result()
            assert ([s.step for s in committed], drained) == ([1], [])
            assert guard._timing.reserve_s == unmeasured
            held.set()
            ckpt.wait(durable=True)
            assert drained[0].seconds > committed[0].seconds
            assert guard._timing.reserve_s == TimeNeeded.FACTOR * drained[0].seconds + TimeNeeded.EXIT_S


@pytest.mark.counts(1, 3)
@pytest.mark.parametrize("text", ["", "now\n", "# by someone\nafter-step 20\n", "at 2020-01-01T00:00:00Z"])
def test_a_halt_file_stops_the_job_and_is_taken_away(ranks, run_dir, text):
    def body(comm):
        training = Training(comm, run_dir, random.Random(0), halt_every_s=0.02, patience_s=LONG_S)
        if comm.rank == 0:
            run_dir.mkdir(exist_ok=True)
            (run_dir / "HALT").write_text(text, encoding="utf-8")
        return steps_until_stop(training)

    stopped = ranks(body)
    assert len(set(stopped)) == 1
    if "after-step" in text:
        assert stopped[0] == (20 if ranks.size == 1 else 21)
    assert not ranks.sub(1, lambda comm: (run_dir / "HALT").exists())[0]
    assert ranks.sub(1, lambda comm: (run_dir / layout.HALTED).read_text(encoding="utf-8"))[0] == text


@pytest.mark.counts(1, 3)
def test_a_halt_file_in_another_directory_that_is_watched_stops_the_job_too(ranks, run_dir):
    above = run_dir.parent

    def body(comm):
        options = {"halt_every_s": 0.02, "halt_directories": [above], "patience_s": LONG_S}
        training = Training(comm, run_dir, random.Random(0), **options)
        if comm.rank == 0:
            (above / "HALT").write_text("now\n", encoding="utf-8")
        return steps_until_stop(training)

    assert len(set(ranks(body))) == 1
    assert ranks.sub(1, lambda comm: [(above / name).exists() for name in ("HALT", layout.HALTED)])[0] == [False, True]


def test_one_path_in_place_of_a_list_of_halt_directories_is_refused(run_dir):
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(OptionError, match=r"halt_directories: .* a list of"):
        preemption.watch(ckpt, halt_directories=str(run_dir))


@pytest.mark.parametrize(("text", "age_s"), [("now", 0), ("# by hand\n", 0), ("", 60)], ids=["now", "remark", "old"])
def test_a_halt_file_that_was_there_before_and_is_whole_is_obeyed_at_once(run_dir, text, age_s):
    def body(comm):
        run_dir.mkdir()
        (run_dir / "HALT").write_text(text, encoding="utf-8")
        os.utime(run_dir / "HALT", (time.time() - age_s,) * 2)
        training = Training(comm, run_dir, random.Random(0), halt_every_s=3600.0)
        assert training.guard.should_stop(1)
        training.end()

    run_ranks(1, body)


def test_an_empty_halt_file_that_was_there_before_is_obeyed_after_a_second(run_dir, monkeypatch):
    monkeypatch.setattr(halt, "AGAIN_S", 0.05)

    def body(comm):
        run_dir.mkdir()
        (run_dir / "HALT").touch()
        training = Training(comm, run_dir, random.Random(0), halt_every_s=3600.0)
        time.sleep(0.1)
        assert training.guard.should_stop(1)
        training.end()

    run_ranks(1, body)


@pytest.mark.counts(1, 3)
@pytest.mark.parametrize(("text", "is_due"), [("now\n", True), ("after-step 1000000\n", False)])
def test_a_halt_file_during_a_stop_for_another_reason_is_obeyed_or_left(ranks, run_dir, text, is_due):
    def body(comm):
        training = Training(comm, run_dir, random.Random(0), halt_every_s=3600.0, patience_s=LONG_S)
        assert not training.guard.should_stop(0)  # it has looked
        if comm.rank == 0:
            run_dir.mkdir(exist_ok=True)
            (run_dir / "HALT").write_text(text, encoding="utf-8")
        training.guard.ask_to_stop("SIGUSR1 on rank 0")
        steps_until_stop(training)

    ranks(body)

    def found(comm):
        events = [entry["event"] for entry in read_journal(run_dir) if entry["event"] in {"halted", "preempted"}]
        return events, (run_dir / "HALT").exists(), (run_dir / layout.HALTED).exists()

    assert ranks.sub(1, found)[0] == (["halted" if is_due else "preempted"], not is_due, is_due)


def test_a_halt_file_that_is_not_understood_is_named_once_and_stops_nothing(run_dir, capsys):
    def body(comm):
        run_dir.mkdir()
        (run_dir / "HALT").write_text("tomorrow\n", encoding="utf-8")
        training = Training(comm, run_dir, random.Random(0), halt_every_s=0.01, verbose=1)
        for step in range(1, 20):
            time.sleep(0.003)
            assert not training.guard.should_stop(step)

    run_ranks(1, body)
    assert (
        capsys.readouterr().err.count("'tomorrow' is not understood: expected an empty file, 'after-step N', or 'at")
        == 1
    )


@pytest.mark.counts(1, 2)
def test_saves_are_advised_so_often_alike_on_all_ranks(ranks, run_dir):
    def body(comm):
        training = Training(comm, run_dir, random.Random(comm.rank), every_n_minutes=0.05 / 60)
        saved = []
        for step in range(1, 5001):
            time.sleep(0.002)
            training.batch(step, is_synchronous=False)
            if training.guard.should_save(step):
                training.ckpt.save(step, {"w": training.w})
                saved.append(step)
            if len(saved) == 3:
                break
        while not (advice := training.guard.finished()).is_end:
            training.ckpt.save(advice.step, {"w": training.w})
            saved.append(advice.step)
        training.guard.close()
        training.ckpt.close()
        return saved

    saved = ranks(body)
    assert all(steps == saved[0] for steps in saved)
    assert len(saved[0]) >= 2
    assert ranks.sub(1, lambda comm: step_numbers(run_dir)) == [saved[0]]


# -- how it is used --------------------------------------------------------------------------------


@pytest.mark.counts(1, 2)
def test_wrong_options_are_named_alike_on_all_ranks(ranks, run_dir):
    wrong = {
        "signals": [{"signals": ("SIGNOT",)}, {"signals": ("SIGKILL",)}],
        "duration": [{"walltime": "soon"}, {"mtbf": -1}, {"reserve": "90"}],
        "moment": [{"job_end": "tomorrow"}],
        "one of them": [{"job_end": 2e9, "walltime": 5}],
        "max_overhead": [{"max_overhead": 1.5}],
        "every_n_minutes": [{"every_n_minutes": "often"}, {"every_n_minutes": 0}],
    }

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            for word, options in wrong.items():
                for option in options:
                    with pytest.raises(OptionError, match=word):
                        preemption.watch(ckpt, **{"signals": (), **option})

    ranks(body)


def test_the_guard_refuses_what_makes_no_sense(run_dir):
    def body(comm):
        training = Training(comm, run_dir, random.Random(0))
        training.guard.check(5)
        with pytest.raises(CodeError, match="count steps over all epochs"):
            training.guard.check(4)
        training.guard.go_back(3)
        training.guard.check(4)
        with pytest.raises(CodeError, match="no stop was agreed"):
            training.guard.exit()
        training.guard.close()
        with pytest.raises(CodeError, match="closed"):
            training.guard.check(6)

    run_ranks(1, body)


def test_signals_outside_of_the_main_thread_are_refused(run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(CollectiveError, match="main thread"):
            preemption.watch(ckpt, verbose=0)

    run_ranks(2, body)
