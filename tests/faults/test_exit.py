"""However a program ends while a save is under way, the step is whole or absent, and the next job goes on."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.checkpointer import shutdown
from hpcckpt.format import layout
from hpcckpt.rundir.discovery import step_numbers
from hpcckpt.rundir.journal import read_journal
from hpcckpt.testing.ranks import run_ranks
from hpcckpt.tools.report.read_history import read_run_history
from tests.support.listing import listed

LIMIT_S = 240.0
BEGIN = """
import gc, multiprocessing, os, sys, threading, time
import numpy as np
import hpcckpt as hc
from hpcckpt.core import failpoints as phases

def hold(at, wait):
    arrivals = []
    def hook(phase, rank):
        if phase == at:
            arrivals.append(phase)
            if len(arrivals) == 1:
                print("held", flush=True)
                wait()
    phases.install_hook(hook)

def a_while():
    time.sleep(0.3)

w = np.full(100_000, 1.0)
ckpt = hc.Checkpointer(sys.argv[1])
"""


def run(run_dir: Path, script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + script, str(run_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def check_whole_or_absent(run_dir: Path, *whole: int) -> None:
    """Check that these steps are there, that nothing else is, and that another job can go on."""
    assert step_numbers(run_dir) == list(whole)
    for step in whole:
        assert set(hc.load(run_dir / layout.step_dirname(step))["w"].tolist()) == {float(step)}
    with hc.Checkpointer(run_dir, max_to_keep=None) as ckpt:
        ckpt.save(99, {"w": np.full(3, 99.0)}).result()
    assert listed(run_dir) == [layout.step_dirname(step) for step in (*whole, 99)]


ENDS = {
    "the end of the script": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an uncaught exception": ("raise ValueError('own mistake')", 1),
    "sys.exit within a function that holds the checkpointer": ("def f(c):\n    sys.exit(4)\nf(ckpt)", 4),
    "the checkpointer is forgotten": ("del ckpt; gc.collect()", 0),
    "the checkpointer is in a cycle": ("ckpt.me = ckpt; del ckpt", 0),
    "another checkpointer follows": ("pending.result(); ckpt = hc.Checkpointer(sys.argv[1]); ckpt.latest_step()", 0),
    "w is changed": ("w[:] = -1", 0),
}


@pytest.mark.parametrize("way", ENDS)
@pytest.mark.parametrize("n_saves", [1, 2])
def test_a_step_whose_save_returned_is_committed_when_the_program_ends(run_dir, way, n_saves):
    """Its result was not asked for, and the checkpointer was not closed."""
    end, code = ENDS[way]
    saves = "hold('2-write', a_while)\npending = ckpt.save(1, {'w': w})\n"
    if n_saves == 2:
        saves += "w[:] = 2\npending = ckpt.save(2, {'w': w})\n"
    ended = run(run_dir, saves + end)
    assert ended.returncode == code, ended.stderr
    assert ("Traceback" in ended.stderr) == (code == 1), ended.stderr
    check_whole_or_absent(run_dir, *range(1, n_saves + 1))


def test_an_exception_in_the_with_block_commits_what_was_saved(run_dir):
    ended = run(run_dir, "hold('2-write', a_while)\nwith ckpt:\n    ckpt.save(1, {'w': w})\n    1 / 0\n")
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
    check_whole_or_absent(run_dir, 1)


UNCAUGHT = {
    "a locked run": ("ckpt.save(2, {'w': w}).result()", 8, "LockedError"),
    "an error of this library": ("raise hc.errors.CorruptError('damaged')", 3, "CorruptError"),
    "the program's own": ("raise ValueError('own mistake')", 1, "ValueError"),
}


@pytest.mark.parametrize("with_mpi", [False, True])
@pytest.mark.parametrize("case", UNCAUGHT)
def test_a_program_on_one_rank_exits_with_the_code_of_an_error_it_does_not_catch(run_dir, case, with_mpi):
    script, code, name = UNCAUGHT[case]
    hook = "sys.excepthook = lambda kind, *_: print('of the program:', kind.__name__)\n"
    begin = BEGIN
    if with_mpi:
        begin = "from mpi4py import MPI\n" + BEGIN.replace("argv[1])", "argv[1], comm=MPI.COMM_WORLD)")
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.zeros(3)}).result()
        for earlier, told in (("", f"{name}: "), (hook, f"of the program: {name}")):
            command = [sys.executable, "-c", begin.replace("ckpt = ", f"{earlier}ckpt = ") + script, str(run_dir)]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            assert ended.returncode == code, ended.stderr
            assert told in ended.stdout + ended.stderr
            assert ("Traceback" in ended.stderr) == (not earlier), ended.stderr


def test_an_error_at_the_prompt_of_python_does_not_end_it(run_dir):
    command = [sys.executable, "-i", "-c", BEGIN, str(run_dir)]
    lines = "raise hc.errors.CorruptError('damaged')\nprint('still', 'here')\n"
    ended = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert "CorruptError" in ended.stderr
    assert "still here" in ended.stdout


def test_a_save_of_a_run_that_an_exception_ended_is_committed_before_the_run_goes_on(run_dir):
    ended = run(
        run_dir,
        """
ckpt.close()

def trial(stop_at=0):
    with hc.Checkpointer(sys.argv[1], on_newer="aside", max_to_keep=None) as ckpt:
        begin = ckpt.restore({"w": w}).step if ckpt.has_steps() else 0
        for step in range(begin + 1, begin + 4):
            ckpt.save(step, {"w": np.full(3, float(step))})
            if step == stop_at:
                raise KeyboardInterrupt

w = np.zeros(3)
try:
    trial(2)
except KeyboardInterrupt:
    trial()
""",
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    check_whole_or_absent(run_dir, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("kind", ["SystemExit(0)", "TimeoutError()"])
def test_what_a_handler_raises_while_the_run_is_closed_costs_no_step(run_dir, kind):
    ended = run(
        run_dir,
        f"""
import signal

def handle(*_):
    raise {kind}

signal.signal(signal.SIGALRM, handle)
hold("2-written", a_while)
try:
    with ckpt:
        ckpt.save(1, {{"w": np.full(3, 1.0)}})
        signal.setitimer(signal.ITIMER_REAL, 0.1)
except (SystemExit, TimeoutError) as error:
    print("raised", type(error).__name__)
""",
    )
    assert ended.stdout.split() == ["held", "raised", kind.partition("(")[0]]
    assert not (run_dir / layout.LOCK).exists()
    check_whole_or_absent(run_dir, 1)


def test_a_checkpointer_that_is_collected_while_steps_are_removed_does_not_hang(run_dir):
    """Python collects what is in a cycle in whichever thread makes objects, so also in the one that removes steps."""
    ended = run(
        run_dir,
        """
import shutil
ckpt.close()
directory, state, options = sys.argv[1], {"w": np.zeros(3)}, {"async_save": False, "recycle": False}
with hc.Checkpointer(directory, max_to_keep=None, **options) as ckpt:
    for step in range(4):
        ckpt.save(step, state)
gc.disable()
real = shutil.rmtree

def rmtree(*arguments, **options):
    time.sleep(0.5)
    gc.collect()
    return real(*arguments, **options)

shutil.rmtree = rmtree

class Cycle:
    pass

def forgotten():
    made = Cycle()
    made.itself, made.ckpt = made, hc.Checkpointer(directory, max_to_keep=1, **options)
    made.ckpt.restore(state)
    made.ckpt.save(4, state)

ckpt = hc.Checkpointer(directory, max_to_keep=1, **options)
ckpt.restore(state)
forgotten()
ckpt.restore(state)
ckpt.save(5, state)
ckpt.close()
print("closed")
""",
    )
    assert ended.stdout.split() == ["closed"]
    assert step_numbers(run_dir) == [5]


def test_nothing_of_a_closed_checkpointer_stays_in_memory(run_dir, monkeypatch):
    without_thread = shutdown._Forgotten()  # as on ranks that take no lock
    monkeypatch.setattr(without_thread, "start", lambda: None)
    monkeypatch.setattr(shutdown, "_forgotten", without_thread)

    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"w": np.zeros(3)})
        return weakref.ref(ckpt._session)

    left = run_ranks(2, body)
    gc.collect()
    assert [session() for session in left] == [None, None]


def test_a_checkpointer_that_is_collected_in_a_thread_that_begins_does_not_hang(run_dir):
    """Another thread waits until it has begun, and holds the lock that the checkpointer's end needs."""
    ended = run(
        run_dir,
        """
ckpt.close()
gc.disable()
forgotten = {"ckpt": hc.Checkpointer(sys.argv[1])}
forgotten["itself"] = forgotten
forgotten["ckpt"].save(5, {"w": w}).result()
del forgotten
real, seen, main = threading.Event.set, [], threading.get_ident()

def set_late(event):
    if threading.get_ident() != main:
        seen.append(gc.collect())
    real(event)

threading.Event.set = set_late
with hc.Checkpointer(sys.argv[1] + "/other") as ckpt:
    ckpt.save(1, {"w": w})
assert seen
print("closed")
""",
    )
    assert ended.stdout.split() == ["closed"]


def test_a_save_that_fails_when_nobody_asks_any_more_is_told_in_the_log(run_dir):
    script = """
def fail(phase, rank):
    if phase == '2-synced':
        raise OSError(28, 'No space left on device')
phases.install_hook(fail)
ckpt.save(1, {'w': w})
"""
    ended = run(run_dir, script)
    assert "save step 1: write: [rank 0]" in ended.stderr
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert listed(run_dir) == []


def test_the_second_of_two_saves_is_committed_though_the_first_fails(run_dir):
    script = """
ckpt.close()
ckpt = hc.Checkpointer(sys.argv[1], max_in_flight=2)
arrivals = []
def fail(phase, rank):
    if phase == '4-check':
        arrivals.append(phase)
        if len(arrivals) == 1:
            raise OSError(5, 'broken')
phases.install_hook(fail)
ckpt.save(1, {'w': w})
w[:] = 2
ckpt.save(2, {'w': w})
"""
    ended = run(run_dir, script)
    assert ended.returncode == 0, ended.stderr
    check_whole_or_absent(run_dir, 2)


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        *[(phase, signal.SIGKILL) for phase in ("2-write", "2-written", "4-durable", "6-parent-synced")],
        *[(phase, signal.SIGTERM) for phase in ("2-written", "6-parent-synced")],
        ("4-durable", signal.SIGINT),
    ],
)
def test_a_program_that_is_ended_during_a_drain_leaves_the_step_whole_or_absent(run_dir, phase, number):
    script = f"ckpt.save(1, {{'w': w}}).result()\nhold({phase!r}, sys.stdin.read)\n"
    script += "w[:] = 2\nckpt.save(2, {'w': w}).result()\n"
    command = [sys.executable, "-c", BEGIN + script, str(run_dir)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "held\n"
        job.send_signal(number)
        _, err = job.communicate(timeout=LIMIT_S)  # which closes its input: from here on nothing holds it
    if number == signal.SIGINT:  # an exception in the program's thread; the save goes on
        assert "KeyboardInterrupt" in err
        assert job.returncode == -signal.SIGINT
        check_whole_or_absent(run_dir, 1, 2)
    else:
        assert job.returncode == -number
        check_whole_or_absent(run_dir, *((1, 2) if phase == "6-parent-synced" else (1,)))


FORK = """
pid = os.fork()
if pid == 0:
    {child}
os.waitpid(pid, 0)
"""
FORKS = {
    "a child that ends at once": FORK.format(child="os._exit(0)"),
    "a child that ends as programs do": FORK.format(child="sys.exit(0)"),
    "a child that forgets": FORK.format(child="del ckpt, pending; gc.collect(); sys.exit()"),
    "workers": """
with multiprocessing.get_context('fork').Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
""",
}


@pytest.mark.parametrize("how", FORKS)
def test_processes_that_are_forked_during_a_save_do_not_touch_it(run_dir, how):
    """They have a copy of the checkpointer, and none of its threads."""
    script = f"""
forked = threading.Event()
hold('2-written', forked.wait)
pending = ckpt.save(1, {{'w': w}})
{FORKS[how]}
forked.set()
assert pending.result().step == 1
{FORKS[how]}
w[:] = 2
ckpt.save(2, {{'w': w}}).result()
ckpt.close()
"""
    ended = run(run_dir, script)
    assert ended.returncode == 0, ended.stderr
    check_whole_or_absent(run_dir, 1, 2)


def test_two_checkpointers_of_one_program_leave_each_others_saves_alone(run_dir):
    """They share the lock, and each sweeps when it opens the directory and when it is closed."""
    script = """
ckpt.save(1, {'w': w}).result()
other = hc.Checkpointer(sys.argv[1])
other.restore({'w': w})
w[:] = 2
refused = threading.Event()
hold('2-written', refused.wait)
pending = other.save(2, {'w': w})
with hc.Checkpointer(sys.argv[1]) as third:
    try:
        third.save(1, {'w': w})
    except hc.errors.StepExistsError:
        print('refused')
    assert not pending.done()
refused.set()
assert pending.result().step == 2
ckpt.restore({'w': w})
w[:] = 3
ckpt.save(3, {'w': w}).result()
"""
    ended = run(run_dir, script)
    assert ended.returncode == 0, ended.stderr
    assert "refused" in ended.stdout
    check_whole_or_absent(run_dir, 1, 2, 3)


def test_threads_of_one_program_can_open_checkpointers_at_the_same_time(run_dir):
    """Each one that is opened looks through those that are open already."""
    script = """
sys.setswitchinterval(1e-5)
made = []

def work(name):
    made.extend(hc.Checkpointer(f"{sys.argv[1]}/{name}-{number}") for number in range(400))

threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(made) == 1600, len(made)
"""
    ended = run(run_dir, script)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_exception_that_leaves_the_block_during_a_save_is_in_the_journal(tmp_path):
    script = """
ckpt.close()
with hc.Checkpointer(sys.argv[1]) as ckpt:
    hold("2-write", a_while)
    pending = ckpt.save(1, {"w": w})
    del pending
    raise RuntimeError("my own mistake")
"""
    ended = run(tmp_path / "run", script)
    assert ended.returncode == 1
    *_, saved, end = read_journal(tmp_path / "run")
    assert (saved["event"], end["event"]) == ("saved", "end")
    assert (end["error"], end["message"]) == ("RuntimeError", "my own mistake")
    (job,) = read_run_history(tmp_path / "run").jobs
    assert (job.end, job.reason) == ("failed", "RuntimeError: my own mistake")
    check_whole_or_absent(tmp_path / "run", 1)
