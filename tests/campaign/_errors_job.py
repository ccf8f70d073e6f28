"""One fault among the calls of a save or of a restore, and all that must hold afterwards.

Runs with ``_errors_shim.c`` preloaded.  As a server it reads trials, a line of JSON each, and plays each in its own
child, with threads as ranks; as a rank of MPI, ``_errors_job.py SHIM '{…}'``, it plays one.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hpcckpt as hc
from hpcckpt.core import failpoints
from hpcckpt.errors import CollectiveError, HpcckptError, from_os_error
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import discovery
from hpcckpt.testing.ranks import run_ranks
from tests.campaign import _mutants
from tests.campaign._reference_state import State, differences

HERE = Path(__file__)
CHILD_TIMEOUT_S = 150.0
MAX_SECONDS = 5.0
SLOW = "it took"
FULL = 100001  # the shim's word for a file system without a free byte
LOST = 100002  # and for a call that was made, and reported as failed
HARMLESS = {100000, LOST, errno.EINTR, errno.EOPNOTSUPP}
READING = {"open", "read", "stat", "list", "close"}
KEPT = 2


@dataclass(frozen=True)
class Scene:
    """What is under way when something fails.

    Attributes
    ----------
    name : str
        Of the scene.
    action : {"save", "overwrite", "restore", "reopen"}
        A save, one over a step that is there, a restore, or a first save after a job that was killed.
    n_ranks, n_before : int
        How many ranks there are, and how many saves went well before.
    size : str
        Which state, see `State`.
    options : dict
        The checkpointer's.
    """

    name: str
    action: str
    n_ranks: int = 2
    n_before: int = 3
    size: str = "small"
    options: tuple[tuple[str, Any], ...] = ()


SCENES = {
    scene.name: scene
    for scene in (
        Scene("first save", "save", n_before=0),
        Scene("save", "save"),
        Scene("save of one rank, synchronous", "save", 1, options=(("async_save", False),)),
        Scene("save, nothing recycled", "save", options=(("recycle", False),)),
        Scene("incremental save", "save", n_before=5, size="variables", options=(("incremental", True),)),
        Scene("save over a step", "overwrite"),
        Scene("save after a kill", "reopen"),
        Scene("restore", "restore"),
        Scene("restore on three ranks", "restore", 3, size="large"),
    )
}


@dataclass(frozen=True)
class Trial:
    """A fault in a scene.

    Attributes
    ----------
    first, last : int
        Positions of the calls that fail, among those that count.
    selected : str
        What is in the paths of the calls that count.
    wanted : int
        Which error it is; 0: one that the call can have, by `variant`.
    delay_us : int
        Calls are slow instead.
    ranks : tuple of int
        Which processes of an MPI job have the fault.
    phase : str
        Not a call fails, but the thread that comes to this phase ends.
    phase_rank : int
        On this rank.
    """

    scene: str
    directory: str
    first: int = -1
    last: int = -1
    selected: str = ""
    wanted: int = 0
    variant: int = 0
    delay_us: int = 0
    ranks: tuple[int, ...] = ()
    phase: str = ""
    phase_rank: int = 0

    def to_json(self) -> str:
        """Return it for a line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Trial:
        """Return what `to_json` told."""
        found = json.loads(text)
        return cls(**{**found, "ranks": tuple(found["ranks"])})


class Told(NamedTuple):
    """What one rank was told: a step, or an error."""

    step: int
    error: tuple[str, str, str] | None
    seconds: float
    wrong: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Call(NamedTuple):
    """One call that the shim saw; `error` is 0 unless it made it fail."""

    error: int
    kind: str
    path: str


class Shim:
    """The preloaded library."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.shim_notes.restype = ctypes.c_char_p

    def arm(self, trial: Trial) -> None:
        """Let calls fail from now on."""
        words = [os.fsencode(trial.directory), trial.selected.encode()]
        span = [ctypes.c_long(trial.first), ctypes.c_long(trial.last)]
        self._library.shim_arm(*words, *span, trial.wanted, trial.variant, ctypes.c_long(trial.delay_us))

    def disarm(self) -> list[Call]:
        """Let all calls go through again; return those that were seen."""
        self._library.shim_disarm()
        lines = [line.split(" ", 2) for line in os.fsdecode(self._library.shim_notes()).splitlines()]
        return [Call(int(error), kind, path) for error, kind, path in lines]

    def poisoned(self) -> set[int]:
        """Return the inode numbers of the files whose fsync failed."""
        numbers = (ctypes.c_ulonglong * 64)()
        return set(numbers[: self._library.shim_poisoned(numbers)])


# -- one rank ----------------------------------------------------------------------------------------


class _Rank:
    """One rank of a trial."""

    def __init__(self, trial: Trial, shim: Shim, comm: Any, arms: bool) -> None:
        self.trial, self.scene, self.shim, self.comm, self.arms = trial, SCENES[trial.scene], shim, comm, arms
        self.directory = Path(trial.directory)
        self.state = State(self.scene.size, comm.rank, comm.size)
        self.newest = 0
        self.versions: dict[int, int] = {}
        self.logs: list[list[Call]] = []
        self.poisoned: set[int] = set()

    def play(self) -> dict[str, Any]:
        """Play the scene, and say what came of it."""
        if self.scene.action == "reopen":
            self._leave_behind()
        ckpt = self._open()
        for _ in range(0 if self.scene.action == "reopen" else self.scene.n_before):
            self._save(ckpt, self.newest + 1)
            self.newest += 1
        told = self._act(ckpt)
        every = self.comm.allgather(told)
        problems = self._judge(every) if self.comm.rank == 0 else []
        self.comm.barrier()
        problems += self._go_on(ckpt, every)
        self.comm.barrier()
        if self.comm.rank == 0:
            problems += self._check_end()
        failed = self._failed()
        return {
            "n_calls": max(map(len, self.logs)),
            "failed": [f"{call.kind} {_error_name(call.error)}" for call in failed[:1]],
            "calls": [f"{call.kind} {call.path}" for call in failed[:5]],
            "error": told.error,
            "seconds": max(other.seconds for other in every),
            "problems": problems,
        }

    def _open(self) -> hc.Checkpointer:
        options = {"max_to_keep": KEPT, "peer_timeout_s": 30.0, "threads": 1, **dict(self.scene.options)}
        return hc.Checkpointer(self.directory, comm=self.comm, **options)

    def _leave_behind(self) -> None:
        """Have a job save, and be killed in the middle of another save: its lock and its files are there."""
        if self.comm.rank == 0:
            pid = os.fork()
            if not pid:
                _die_young(self.trial, self.scene)
            os.waitpid(pid, 0)
        self.comm.barrier()
        self.newest = self.scene.n_before
        self.versions = dict.fromkeys(range(1, self.newest + 1), 1)

    def _save(self, ckpt: hc.Checkpointer, step: int, *, overwrite: bool = False, how: int = 0) -> hc.SavedStep:
        """Save a step, and ask for it at once, when it is done, or with all others."""
        version = self.versions.get(step, 0) + 1
        self.state.become(step, version)
        pending = ckpt.save(step, self.state.tree, metrics={"loss": 0.5}, overwrite=overwrite)
        if how == 1:
            ckpt.wait()
        while how == 2 and not pending.done():
            time.sleep(0.0005)
        saved = pending.result()
        self.versions[step] = version
        return saved

    def _act(self, ckpt: hc.Checkpointer) -> Told:
        """Do what the scene says while calls fail."""
        if self.scene.action == "reopen":
            ckpt.restore(self.state.tree)
        self.comm.barrier()
        if self.arms:
            failpoints.install_hook(_Ender(self.trial) if self.trial.phase else None)
            is_spared = bool(self.trial.ranks) and self.comm.rank not in self.trial.ranks
            self.shim.arm(replace(self.trial, first=-1, last=-1) if is_spared else self.trial)
        self.comm.barrier()
        began = time.monotonic()
        told = self._attempt(ckpt, began)
        self.comm.barrier()
        calls = self.shim.disarm() if self.arms else []
        failpoints.install_hook(None)
        self.logs = self.comm.allgather(calls)
        self.poisoned = set().union(*self.comm.allgather(self.shim.poisoned()))
        return told

    def _failed(self) -> list[Call]:
        return [call for calls in self.logs for call in calls if call.error]

    def _attempt(self, ckpt: hc.Checkpointer, began: float) -> Told:
        try:
            if self.scene.action == "restore":
                return self._restore(ckpt, began)
            is_again = self.scene.action == "overwrite"
            step = self.newest + (0 if is_again else 1)
            saved = self._save(ckpt, step, overwrite=is_again, how=(self.trial.variant >> 8) % 3)
        except Exception as error:  # noqa: BLE001 - what it is, is looked at
            return Told(0, _describe(error), time.monotonic() - began)
        return Told(saved.step, None, time.monotonic() - began, warnings=saved.warnings)

    def _restore(self, ckpt: hc.Checkpointer, began: float) -> Told:
        restored = ckpt.restore(self.state.tree)
        seconds = time.monotonic() - began
        version = self.versions[restored.step]
        wrong = self.state.differences(restored.step, version, n_ranks_saved=self.comm.size)
        return Told(restored.step, None, seconds, tuple(wrong), restored.warnings)

    # -- judging, on rank 0 ----------------------------------------------------------------------------

    def _judge(self, every: list[Told]) -> list[str]:
        """Return what is wrong with what the ranks were told, and with what is there."""
        problems = []
        if len({(told.step, told.error) for told in every}) != 1:
            problems.append(f"ranks were told different things: {every}")
        told = every[0]
        slowest = max(other.seconds for other in every)
        if slowest > MAX_SECONDS and not self.trial.delay_us:
            problems.append(f"{SLOW} {slowest:.1f} s")
        problems += [f"rank {rank} has other values of {t.wrong}" for rank, t in enumerate(every) if t.wrong]
        if told.error is not None:
            problems += self._judge_error(told.error)
        elif self.scene.action == "restore":
            if told.step != self.newest and not told.warnings:
                problems.append(f"step {told.step} was restored without a word about {self.newest}")
        else:
            problems += self._judge_success()
        return problems + self._judge_storage(told)

    def _judge_error(self, error: tuple[str, str, str]) -> list[str]:
        """Check that the error is hpcckpt's, and says what happened."""
        name, kind, text = error
        failed = {call.error for call in self._failed()}
        if kind == "not ours":
            return [f"{name} is no error of ours: {text}"]
        if failed and failed <= HARMLESS:
            return [f"a harmless {failed} was an error: {text}"]
        expected = {from_os_error(OSError(number, "")).kind for number in failed - {FULL}}
        expected |= {"no-space"} if FULL in failed else set()
        expected |= {"storage"} if {call.kind for call in self._failed()} & READING else set()
        expected |= (
            {"corrupt", "no-restorable-step", "step-not-found", "manifest"} if self.scene.action == "restore" else set()
        )
        kinds = set(kind.split("+"))
        if (failed and not kinds <= {*expected, "collective"}) or kind == "error":
            return [f"{failed} was told as {kind}: {text}"]
        return []

    def _judge_success(self) -> list[str]:
        """Check that nothing was believed that may not be: a write or an fsync of the step that failed."""
        staged, is_moved, is_durable = self._of_the_step()
        for calls in self.logs:
            for number, call in enumerate(calls):
                is_late = calls is self.logs[0] and number > is_moved
                is_its_own = number == is_durable if is_late else call.path.startswith(staged)
                if is_its_own and call.error not in HARMLESS | {0} and call.kind in {"fsync", "write", "ftruncate"}:
                    return [f"{call.kind} of {call.path}: {_error_name(call.error)}, and the step was committed"]
        return []

    def _of_the_step(self) -> tuple[str, int, int]:
        """Return where the step was written, and which of root's calls gave it its name, and made that durable."""
        calls = self.logs[0]
        name = layout.step_dirname(self.newest + (0 if self.scene.action == "overwrite" else 1))
        moves = [n for n, call in enumerate(calls) if call.kind == "rename" and call.path.endswith(f"/{name}")]
        created = [call.path for call in calls[: moves[0]] if call.kind == "create"]
        made = [path for path in created if path.endswith(layout.MANIFEST)]
        syncs = [n for n, call in enumerate(calls) if call.kind == "fsync" and call.path == str(self.directory)]
        return str(Path(made[-1]).parent), moves[0], next((n for n in syncs if n > moves[0]), -1)

    def _judge_storage(self, told: Told) -> list[str]:
        """Check that all that is visible is whole, and that what was there before still is."""
        is_committed = told.error is None and self.scene.action != "restore"
        is_again = self.scene.action == "overwrite"
        problems = []
        steps = set(discovery.step_numbers(self.directory))
        target = self.newest + (0 if is_again or self.scene.action == "restore" else 1)
        for step in steps:
            problems += self._judge_step(step, step == target and not is_committed and self.scene.action != "restore")
        if is_committed and target not in steps:
            problems.append(f"step {target} was committed, and is not there")
        if self.newest and max(steps, default=0) < self.newest:
            problems.append(f"step {self.newest} is gone: {steps}")
        is_new = not is_again and self.scene.action != "restore"
        if told.error is not None and is_new and target in steps and not self._could_not_undo():
            problems.append(f"step {target} failed, and is visible")
        return problems

    def _could_not_undo(self) -> bool:
        """Return True if the rename that takes the step's name away again failed too."""
        renames = [call for call in self._failed() if call.kind == "rename"]
        return bool(renames) and self.trial.last - self.trial.first > 1

    def _judge_step(self, step: int, is_uncertain: bool) -> list[str]:
        """Check one visible step; of one that failed in the end the old or the new content may be there."""
        info = discovery.inspect_step(self.directory, step)
        if info.manifest is None:
            return [f"step {step} is visible, and not whole: {info.problem}"]
        damaged = open_step(info.path).verify()
        if damaged:
            return [f"step {step} is visible, and damaged: {damaged}"]
        loaded = hc.load(info.path)
        version = int(loaded["version"][1])
        wanted = self.versions.get(step, 0)
        if version != wanted and not (is_uncertain and version == wanted + 1):
            return [f"step {step} holds version {version} instead of {wanted}"]
        wrong = differences(loaded, self.scene.size, step, version, info.manifest.n_ranks)
        return [f"step {step} holds other values of {wrong}"] if wrong else self._judge_files(info.path)

    def _judge_files(self, path: Path) -> list[str]:
        """Check that no file is visible whose fsync failed."""
        files = [file for file in path.rglob("*") if file.is_file() and file.stat().st_ino in self.poisoned]
        return [f"{file} is visible, and its fsync failed" for file in files]

    # -- afterwards ------------------------------------------------------------------------------------

    def _go_on(self, ckpt: hc.Checkpointer, every: list[Told]) -> list[str]:
        """Save once more, without a fault, and close."""
        told = every[0]
        if told.error is None and self.scene.action in {"save", "reopen"}:
            self.newest += 1
        try:
            if self.scene.action == "restore":
                again = self._restore(ckpt, time.monotonic())
                if again.step != self.newest or again.wrong:
                    return [f"without a fault step {again.step} was restored, with other values of {again.wrong}"]
            else:
                is_left = self.newest + 1 in self.comm.allgather(discovery.step_numbers(self.directory))[0]
                self.comm.barrier()
                self._save(ckpt, self.newest + 1, overwrite=is_left)
                self.newest += 1
        except Exception:  # noqa: BLE001 - it is what the trial is about
            return [f"rank {self.comm.rank}: the next one, without a fault, failed:\n{traceback.format_exc()}"]
        finally:
            ckpt.close()
        return []

    def _check_end(self) -> list[str]:
        """Check that the directory is tidy, and that the newest step comes back on another number of ranks."""
        hidden = [name for name in os.listdir(self.directory) if name.startswith(".") and name != layout.PINS]
        problems = [f"left behind: {hidden}"] if hidden else []
        steps = discovery.step_numbers(self.directory)
        if steps != list(range(max(1, self.newest - KEPT + 1), self.newest + 1)):
            problems.append(f"there are the steps {steps}, and {self.newest} is the newest")
        for step in steps:
            problems += self._judge_step(step, is_uncertain=False)
        if not self.newest:
            return [*problems, "there is no step"]
        return problems + _restore_elsewhere(self.directory, self.scene, self.newest, self.versions[self.newest])


def _restore_elsewhere(directory: Path, scene: Scene, step: int, version: int) -> list[str]:
    def body(comm: Any) -> list[str]:
        state = State(scene.size, comm.rank, comm.size)
        with hc.Checkpointer(directory, comm=comm) as ckpt:
            restored = ckpt.restore(state.tree)
        return state.differences(step, version, n_ranks_saved=restored.n_ranks) or [""] * (restored.step != step)

    wrong = [names for names in run_ranks(1 + scene.n_ranks % 3, body) if names]
    return [f"step {step} does not come back on another number of ranks: {wrong}"] if wrong else []


class _Ender:
    """Ends the thread that comes to a phase, once: as if it had never been."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.is_done = trial, False

    def __call__(self, phase: str, rank: int) -> None:
        if (phase, rank) == (self.trial.phase, self.trial.phase_rank) and not self.is_done:
            self.is_done = True
            raise random.Random(self.trial.variant).choice([SystemExit(1), MemoryError("no memory"), OSError(5, "x")])


def _die_young(trial: Trial, scene: Scene) -> None:
    """Save some steps and be killed in the next save."""
    from hpcckpt.testing import faults

    def body(comm: Any) -> None:
        state = State(scene.size, comm.rank, comm.size)
        ckpt = hc.Checkpointer(trial.directory, comm=comm, max_to_keep=KEPT)
        for step in range(1, scene.n_before + 1):
            state.become(step, 1)
            ckpt.save(step, state.tree).result()
        if comm.rank == 0:
            faults.arm(faults.Fault("4-durable"))
        comm.barrier()
        state.become(step + 1, 1)
        ckpt.save(step + 1, state.tree).result()

    run_ranks(scene.n_ranks, body)
    os._exit(0)


def _describe(error: Exception) -> tuple[str, str, str]:
    if isinstance(error, HpcckptError):
        kinds = sorted(set(error.kinds.values())) if isinstance(error, CollectiveError) else [error.kind]
        return type(error).__name__, "+".join(kinds), str(error)
    return type(error).__name__, "not ours", str(error)


def _error_name(number: int) -> str:
    return errno.errorcode.get(number, {100000: "short", FULL: "no room", LOST: "answer lost"}.get(number, str(number)))


# -- ways to play ------------------------------------------------------------------------------------


def play_on_threads(trial: Trial, shim: Shim) -> dict[str, Any]:
    """Play a trial on threads as ranks; they share one shim."""
    n_ranks = SCENES[trial.scene].n_ranks
    results = run_ranks(n_ranks, lambda comm: _Rank(trial, shim, comm, arms=comm.rank == 0).play(), 60.0)
    return _together(results)


def _together(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {**results[0], "problems": [text for result in results for text in result["problems"]]}


def play_on_mpi(shim: str, text: str) -> None:
    """Play a trial as one rank of MPI; rank 0 prints the result."""
    from hpcckpt.collective.mpi import world

    trial, comm = Trial.from_json(text), world()
    try:
        result = _Rank(trial, Shim(shim), comm, arms=True).play()
        results = comm.allgather(result)
    except BaseException:  # noqa: BLE001 - the other ranks are waiting
        sys.stderr.write(f"[rank {comm.rank}] {traceback.format_exc()}")
        sys.stderr.flush()
        comm.abort(3)
    if comm.rank == 0:
        sys.stdout.write("RESULT " + json.dumps(_together(results)) + "\n")


def _play_in_child(trial: Trial, shim: Shim, log: Path) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        try:
            result = play_on_threads(trial, shim)
        except BaseException:  # noqa: BLE001 - the server hears of it
            result = {"problems": [traceback.format_exc()]}
        os.write(writer, json.dumps(result).encode())
        os._exit(0)
    os.close(writer)
    answer = _wait(pid, reader)
    os.close(reader)
    if answer is None:
        return {
            "is_hung": True,
            "problems": [f"no end after {CHILD_TIMEOUT_S} s\n{log.read_text(encoding='utf-8')[-6000:]}"],
        }
    return json.loads(
        answer or json.dumps({"problems": ["the process died: " + log.read_text(encoding="utf-8")[-3000:]]})
    )


def _wait(pid: int, reader: int) -> bytes | None:
    """Return what a child says; ``None`` if it says nothing in time, and is ended."""
    import select

    answer, deadline = b"", time.monotonic() + CHILD_TIMEOUT_S
    while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(reader, 1 << 20)
        answer += part
        if not part:
            os.waitpid(pid, 0)
            return answer
    os.kill(pid, signal.SIGUSR1)
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def serve(shim_path: str) -> None:
    """Play the trials that come in lines, until there are no more."""
    shim = Shim(shim_path)
    for line in sys.stdin:
        trial = Trial.from_json(line)
        result = _play_in_child(trial, shim, Path(trial.directory).with_suffix(".log"))
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Serve, or play one trial as a rank of MPI."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    warnings.simplefilter("error")
    _mutants.apply_from_environment()
    if len(sys.argv) > 2:
        play_on_mpi(*sys.argv[1:])
    else:
        serve(sys.argv[1])


if __name__ == "__main__":
    main()
