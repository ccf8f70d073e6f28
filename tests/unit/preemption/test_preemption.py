"""The parts of preemption: moments and durations, the end of the job, HALT files, signals."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

import hpcckpt as hc
from hpcckpt.core.durations import ctime_s, duration_s, duration_text, moment_s, moment_text
from hpcckpt.errors import CorruptError, OptionError
from hpcckpt.preemption import Halt, Preempted, parse_halt, read_halt, walltime, write_halt
from hpcckpt.preemption.halt import MAX_NBYTES
from hpcckpt.preemption.signals import signal_numbers
from hpcckpt.preemption.walltime import TimeNeeded, find_job_end, job_start, process_began
from tests.support.listing import listed

pytestmark = [pytest.mark.one_case, pytest.mark.stack_b]
LIMIT_S = 240.0
"""After which a program hangs, however busy the machine is."""

# -- moments and durations -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (90, 90),
        (1.5, 1.5),
        (timedelta(hours=2), 7200),
        ("1:30:00", 5400),
        ("01:30:00", 5400),
        ("2-12:00:00", 216000),
        ("30:00", 1800),
        ("100:00:00", 360000),
        ("90m", 5400),
        ("90 min", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        (" 45s ", 45),
    ],
)
def test_durations_are_read(value, seconds):
    assert duration_s(value) == seconds


@pytest.mark.parametrize(
    "value", ["", "5400", "soon", "-1:00:00", "0:00", 0, -5, float("nan"), float("inf"), True, "1h30"]
)
def test_what_is_no_duration_is_refused(value):
    with pytest.raises(OptionError, match="is no duration"):
        duration_s(value)


@given(st.integers(1, 10**8))
def test_a_duration_comes_back_from_its_text(seconds):
    assert duration_s(duration_text(seconds)) == seconds


@given(st.integers(10**9, 32 * 10**9))
def test_a_moment_comes_back_from_its_text(seconds):
    assert moment_s(moment_text(seconds)) == moment_s(seconds) == moment_s(str(seconds)) == seconds


def test_moments_are_local_unless_they_say_more(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert moment_s("2026-08-27T12:00:00") == moment_s("2026-08-27T10:00:00Z")
        assert moment_s("2026-08-27T12:00:00+00:00") == datetime(2026, 8, 27, 12, tzinfo=UTC).timestamp()
    finally:
        monkeypatch.undo()
        time.tzset()


@given(st.text(max_size=40))
def test_reading_a_moment_or_a_duration_raises_nothing_else(text):
    for read in (moment_s, duration_s):
        try:
            assert 0 < read(text) < 10**11
        except OptionError:
            pass


@pytest.mark.parametrize("value", ["", "tomorrow", "12:00", "1800000000000", float("nan"), -1, "99999-01-01"])
def test_what_is_no_moment_is_refused(value):
    with pytest.raises(OptionError, match="is no moment"):
        moment_s(value)


# -- the end of the job ----------------------------------------------------------------------------


def soon(seconds=3600):
    return int(time.time()) + seconds


@pytest.mark.parametrize("name", ["HPCCKPT_JOB_END", "SLURM_JOB_END_TIME", "COBALT_ENDTIME"])
def test_the_end_of_the_job_is_taken_from_the_environment(name):
    end = soon()
    found = find_job_end(environ={name: str(end)}).end
    assert found == (end, name)
    assert str(found) == f"{moment_text(end)} ({name})"


def test_nobody_knows_the_end_where_nobody_says_it():
    assert find_job_end(environ={}) == (None, ())
    assert find_job_end(environ={"HPCCKPT_JOB_END": "", "SLURM_JOB_END_TIME": "", "PBS_WALLTIME": ""}) == (None, ())


def test_what_the_user_says_comes_before_what_the_scheduler_says():
    environ = {"HPCCKPT_JOB_END": str(soon(100)), "SLURM_JOB_END_TIME": str(soon(200))}
    assert find_job_end(environ=environ).end.source == "HPCCKPT_JOB_END"
    assert find_job_end(job_end=soon(50), environ=environ).end.source == "job_end"
    assert find_job_end(walltime="100:00:00", environ=environ).end.source == "walltime, from the start of the program"


@pytest.mark.parametrize("walltime", ["360000", "100:00:00"])
def test_pbs_counts_from_the_start_of_the_job(tmp_path, walltime):
    nodes = tmp_path / "nodes"
    nodes.write_text("node1\n", encoding="utf-8")
    start = int(process_began()) - 600
    os.utime(nodes, (start, start))
    environ = {"PBS_WALLTIME": walltime, "PBS_NODEFILE": str(nodes)}
    assert job_start(environ) == (start, "PBS_NODEFILE")
    assert find_job_end(environ=environ).end == (start + 360_000, "PBS_WALLTIME")


def test_a_walltime_counts_from_the_start_of_the_job_if_that_is_known():
    start = int(process_began()) - 100
    for name in ("HPCCKPT_JOB_START", "SLURM_JOB_START_TIME", "COBALT_STARTTIME"):
        found = find_job_end(walltime=360_000, environ={name: str(start)}).end
        assert found == (start + 360_000, f"walltime, from {name}")


def test_this_process_began_a_while_ago():
    assert 0 <= time.time() - process_began() < 86400


def fake_command(tmp_path, name, script):
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("name", "variable", "answer"),
    [
        ("scontrol", "SLURM_JOB_ID", "   StartTime={start} EndTime={end} Deadline=N/A"),
        ("qstat", "PBS_JOBID", "    Resource_List.walltime = 02:00:00\n    stime = {stime}\n    mtime = x"),
    ],
)
def test_schedulers_are_asked_where_the_environment_says_nothing(tmp_path, monkeypatch, name, variable, answer):
    start = soon(-1800)
    local = datetime.fromtimestamp(start)  # noqa: DTZ006 - schedulers speak of local time
    end = datetime.fromtimestamp(start + 7200)  # noqa: DTZ006
    text = answer.format(start=local.isoformat(), end=end.isoformat(), stime=local.strftime("%a %b %d %H:%M:%S %Y"))
    fake_command(tmp_path, name, f'[ "$3" = 17 ] || [ "$2" = 17 ] || exit 1\ncat <<"EOF"\n{text}\nEOF')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(walltime, "ASKING_S", LIMIT_S)
    assert find_job_end(environ={variable: "17"}).end == (start + 7200, name)
    assert find_job_end(environ={variable: "18"}).end is None


def test_the_start_that_pbs_reports_is_read_in_any_locale(tmp_path, monkeypatch):
    def refuse(text, form):
        raise ValueError(f"{text!r} does not match {form!r}: the names of days and months are German")

    monkeypatch.setattr(time, "strptime", refuse)
    fake_command(
        tmp_path, "qstat", 'echo "Resource_List.walltime = 02:00:00"; echo " stime = Sun Nov  1 02:00:00 2020"'
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(walltime, "ASKING_S", LIMIT_S)
    assert walltime._qstat({"PBS_JOBID": "17"}) == datetime(2020, 11, 1, 4).timestamp()  # noqa: DTZ001 - local time


AGAIN_2 = 1_792_890_000
"""2026-10-25 02:00 in Berlin for the second time."""


@pytest.mark.parametrize("minutes", [5, 50])
def test_a_job_of_the_hour_that_clocks_show_twice_knows_its_end(tmp_path, monkeypatch, minutes):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        monkeypatch.setattr(time, "time", lambda: AGAIN_2 + 60.0 * minutes)
        fake_command(
            tmp_path, "qstat", 'echo "Resource_List.walltime = 01:00:00"; echo " stime = Sun Oct 25 02:00:00 2026"'
        )
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setattr(walltime, "ASKING_S", LIMIT_S)
        assert find_job_end(environ={"PBS_JOBID": "17"}).end == (AGAIN_2 + 3600, "qstat")
        found = find_job_end(environ={"HPCCKPT_JOB_END": "2026-10-25T02:55:00"})
        assert found.end == (AGAIN_2 + 3300, "HPCCKPT_JOB_END")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["today", "Sun Foo 22 02:00:00 2026", "Sun Nov 31 02:00:00 2026", ""])
def test_what_is_no_ctime_is_refused(text):
    with pytest.raises(OptionError, match="is no moment"):
        ctime_s(text)


def test_what_a_scheduler_says_that_makes_no_sense_is_passed_over_with_a_warning():
    end = soon()
    environ = {"SLURM_JOB_END_TIME": "Unknown", "COBALT_ENDTIME": str(end)}
    found = find_job_end(environ=environ)
    assert found.end == (end, "COBALT_ENDTIME")
    assert "SLURM_JOB_END_TIME" in found.warnings[0]


@pytest.mark.parametrize("name", ["HPCCKPT_JOB_END", "SLURM_JOB_END_TIME"])
def test_an_end_that_is_past_is_left_from_another_job(name):
    found = find_job_end(environ={name: str(soon(-7200))})
    assert found.end is None
    assert "2:00:0" in found.warnings[0]
    assert "; ignored" in found.warnings[0]


def test_an_exported_end_that_is_past_leaves_it_to_the_scheduler_to_say():
    end = soon()
    found = find_job_end(environ={"HPCCKPT_JOB_END": str(soon(-7200)), "SLURM_JOB_END_TIME": str(end)})
    assert found.end == (end, "SLURM_JOB_END_TIME")
    assert "by HPCCKPT_JOB_END the job ended 2:00:0" in found.warnings[0]


def test_what_the_user_says_that_makes_no_sense_is_an_error():
    with pytest.raises(OptionError, match="HPCCKPT_JOB_END: 'noon' is no moment"):
        find_job_end(environ={"HPCCKPT_JOB_END": "noon"})
    with pytest.raises(OptionError, match="give one of them"):
        find_job_end(walltime=5, job_end=5, environ={})


def test_the_time_needed_is_learned_from_saves_and_steps():
    needed = TimeNeeded(left_s=36000)
    assert needed.seconds() == TimeNeeded.UNMEASURED_S
    for seconds in (500.0, 2.0, 3.0):  # the first step compiles
        needed.observe_step(seconds)
    assert needed.seconds() == TimeNeeded.UNMEASURED_S + 2 * 3.0
    needed.observe_save(10.0)
    needed.observe_save(4.0)
    assert needed.seconds() == 2 * 10.0 + TimeNeeded.EXIT_S + 2 * 3.0
    for _ in range(8):
        needed.observe_save(1.0)
    assert needed.seconds() == 2 * 1.0 + TimeNeeded.EXIT_S + 2 * 3.0


def test_the_time_needed_is_a_tenth_of_a_short_job_until_saves_are_measured():
    assert TimeNeeded(left_s=600).seconds() == 60
    assert TimeNeeded(left_s=600, fixed_s=7.0).seconds() == 7


# -- HALT ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "halt"),
    [
        ("", Halt()),
        ("\n  \n", Halt()),
        ("now", Halt()),
        ("# by me, for maintenance\n", Halt()),
        ("after-step 500", Halt(after_step=500)),
        ("# x\n after-step  7 \n", Halt(after_step=7)),
        ("at 1800000000", Halt(at=1800000000)),
        ("at 2026-08-27T12:00:00Z", Halt(at=1787832000)),
        ("at 2026-08-27 12:00:00+00:00", Halt(at=1787832000)),
    ],
)
def test_a_halt_file_is_read(text, halt):
    assert parse_halt(text) == halt
    assert parse_halt(str(halt)) == halt


@pytest.mark.parametrize(
    "text", ["soon", "after-step", "after-step -1", "after-step 1 2", "after-step ٣", "at", "at noon"]
)
def test_a_halt_file_that_is_not_understood_says_so(text):
    with pytest.raises(OptionError):
        parse_halt(text)


@given(st.text(max_size=100))
def test_reading_a_halt_file_raises_nothing_else(text):
    try:
        parse_halt(text)
    except OptionError:
        pass


def test_a_halt_file_is_written_and_found(tmp_path):
    assert read_halt(tmp_path) is None
    assert read_halt(tmp_path / "none") is None
    path = write_halt(tmp_path, Halt(after_step=9), "asked by someone\non some host")
    assert path == tmp_path / "HALT"
    assert read_halt(tmp_path) == Halt(after_step=9)
    assert os.listdir(tmp_path) == ["HALT"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o400


def test_a_halt_file_that_is_large_or_no_file_is_not_read(tmp_path):
    path = tmp_path / "HALT"
    path.write_bytes(b"#" * (MAX_NBYTES + 1))
    with pytest.raises(CorruptError):
        read_halt(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptError):
        read_halt(tmp_path)
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(CorruptError):
        read_halt(tmp_path)


# -- signals ---------------------------------------------------------------------------------------


def test_signals_are_chosen_by_name_or_number():
    assert signal_numbers(["SIGTERM", "usr1", 12, "SIGUSR2"]) == (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    assert signal_numbers("USR1") == (signal.SIGUSR1,)
    for wrong in ("SIGNOT", 999, "KILL", signal.SIGSTOP):
        with pytest.raises(OptionError):
            signal_numbers([wrong])


def test_preempted_is_an_exit_with_code_75():
    error = Preempted(7, "SIGTERM on rank 0")
    assert isinstance(error, SystemExit)
    assert not isinstance(error, Exception)
    assert error.code == 75
    assert str(error) == "stopped after step 7: SIGTERM on rank 0"


BEGIN = """
import ctypes, faulthandler, multiprocessing, os, signal, subprocess, sys, time
import numpy as np
import hpcckpt as hc

def send(number, pid=None):
    os.kill(pid or os.getpid(), number)
    time.sleep(0.01)

def scheduler_sends(number, *pids):  # from a process that is no parent
    subprocess.run(["sh", "-c", f"kill -{int(number)} {' '.join(map(str, pids))}"], check=True)

def call_for(seconds, then):  # one call, during which Python runs no handlers; a process does `then` meanwhile
    helper = subprocess.Popen(["sh", "-c", f"sleep 0.3; {then}; sleep {seconds}; echo"], stdout=subprocess.PIPE)
    ctypes.CDLL(None).read(helper.stdout.fileno(), ctypes.create_string_buffer(9), 9)
    helper.wait()

def work(there):
    os.write(there, b"x")
    time.sleep(60)

def worker():
    reading, there = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=work, args=(there,), daemon=True)
    process.start()
    os.read(reading, 1)
    return process

state = {"w": np.ones(10)}
ckpt = hc.Checkpointer(sys.argv[1])
"""


def run(tmp_path, script):
    command = [sys.executable, "-c", BEGIN + script, str(tmp_path / "run")]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_a_signal_ends_the_program_with_code_75_behind_a_durable_step(tmp_path, name):
    script = f"""
with hc.preemption.watch(ckpt) as guard:
    assert not guard.should_stop(1)
    send(signal.{name}); send(signal.{name})
    assert not guard.should_stop(1), "the step is over; at the next one"
    if guard.should_stop(2):
        guard.save_and_exit(state)
"""
    ended = run(tmp_path, script)
    assert ended.returncode == 75, ended.stderr
    assert listed(tmp_path / "run") == ["step-0000000002"]
    assert f"stopping step=2 reason='{name} on rank 0'" in ended.stderr
    assert "stopped step=2 exit=75" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_signals_that_come_on_the_way_out_do_not_end_it_early(tmp_path):
    script = """
import atexit
atexit.register(lambda: [send(n) for n in (signal.SIGTERM, signal.SIGUSR1)])
guard = hc.preemption.watch(ckpt, verbose=0)
send(signal.SIGTERM)
if guard.should_stop(1):
    ckpt.save(1, state)
    ckpt.wait()
    guard.exit()
"""
    ended = run(tmp_path, script)
    assert ended.returncode == 75, ended.stderr
    assert ended.stderr == ""


def test_signals_that_come_while_the_last_step_is_saved_change_nothing(tmp_path):
    script = """
from hpcckpt.core import failpoints as phases
guard = hc.preemption.watch(ckpt, verbose=0)
send(signal.SIGTERM)
assert guard.should_stop(1)
seen = []
phases.install_hook(lambda phase, rank: [seen.append(phase), send(signal.SIGTERM), send(signal.SIGUSR1)])
try:
    guard.save_and_exit(state)
finally:
    print(*sorted(set(seen)))
"""
    ended = run(tmp_path, script)
    assert ended.returncode == 75, ended.stderr
    assert {"2-write", "4-manifest", "5-published", "6-parent-synced"} <= set(ended.stdout.split())
    assert set(hc.load(tmp_path / "run" / "step-0000000001")["w"].tolist()) == {1.0}


def test_handlers_from_before_are_called_and_given_back(tmp_path):
    script = """
heard = []
before = lambda number, frame: heard.append(number)
signal.signal(signal.SIGUSR1, before)
first = hc.preemption.watch(ckpt, verbose=0)
second = hc.preemption.watch(ckpt, verbose=0)
send(signal.SIGUSR1)
assert heard == [signal.SIGUSR1]
first.close()
send(signal.SIGTERM)
assert second.should_stop(1)
second._stop = None
second.close()
assert signal.getsignal(signal.SIGUSR1) is before
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""
    ended = run(tmp_path, script)
    assert ended.returncode == 0, ended.stderr


PASSING_ON = """
heard = []
def theirs(number, frame):
    heard.append("theirs")
    if callable(ours):
        ours(number, frame)
guard = hc.preemption.watch(ckpt, verbose=0)
ours = signal.signal(signal.SIGTERM, theirs)
guard.close()
assert signal.getsignal(signal.SIGTERM) is theirs
"""


def test_a_later_handler_of_another_library_stays_and_passes_on_to_the_system(tmp_path):
    ended = run(tmp_path, PASSING_ON + "send(signal.SIGTERM)\nprint('still here')\n")
    assert ended.returncode == -signal.SIGTERM, ended.stderr
    assert ended.stdout == ""


def test_a_handler_that_another_library_installed_since_passes_on_to_the_one_before(tmp_path):
    begin = "signal.signal(signal.SIGTERM, lambda number, frame: heard.append('before'))\n"
    ended = run(tmp_path, begin + PASSING_ON + "send(signal.SIGTERM)\nassert heard == ['theirs', 'before'], heard\n")
    assert ended.returncode == 0, ended.stderr


def test_signals_that_are_caught_anew_above_another_librarys_handler_are_heard_once(tmp_path):
    script = """
signal.signal(signal.SIGTERM, lambda number, frame: heard.append('before'))
{0}
with hc.preemption.watch(ckpt, verbose=0) as guard:
    send(signal.SIGTERM)
    assert guard.should_stop(1)
    guard._stop = None
assert heard == ['theirs', 'before'], heard
assert signal.getsignal(signal.SIGTERM) is theirs
"""
    ended = run(tmp_path, script.format(PASSING_ON))
    assert ended.returncode == 0, ended.stderr


def test_signals_are_caught_before_there_is_anything_to_save(tmp_path):
    script = """
hc.preemption.catch_signals()
send(signal.SIGTERM)
guard = hc.preemption.watch(ckpt, verbose=0)
assert guard.should_stop(1)
guard.save_and_exit(state)
"""
    assert run(tmp_path, script).returncode == 75


def test_an_exception_gives_the_signals_back(tmp_path):
    script = """
try:
    with hc.preemption.watch(ckpt, verbose=0):
        1 / 0
except ZeroDivisionError:
    pass
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""
    assert run(tmp_path, script).returncode == 0


def test_a_warning_after_the_end_of_watching_does_not_kill_a_supervised_job(tmp_path):
    script = """
os.environ["HPCCKPT_STEP"] = "mark"
with hc.preemption.watch(ckpt, verbose=0):
    pass
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
send(signal.SIGUSR1)
guard = hc.preemption.watch(ckpt, verbose=0)
send(signal.SIGUSR1)
assert guard.should_stop(1)
"""
    ended = run(tmp_path, script)
    assert ended.returncode == 0, ended.stderr


def test_only_signals_that_were_chosen_are_caught(tmp_path):
    ended = run(tmp_path, "hc.preemption.watch(ckpt, signals=['USR1'])\nsend(signal.SIGUSR1)\nsend(signal.SIGTERM)\n")
    assert ended.returncode == -signal.SIGTERM


def test_a_system_call_that_a_signal_interrupts_goes_on(tmp_path):
    """Libraries that are not Python's are not prepared for EINTR."""
    script = """
import threading
libc = ctypes.CDLL(None, use_errno=True)
guard = hc.preemption.watch(ckpt, verbose=0)
reading, writing = os.pipe()
main = threading.main_thread().ident
def disturb():
    time.sleep(0.1)
    signal.pthread_kill(main, signal.SIGUSR1)
    time.sleep(0.2)
    os.write(writing, b"x")
threading.Thread(target=disturb).start()
assert libc.read(reading, ctypes.create_string_buffer(1), 1) == 1, ctypes.get_errno()
assert guard.should_stop(1)
guard.save_and_exit(state)
"""
    ended = run(tmp_path, script)
    assert ended.returncode == 75, ended.stderr


BELOW_ANOTHER = "ours = signal.signal(signal.SIGTERM, lambda number, frame: ours(number, frame))"
SPARED = """
import hpcckpt.preemption.signals
hpcckpt.preemption.signals.PARENT_S = 1.5
signal.siginterrupt(signal.SIGTERM, False)  # the call below is not interrupted
process = worker()
call_for(3, f"kill -15 {process.pid} {os.getpid()}")
assert process.is_alive()
assert guard.should_stop(1)
guard.save_and_exit(state)
"""
ENDED = """
send(signal.SIGUSR1)
process = worker()
process.terminate()
process.join(60)
assert process.exitcode == -15, process.exitcode
assert guard.should_stop(1)
guard.save_and_exit(state)
"""
WORKERS = {
    "a signal to all processes of the job spares the workers": (
        """
import hpcckpt.preemption.signals
hpcckpt.preemption.signals.PARENT_S = hpcckpt.preemption.signals.PARENT_WITHOUT_SENDER_S = 60
process = worker()
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    scheduler_sends(number, process.pid, os.getpid())
time.sleep(0.5)
assert process.is_alive()
assert guard.should_stop(1)
guard.save_and_exit(state)
""",
        75,
    ),
    "a signal to all spares the workers while native code of their parent runs": (SPARED, 75),
    "it does in native code after another handler was installed and removed": (
        "signal.signal(signal.SIGTERM, signal.signal(signal.SIGTERM, signal.SIG_IGN))" + SPARED,
        75,
    ),
    "it does in native code below another handler": (BELOW_ANOTHER + SPARED, 75),
    "a worker with an earlier handler of the program is spared in native code, and calls it when its parent ends it": (
        """
guard.close()
def handler(number, frame):
    if os.getpid() == here:
        return
    os.write(said, b"handled")
    os._exit(7)
here, (reading, said) = os.getpid(), os.pipe()
signal.signal(signal.SIGTERM, handler)
guard = hc.preemption.watch(ckpt, verbose=0)
process = worker()
call_for(1, f"kill -15 {process.pid} {os.getpid()}")
assert process.is_alive()
process.terminate()
process.join(60)
assert process.exitcode == 7, process.exitcode
assert os.read(reading, 100) == b"handled"
""",
        0,
    ),
    "native: a worker that its parent ends is ended, after a signal to the parent": (ENDED, 75),
    "native: so it is where another handler passes the signal on": (BELOW_ANOTHER + ENDED, 75),
    "a worker that waits for data runs the program's handler": (
        """
guard.close()
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7))
guard = hc.preemption.watch(ckpt, verbose=0)
reading, writing = os.pipe()
def work(there):
    os.write(there, b"x")
    os.read(reading, 1)
process = worker()
time.sleep(0.1)
process.terminate()
process.join(60)
assert process.exitcode == 7, process.exitcode
""",
        0,
    ),
    "a handler that is installed later interrupts calls, also after a fork": (
        """
def handler(number, frame):
    raise KeyError
signal.signal(signal.SIGTERM, handler)
process = worker()
reading, writing = os.pipe()
subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -15 {os.getpid()}"])
try:
    os.read(reading, 1)
except KeyError:
    pass
""",
        0,
    ),
    "native: a worker that has watched before is spared, and ended by its parent": (
        """
def work(there):
    with hc.preemption.watch(hc.Checkpointer(f"{sys.argv[1]}-{os.getpid()}"), verbose=0):
        pass
    os.write(there, b"x")
    time.sleep(60)
process = worker()
call_for(0.3, f"kill -15 {process.pid} {os.getpid()}")
assert process.is_alive()
process.terminate()
process.join(60)
assert process.exitcode == -15, process.exitcode
assert guard.should_stop(1)
guard.save_and_exit(state)
""",
        75,
    ),
    "a worker that is forked on the way out is ended": (
        """
import atexit
def late():
    process = worker()
    process.terminate()
    process.join(60)
    print(process.exitcode, file=sys.stderr)
    if process.exitcode != -15:
        process.kill()
        os._exit(1)
atexit.register(late)
send(signal.SIGTERM)
assert guard.should_stop(1)
guard.save_and_exit(state)
""",
        75,
    ),
    "a signal is heard below another handler, watched again": (
        """
ours = signal.signal(signal.SIGTERM, lambda number, frame: ours(number, frame))
guard.close()
guard = hc.preemption.watch(ckpt, verbose=0)
send(signal.SIGTERM)
assert guard.should_stop(1)
guard.save_and_exit(state)
""",
        75,
    ),
    "a worker that survives its parent is ended by the scheduler": (
        """
import hpcckpt.preemption.signals
hpcckpt.preemption.signals.PARENT_S = 1000
reading, there = os.pipe()
parent = os.fork()
if parent == 0:
    hc.preemption.catch_signals()
    if os.fork() == 0:
        work(there)
    send(signal.SIGUSR1)
    time.sleep(60)
os.read(reading, 1)
(child,) = map(int, open(f"/proc/{parent}/task/{parent}/children").read().split())
os.kill(parent, signal.SIGKILL)
os.waitpid(parent, 0)
os.close(there)
scheduler_sends(signal.SIGTERM, child)
assert os.read(reading, 1) == b""  # its end is closed
""",
        0,
    ),
    "a child that catches signals itself stops": (
        """
def train(there):
    other = hc.Checkpointer(f"{sys.argv[1]}-{os.getpid()}")
    with hc.preemption.watch(other, verbose=0) as watching:
        os.write(there, b"x")
        step = 1
        while not watching.should_stop(step):
            time.sleep(0.01)
            step += 1
        watching.save_and_exit(state)
work = train
for number in (signal.SIGUSR1, signal.SIGTERM):
    process = worker()
    scheduler_sends(number, process.pid)
    process.join(60)
    assert process.exitcode == 75, process.exitcode
assert not guard.should_stop(1)
""",
        0,
    ),
    "a handler of native code that passes signals on hears each once": (
        """
out = open(sys.argv[1] + "-trace", "w+")
faulthandler.register(signal.SIGUSR1, file=out, all_threads=False, chain=True)
process = worker()
send(signal.SIGUSR1)
assert guard.should_stop(1)
assert out.seek(0) == 0 and out.read().count("most recent call first") == 1
guard.save_and_exit(state)
""",
        75,
    ),
    "workers that are left over are ended with the program": (
        "process = worker()\nsend(signal.SIGUSR1)\nassert guard.should_stop(1)\nguard.save_and_exit(state)",
        75,
    ),
    "a worker that its parent ends is ended": (
        "process = worker()\nprocess.terminate()\nprocess.join(60)\nassert process.exitcode == -15, process.exitcode",
        0,
    ),
    "workers that their parent ends as soon as they are forked are ended": (
        """
import hpcckpt.preemption.signals
hpcckpt.preemption.signals.PARENT_WITHOUT_SENDER_S = 0
for _ in range(100):
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
    process.start()
    process.terminate()
    process.join(30)
    assert process.exitcode == -15, process.exitcode
""",
        0,
    ),
    "a worker that is blocked in a call is ended by its parent": (
        """
libc = ctypes.CDLL(None)
def work(there):
    lock = ctypes.create_string_buffer(256)  # a mutex: all zeros
    libc.pthread_mutex_lock(lock)
    os.write(there, b"x")
    libc.pthread_mutex_lock(lock)  # does not return, whatever signals come
process = worker()
process.terminate()
process.join(60)
assert process.exitcode == -15, process.exitcode
""",
        0,
    ),
    "a child is ended by its parent where a script has had the signal ignored": (
        "process = worker()\nsend(signal.SIGTERM)\nassert guard.should_stop(1)\nguard.save_and_exit(state)",
        75,
    ),
    "a program that is started gets its signals": (
        """
child = subprocess.Popen(["sleep", "60"])
child.terminate()
assert child.wait(60) == -15
""",
        0,
    ),
}


@pytest.mark.parametrize("case", WORKERS)
def test_forked_workers(tmp_path, case):
    if ("blocked" in case or "native" in case) and hc.native.IMPLEMENTATION == "pure":
        pytest.skip("without the native part")
    script, code = WORKERS[case]
    ignored = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if "ignored" in case else ""
    ended = run(tmp_path, f"{ignored}guard = hc.preemption.watch(ckpt, verbose=0)\n{script}")
    assert ended.returncode == code, ended.stderr


def test_what_is_watched_is_said_once_with_its_source(tmp_path):
    end = soon(7170)
    script = f"os.environ['SLURM_JOB_END_TIME'] = '{end}'\nhc.preemption.watch(ckpt, every_n_minutes='auto')\n"
    (line,) = run(tmp_path, script).stderr.splitlines()
    assert f"end={moment_text(end)}(SLURM_JOB_END_TIME) left=1:5" in line
    assert "signals=SIGTERM,SIGUSR1,SIGUSR2" in line
    assert "reserve=300s" in line
    assert line.endswith("every=auto")
