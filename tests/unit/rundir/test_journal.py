"""The journal of a run: what is told, when nothing may be written, and that nothing depends on it."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import threading
import time

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.core import files
from hpcckpt.errors import HpcckptError, LockedError, StateError, StepExistsError, StorageError, TreeMismatchError
from hpcckpt.format import layout
from hpcckpt.preemption import Preempted, watch
from hpcckpt.rundir import discovery, journal
from hpcckpt.rundir.journal import Journal, epoch_of, read_journal
from hpcckpt.rundir.lock import RunLock
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tiers import scratch_tier
from hpcckpt.tools.report.read_history import read_run_history
from hpcckpt.tools.report.watch_view import frame_of

pytestmark = pytest.mark.one_case


@pytest.fixture(autouse=True)
def is_on(monkeypatch):
    monkeypatch.delenv(journal.SWITCH, raising=False)


def events(run, *names):
    return [entry for entry in read_journal(run) if not names or entry["event"] in names]


def names_of(run):
    return [entry["event"] for entry in read_journal(run)]


def save(run, *steps, comm=None, **options):
    with hc.Checkpointer(run, comm=comm, **{"max_to_keep": None, **options}) as ckpt:
        for step in steps:
            ckpt.save(step, {"w": np.zeros(1000), "epoch": step // 10}, metrics={"loss": 1.0 / step})


def restore_and_save(run, step):
    with hc.Checkpointer(run) as ckpt:
        ckpt.restore({"w": np.zeros(1000), "epoch": 0})
        ckpt.save(step, {"w": np.zeros(1000)})


def save_and_stop(run, state, reason):
    with hc.Checkpointer(run) as ckpt:
        guard = watch(ckpt, signals=(), verbose=0)
        step = (ckpt.latest_step() or 0) + 1
        if step > 1:
            ckpt.restore(state)
        ckpt.save(step, state).result()
        guard.ask_to_stop(reason)
        while not guard.should_stop(step + 1):
            pass
        guard.save_and_exit(state)


def write_lines(run, *lines):
    run.mkdir(exist_ok=True)
    (run / journal.NAME).write_text("".join(lines), encoding="utf-8")


# -- what is told ----------------------------------------------------------------------------------


def test_a_job_tells_of_its_begin_its_steps_and_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    run_ranks(2, lambda comm: save(tmp_path, 10, 20, comm=comm))
    start, first, second, end = read_journal(tmp_path)
    assert {name: start[name] for name in ("event", "job", "scheduler", "restart", "n_ranks", "backend")} == {
        "event": "start", "job": "4711", "scheduler": "slurm", "restart": 2, "n_ranks": 2, "backend": "rankfile",
    }  # fmt: skip
    assert [(e["step"], e["epoch"], e["bytes"], e["files"]) for e in (first, second)] == [
        (10, 1, 8000, 2),
        (20, 2, 8000, 2),
    ]
    assert first["metrics"] == {"loss": 0.1}
    assert first["save_id"] == discovery.inspect_step(tmp_path, 10).manifest.save_id
    assert 0 < first["stall_seconds"] <= first["seconds"]
    assert first["bytes_per_second"] == pytest.approx(8000 / first["seconds"], rel=1e-6)
    assert end["event"] == "end"
    assert start["time"] <= first["time"] <= second["time"] <= end["time"]


def test_a_restart_tells_what_it_restored_and_retention_what_it_took(tmp_path):
    save(tmp_path, 1, 2)
    with hc.Checkpointer(tmp_path, max_to_keep=1) as ckpt:
        ckpt.restore({"w": np.zeros(1000), "epoch": 0})
        ckpt.save(3, {"w": np.zeros(1000), "epoch": 0})
    assert names_of(tmp_path) == ["start", "saved", "saved", "end", "start", "restored", "removed", "saved", "end"]
    (restored,), (removed,) = events(tmp_path, "restored"), events(tmp_path, "removed")
    assert (restored["step"], restored["ranks_before"], restored["n_ranks"]) == (2, 1, 1)
    assert restored["from"] == str(tmp_path / layout.step_dirname(2))
    assert removed["steps"] == [1, 2]


def test_a_save_that_fails_in_the_background_is_told_with_its_kind(tmp_path):
    with hc.Checkpointer(tmp_path) as ckpt:
        ckpt.save(1, {"w": np.zeros(3)})
        with pytest.raises(StepExistsError):
            ckpt.save(1, {"w": np.zeros(3)}).result()
    (failed,) = events(tmp_path, "failed")
    assert (failed["step"], failed["kind"], failed["ranks"]) == (1, "step-exists", [0])
    assert "overwrite=True" in failed["message"]


def test_the_first_save_of_a_restart_that_fails_is_told_too(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(StepExistsError):
        restore_and_save(tmp_path, 1)
    assert names_of(tmp_path)[-3:] == ["restored", "failed", "end"]
    assert events(tmp_path, "end")[-1]["error"] == "StepExistsError"


def test_a_stop_is_told_with_its_reason_and_what_saves_cost(tmp_path):
    state = {"w": np.zeros(3)}
    for reason, event in (("SIGUSR1 on rank 0", "preempted"), ("HALT after-step 3", "halted")):
        with pytest.raises(Preempted):
            save_and_stop(tmp_path, state, reason)
        assert names_of(tmp_path)[-2:] == [event, "end"]
        assert events(tmp_path, event)[0]["reason"] == reason
    costs = {entry["step"]: entry["seconds"] for entry in events(tmp_path, "cost")}
    stalls = {entry["step"]: entry["stall_seconds"] for entry in events(tmp_path, "saved")}
    assert costs == pytest.approx(stalls), "there were no batches that a save could slow"


def test_the_epoch_is_the_first_object_of_that_name():
    assert epoch_of({"user": {"a": 1}, "state": {"train/epoch": 7}}) == 7
    assert epoch_of({"epoch": True, "a": {"epoch": 3}}) == 3
    assert epoch_of({"a": {"b": {"c": {"d": {"epoch": 3}}}}}) is None


def test_with_scratch_it_stands_in_the_run_directory(tmp_path):
    save(tmp_path / "run", 1, 2, scratch=tmp_path / "scratch")
    assert [entry["step"] for entry in events(tmp_path / "run", "saved")] == [1, 2]
    assert [entry["step"] for entry in events(tmp_path / "run", "drained")] == [1, 2]
    assert names_of(tmp_path / "run")[-1] == "end"
    assert not list((tmp_path / "scratch").rglob(journal.NAME))


# -- when nothing may be written -------------------------------------------------------------------


def test_a_job_whose_first_save_failed_leaves_a_journal(tmp_path):
    with hc.Checkpointer(tmp_path / "run", nan_guard=True) as ckpt, pytest.raises(FloatingPointError):
        ckpt.save(1, {"w": np.array([np.nan])}).result()
    assert names_of(tmp_path / "run") == ["start", "failed", "end"]


class Broken:
    """Something whose state cannot be read."""

    @property
    def state_dict(self):
        raise RuntimeError("no state today")

    def load_state_dict(self, state):
        raise AssertionError


FIRST_SAVES = {
    "a value that cannot be saved": (1, {"x": object()}, {}, "read state", "builtins.object cannot be saved"),
    "a property that raises": (1, {"x": Broken()}, {}, "read state", "no state today"),
    "no number as its step": ("5", {"x": 1}, {}, "read state", "'5' is not a whole number"),
    "metrics that are no numbers": (
        1,
        {"x": 1},
        {"metrics": {"loss": "low"}},
        "read state",
        "['loss'] are not numbers",
    ),
    "a shard that lacks elements": (1, {"x": hc.Sharded(np.zeros(2), (4,), (0,))}, {}, "begin", "do not tile"),
    "another level": (1, {"x": 1}, {"level": "all"}, "read state", "'all' is not one of"),
}


@pytest.mark.parametrize("case", FIRST_SAVES)
@pytest.mark.parametrize("tier", ["", "scratch"])
def test_a_first_save_that_fails_before_it_begins_leaves_a_journal(tmp_path, case, tier):
    step, state, options, phase, message = FIRST_SAVES[case]
    scratch = {"scratch": tmp_path / "scratch"} if tier else {}
    with hc.Checkpointer(tmp_path / "run", **scratch) as ckpt:
        with pytest.raises(HpcckptError, match=re.escape(message)):
            ckpt.save(step, state, **options)
        entries = journal.read_journal(tmp_path / "run")
        assert [entry["event"] for entry in entries] == ["start", "failed"]
        assert (entries[1].get("step"), entries[1]["phase"]) == (step if step == 1 else None, phase)
        assert message in entries[1]["message"]
        ckpt.save(2, {"x": 1}).result()
    assert names_of(tmp_path / "run")[:3] == ["start", "failed", "saved"]


def test_a_first_save_that_scratch_refuses_leaves_a_journal(tmp_path, monkeypatch):
    def refuse(path, files):
        raise StorageError(f"{path} cannot be made")

    monkeypatch.setattr(scratch_tier, "make_scratch", refuse)
    with hc.Checkpointer(tmp_path / "run", scratch=tmp_path / "scratch") as ckpt, pytest.raises(StorageError):
        ckpt.save(1, {"x": 1})
    assert names_of(tmp_path / "run") == ["start", "failed", "end"]


def test_ranks_whose_first_states_differ_leave_a_journal(tmp_path):
    def body(comm):
        with hc.Checkpointer(tmp_path / "run", comm=comm) as ckpt, pytest.raises(TreeMismatchError):
            ckpt.save(1, {f"x{comm.rank}": 1})

    run_ranks(2, body)
    assert names_of(tmp_path / "run") == ["start", "failed", "end"]


def test_a_first_save_into_the_directory_of_a_running_job_leaves_its_journal_alone(tmp_path, monkeypatch):
    save(tmp_path, 1)
    before = (tmp_path / journal.NAME).read_bytes()

    def take(*_, **_options):
        raise LockedError("job 7 holds it")

    monkeypatch.setattr(RunLock, "take", take)
    with hc.Checkpointer(tmp_path) as ckpt, pytest.raises(StateError):
        ckpt.save(2, {"x": object()})
    assert (tmp_path / journal.NAME).read_bytes() == before


def test_what_failed_before_the_first_step_is_told_with_it(tmp_path):
    with hc.Checkpointer(tmp_path, nan_guard=True) as ckpt:
        with pytest.raises(FloatingPointError):
            ckpt.save(1, {"w": np.array([np.nan])}).result()
        ckpt.save(2, {"w": np.array([1.0])})
    assert names_of(tmp_path) == ["start", "failed", "saved", "end"]


def test_journals_of_one_process_lose_no_line_while_one_is_shortened(tmp_path, monkeypatch):
    rename = files.rename
    with hc.Checkpointer(tmp_path) as one, hc.Checkpointer(tmp_path) as two:
        one.save(1, {"x": 1}).result()
        two.save(2, {"x": 1}).result()
        other = threading.Thread(target=lambda: two.journal.removed([7]))

        def rename_late(*paths):
            if not other.is_alive():
                other.start()
                other.join(0.5)  # it waits, or its line would be in the file that is replaced
            rename(*paths)

        monkeypatch.setattr(journal, "MAX_NBYTES", 100)
        monkeypatch.setattr(files, "rename", rename_late)
        one.journal.removed([5])
        monkeypatch.undo()
        other.join()
    assert {"removed": [7]}.items() <= {each["event"]: each.get("steps") for each in read_journal(tmp_path)}.items()


def test_who_only_reads_leaves_no_trace(tmp_path):
    save(tmp_path, 1)
    before = (tmp_path / journal.NAME).read_bytes()
    with hc.Checkpointer(tmp_path) as ckpt:
        ckpt.restore({"w": np.zeros(1000), "epoch": 0})
    assert (tmp_path / journal.NAME).read_bytes() == before


def test_the_variable_turns_it_off(tmp_path, monkeypatch):
    monkeypatch.setenv(journal.SWITCH, "off")
    save(tmp_path, 1)
    assert os.listdir(tmp_path) == [layout.step_dirname(1)]


def test_a_journal_that_cannot_be_written_is_a_warning_once_and_fails_no_save(tmp_path, caplog):
    (tmp_path / journal.NAME).mkdir()
    with caplog.at_level(logging.WARNING, "hpcckpt"):
        save(tmp_path, 1, 2, 3)
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        f"hpcckpt: the journal {tmp_path / journal.NAME} cannot be written"
    ]
    assert discovery.latest_step(tmp_path) == 3


def test_a_journal_that_cannot_be_looked_at_fails_no_restore(tmp_path, monkeypatch):
    look = os.stat

    def refuse(path, *args, **kwargs):
        if str(path).endswith(journal.NAME):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path, *args, **kwargs)

    with hc.Checkpointer(tmp_path) as ckpt:
        ckpt.save(1, {"w": np.zeros(1000)}).result()
        monkeypatch.setattr(os, "stat", refuse)
        assert ckpt.restore({"w": np.zeros(1000)}).step == 1


def test_a_link_in_its_place_is_not_followed(tmp_path, caplog):
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    run = tmp_path / "run"
    run.mkdir()
    (run / journal.NAME).symlink_to(victim)
    save(run, 1)
    assert victim.read_text(encoding="utf-8") == "precious"
    assert "cannot be written" in caplog.text


def test_losing_it_costs_nothing(tmp_path):
    save(tmp_path, 1)
    (tmp_path / journal.NAME).unlink()
    save(tmp_path, 2)
    assert names_of(tmp_path) == ["start", "saved", "end"]
    assert discovery.step_numbers(tmp_path) == [1, 2]


# -- the file --------------------------------------------------------------------------------------


def test_lines_that_are_cut_or_foreign_are_passed_over_and_none_is_glued_to_them(tmp_path):
    write_lines(
        tmp_path, '{"event": "saved", "step": 1}\n', "[1]\n", "\xff\x00\n", "[" * 100_000 + "\n", '{"event": "sav'
    )
    save(tmp_path, 7)
    assert [entry.get("step") for entry in events(tmp_path, "saved")] == [1, 7]
    assert names_of(tmp_path) == ["saved", "start", "saved", "end"]


def test_beyond_its_bound_the_older_half_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "MAX_NBYTES", 4000)
    log = Journal(tmp_path)
    log.begin(n_ranks=1, backend="rankfile")
    (tmp_path / journal.NAME).touch()
    for step in range(300):
        log.cost(step, 1.0)
        log.removed([step])
        assert (tmp_path / journal.NAME).stat().st_size <= 4000
    kept = [entry["steps"][0] for entry in events(tmp_path, "removed")]
    assert kept == list(range(kept[0], 300))
    assert len(kept) > 10
    assert os.listdir(tmp_path) == [journal.NAME]


def test_what_is_known_of_the_last_job_does_not_go_with_the_older_half(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "MAX_NBYTES", 4000)
    save(tmp_path, 1)
    with hc.Checkpointer(tmp_path) as ckpt, watch(ckpt, signals=(), verbose=0):
        ckpt.restore({"w": np.zeros(1000), "epoch": 0})
        ckpt.save(2, {"w": np.zeros(1000)}).result()
        for step in range(300):
            ckpt.journal.removed([step])
        assert names_of(tmp_path)[:4] == ["start", "listening", "restored", "removed"]
        assert watched(tmp_path) == "running"
    assert watched(tmp_path) == "ended"


def watched(run):
    return frame_of(read_run_history(run), time.time()).state


def test_one_that_has_grown_beyond_all_memory_is_cut_all_the_same(tmp_path):
    save(tmp_path, 5)
    os.truncate(tmp_path / journal.NAME, 1 << 40)
    restore_and_save(tmp_path, 6)
    assert names_of(tmp_path)[-1] == "end"
    assert (tmp_path / journal.NAME).stat().st_size < journal.MAX_NBYTES


def test_of_one_that_is_too_large_twice_what_it_may_have_is_read(tmp_path):
    lines = [f'{{"event": "saved", "step": {step}, "pad": "{"x" * 1000}"}}\n' for step in range(12_000)]
    write_lines(tmp_path, *lines)
    read = [entry["step"] for entry in read_journal(tmp_path)]
    assert read == list(range(read[0], 12_000))
    assert 1000 * len(read) < 2 * journal.MAX_NBYTES


def test_a_line_that_is_far_too_long_goes_without_its_metrics(tmp_path):
    metrics = {f"{number}{'x' * 400}": 1.0 for number in range(64)}
    with hc.Checkpointer(tmp_path) as ckpt:
        ckpt.save(5, {"w": np.zeros(3)}, metrics=metrics)
    (saved,) = events(tmp_path, "saved")
    assert saved["step"] == 5
    assert "metrics" not in saved


def test_values_that_json_has_not_are_texts(tmp_path):
    with hc.Checkpointer(tmp_path) as ckpt:
        ckpt.save(1, {"w": np.zeros(3)}, metrics={"a": float("nan"), "b": float("-inf"), "c\n\x1b": 1e300})
    (line,) = [line for line in (tmp_path / journal.NAME).read_text(encoding="utf-8").splitlines() if '"saved"' in line]
    assert json.loads(line, parse_constant=pytest.fail)["metrics"] == {"a": "nan", "b": "-inf", "c\n\x1b": 1e300}


def test_lines_of_several_threads_do_not_mix(tmp_path):
    log = Journal(tmp_path)
    log.begin(n_ranks=1, backend="rankfile")
    (tmp_path / journal.NAME).touch()
    threads = [threading.Thread(target=lambda: [log.stopped(n, "x" * 300) for n in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(events(tmp_path, "preempted")) == 400


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.mkdir(), lambda path: path.symlink_to("/etc/passwd")])
def test_a_journal_that_is_no_ordinary_file_is_not_read(tmp_path, make):
    make(tmp_path / journal.NAME)
    with pytest.raises((hc.errors.CorruptError, hc.errors.StorageError)):
        read_journal(tmp_path)
