"""What a batch script is asked for: read from what people write, and checked, every problem at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from hpcckpt.core.durations import duration_s, duration_text
from hpcckpt.errors import OptionError, Problem, list_problems
from hpcckpt.jobs.launchers import LAUNCHERS, without_env
from hpcckpt.jobs.site_profiles import SYSTEMS, System

SCHEDULERS = ("slurm", "pbs", "cobalt")
MAX_SIGNAL_S = 65535
"""How long before the end of a job Slurm may be asked for a signal."""
_MAX_NODES = 1_000_000
_WITH_VARIABLES = re.compile(r"([^\"$`\\]|\$\w+|\$\{\w+\})+", re.ASCII)
_NOT_IN_A_LINE = r"\x00-\x08\x0a-\x1f\x7f\ud800-\udfff"
"""Characters that no line of a script has; the last are bytes of a name that is not UTF-8."""
_INDEXES = r"\d{1,9}(-\d{1,9}(:[1-9]\d{0,8})?)?"
_FORMS = {
    "identifier": (r"\w[\w.@+,-]{0,99}", "a name: letters, figures, and . _ @ + , -"),
    "slurm array": (rf"{_INDEXES}(,{_INDEXES})*(%[1-9]\d{{0,8}})?", "indexes: 0-9, 1,3,5, 0-99%10"),
    "pbs array": (r"\d{1,9}-\d{1,9}(:[1-9]\d{0,8})?(%[1-9]\d{0,8})?", "a range: 0-9, 0-9:2, 0-99%10"),
}
"""Patterns of texts that are written into a script unchanged, and their descriptions for error messages."""
TASK = "{task}"
"""Placeholder for the number of a job within an array, in the program's arguments and in the run directory."""


@dataclass(frozen=True, slots=True)
class JobscriptRequest:
    """The options of ``hpcckpt jobscript`` as texts; None if an option is not given."""

    command: tuple[str, ...] = ()
    scheduler: str | None = None
    system: str | None = None
    nodes: str | None = None
    ranks_per_node: str | None = None
    gpus_per_node: str | None = None
    cpus_per_rank: str | None = None
    time: str | None = None
    account: str | None = None
    queue: str | None = None
    partition: str | None = None
    name: str | None = None
    run: str | None = None
    scratch: str | None = None
    filesystems: str | None = None
    array: str | None = None
    qos: str | None = None
    signal_lead: str | None = None
    grace: str | None = None
    max_restarts: str | None = None
    setup: str | None = None


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A valid job.

    Attributes
    ----------
    scheduler : str
        ``slurm``, ``pbs`` or ``cobalt``.
    system : System or None
        The machine, if it is one that is known.
    command : tuple of str
        The program that every rank runs.
    n_nodes, ranks_per_node, gpus_per_node, cpus_per_rank : int
        How large it is; 0 CPUs: whatever there are.
    has_own_cpus : bool
        Whether the number of CPUs per rank is not given, so that the machine's default division is used.
    seconds : int
        How long it may take.
    lead_s : int or None
        Seconds before its end at which it is signalled; None: computed from its saves.
    account, queue, name, scratch, filesystems, array, setup, qos : str
        As they are written into the script; "" is left out.
    run : pathlib.Path or None
        The run directory.
    max_restarts : int
        How often it is begun again.
    grace_s : int or None
        How long it may take to end when it is preempted; ``None``: it is not preempted, or this is not known.
    warnings : tuple of str
        What people should know, and what is no reason to refuse it.
    """

    scheduler: str
    system: System | None
    command: tuple[str, ...]
    n_nodes: int
    ranks_per_node: int
    gpus_per_node: int
    cpus_per_rank: int
    has_own_cpus: bool
    seconds: int
    lead_s: int | None
    account: str
    queue: str
    name: str
    run: Path | None
    scratch: str
    filesystems: str
    array: str
    setup: str
    max_restarts: int
    qos: str = ""
    grace_s: int | None = None
    warnings: tuple[str, ...] = ()


def read_request(request: JobscriptRequest) -> BatchJob:
    """Return the job that is asked for.

    Raises
    ------
    OptionError
        Naming everything that is wrong with it.
    """
    reader = _Reader(request)
    job = reader.read()
    if job is None or reader.problems:
        raise OptionError(list_problems(reader.problems))
    return job


class _Reader:
    """Reads a request value by value, and remembers what is wrong."""

    def __init__(self, request: JobscriptRequest) -> None:
        self.problems: list[Problem] = []
        self._asked = request

    def read(self) -> BatchJob | None:
        """Return the job; ``None``, or one that means nothing, if there are problems."""
        asked = self._asked
        self._check_lines()
        system = self._system()
        scheduler = self._scheduler(system)
        if scheduler is None:
            return None
        n_nodes = self._number("nodes", low=1, high=_MAX_NODES, needed=True)
        gpus = self._number("gpus_per_node", low=0, high=64, default=system.gpus if system else 0)
        ranks = self._number("ranks_per_node", low=1, high=4096, default=max(1, gpus))
        seconds = self._seconds("time", needed=True) or 0
        lead_s = self._lead(seconds, scheduler)
        cpus = self._number("cpus_per_rank", low=1, high=4096, default=_cpus(system, ranks))
        self._check_node(system, ranks, gpus, cpus)
        self._check_command()
        queue, warnings = self._queue(system, n_nodes, seconds)
        return BatchJob(
            scheduler, system, asked.command, n_nodes, ranks, gpus, cpus, asked.cpus_per_rank is None,
            seconds, lead_s,
            account=self._text("account"), queue=queue, name=self._name(scheduler),
            run=self._run(), scratch=self._scratch(system),
            filesystems=self._filesystems(scheduler, system), array=self._array(scheduler),
            setup=asked.setup or "", max_restarts=self._number("max_restarts", low=0, high=10_000, default=20),
            qos=self._qos(scheduler), grace_s=self._grace(scheduler),
            warnings=tuple(warnings),
        )  # fmt: skip

    # -- each value ------------------------------------------------------------------------------

    def _wrong(self, name: str, message: str) -> None:
        option = f"--{name.replace('_', '-')}" if name else "COMMAND"
        self.problems.append(Problem(option, message))

    def _check_lines(self) -> None:
        """Refuse what would not stay in its line: a batch script is read line by line."""
        for field in fields(self._asked):
            value = getattr(self._asked, field.name)
            if isinstance(value, str) and (not value.strip() or re.search(rf"[\t{_NOT_IN_A_LINE}]", value)):
                self._wrong(field.name, f"{value!r} is empty, or has characters that are not for a line of a script")

    def _system(self) -> System | None:
        name = self._asked.system
        if name is not None and name not in SYSTEMS:
            self._wrong("system", f"{name!r} – one of {', '.join(SYSTEMS)}; without it the script fits any machine")
        return SYSTEMS.get(name or "")

    def _scheduler(self, system: System | None) -> str | None:
        name = self._asked.scheduler or (system.scheduler if system else None)
        if name not in SCHEDULERS:
            what = "is needed" if name is None else f"{name!r}"
            self._wrong("scheduler", f"{what} – one of {', '.join(SCHEDULERS)}")
            return None
        if system is not None and name != system.scheduler:
            self._wrong("scheduler", f"{system.name} has {system.scheduler}, not {name}")
        return name

    def _number(self, name: str, *, low: int, high: int, default: int = 0, needed: bool = False) -> int:
        text = getattr(self._asked, name)
        if text is None:
            if needed:
                self._wrong(name, f"is needed – a number from {low}")
            return default
        if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
            self._wrong(name, f"{text!r} – a number from {low} to {high}")
            return max(default, low)
        return int(text)

    def _seconds(self, name: str, *, needed: bool = False) -> int | None:
        text = getattr(self._asked, name)
        if text is None:
            if needed:
                self._wrong(name, "is needed – such as 1:30:00, 2-12:00:00, 90m or 12h")
            return None
        try:
            seconds = round(duration_s(text))
        except OptionError as error:
            self._wrong(name, str(error))
            return None
        if needed and seconds < 1:  # schedulers take none for no limit
            self._wrong(name, f"{text!r} – a second at least")
        return seconds

    def _lead(self, seconds: int, scheduler: str) -> int | None:
        text = self._asked.signal_lead
        lead_s = int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else self._seconds("signal_lead")
        if lead_s is None:
            return None
        if lead_s < 1 or (seconds and lead_s >= seconds):
            self._wrong("signal_lead", f"{text!r} – from 1 s to less than the {duration_text(seconds)} of the job")
        elif scheduler == "slurm" and lead_s > MAX_SIGNAL_S:
            self._wrong("signal_lead", f"{text!r} – Slurm takes at most {MAX_SIGNAL_S} s")
        return lead_s

    def _grace(self, scheduler: str) -> int | None:
        text = self._asked.grace
        if text is not None and scheduler != "slurm":
            self._wrong("grace", f"{scheduler} gives a preempted job no time that is known; Slurm does")
            return None
        if text is not None and re.fullmatch(r"[0-9]{1,9}", text):  # as Slurm shows it: seconds
            return int(text)
        return self._seconds("grace")

    def _qos(self, scheduler: str) -> str:
        if self._asked.qos is not None and scheduler != "slurm":
            self._wrong("qos", f"{scheduler} has none: --queue says how a job is served")
        return self._text("qos")

    def _check_node(self, system: System | None, ranks: int, gpus: int, cpus: int) -> None:
        if system is None:
            return
        if gpus > system.gpus:
            self._wrong("gpus_per_node", f"{gpus} – a node of {system.name} has {system.gpus}")
        if ranks > system.threads:
            self._wrong("ranks_per_node", f"{ranks} – a node of {system.name} has {system.threads} hardware threads")
        elif ranks * cpus > system.threads:
            much = f"{ranks} ranks of {cpus} CPUs are {ranks * cpus}"
            self._wrong("cpus_per_rank", f"{much}, and a node of {system.name} has {system.threads}")

    def _check_command(self) -> None:
        words = self._asked.command
        program = without_env(words)
        if not program or not program[0]:
            self._wrong("", "no program: give it after --, such as -- hpcckpt train -c FILE --run RUN")
        elif launcher := _launcher(program):
            self._wrong("", f"the script starts the ranks itself: leave {launcher!r} and its options out")
        if any(re.search(f"[{_NOT_IN_A_LINE}]", word) for word in words):
            self._wrong("", "the program's words have characters that are not for a line of a script")

    def _text(self, name: str, form: str = "identifier") -> str:
        text = getattr(self._asked, name)
        pattern, meaning = _FORMS[form]
        if text is not None and not re.fullmatch(pattern, text, re.ASCII):
            self._wrong(name, f"{text!r} is not {meaning}")
        return text or ""

    def _queue(self, system: System | None, n_nodes: int, seconds: int) -> tuple[str, list[str]]:
        asked = self._asked
        if asked.queue and asked.partition and asked.queue != asked.partition:
            self._wrong("partition", f"{asked.partition!r}, but --queue says {asked.queue!r}: they mean the same")
        name = self._text("queue") or self._text("partition")
        if system is None or not n_nodes or not seconds:
            return name, []
        if not name:
            fitting = system.queue_for(n_nodes, seconds)
            if fitting is None:
                size = f"{n_nodes} nodes for {duration_text(seconds)}"
                self._wrong("queue", f"no queue of {system.name} that we know takes {size}: name one, or ask for less")
                return "", []
            return fitting.name, [f"queue {fitting.name}: {fitting.note}"] if fitting.note else []
        known = system.queue(name)
        if known is None:
            names = ", ".join(queue.name for queue in system.queues)
            return name, [f"queue {name}: not one of those of {system.name} that we know ({names})"]
        refusal = known.refusal(n_nodes, seconds)
        return name, [f"queue {name}: {reason}" for reason in (refusal, known.note) if reason]

    def _run(self) -> Path | None:
        run = self._asked.run
        if run and self._asked.array is not None and TASK not in run:
            self._wrong("run", f"{run!r} – with --array each job needs its own: write {TASK}, its number, into it")
        return Path(run) if run else None

    def _name(self, scheduler: str) -> str:
        if self._asked.name is not None:
            name = self._text("name")
            if scheduler == "pbs" and name.startswith("_"):
                self._wrong("name", f"{name!r} – PBS wants a letter or figure first")
            return name
        run = Path((self._asked.run or "").replace(f"/{TASK}", ""))
        found = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-._")
        return found[:60] or "hpcckpt"

    def _scratch(self, system: System | None) -> str:
        text = self._asked.scratch
        if text == "auto":
            return system.scratch if system else ""
        if text is not None and not text.startswith(("/", "$")):
            self._wrong("scratch", f"{text!r} – an absolute path, or 'auto'")
        elif text is not None and "$" in text and not _WITH_VARIABLES.fullmatch(text):
            self._wrong("scratch", f"{text!r} – of what the shell fills in only $NAME or ${{NAME}}")
        return text or ""

    def _filesystems(self, scheduler: str, system: System | None) -> str:
        text = self._asked.filesystems
        if text is None:
            return system.filesystems if system else ""
        if scheduler != "pbs":
            self._wrong("filesystems", f"{scheduler} does not take them; ALCF's PBS does")
        elif not re.fullmatch(r"[\w-]+(:[\w-]+)*", text):
            self._wrong("filesystems", f"{text!r} – names with : between, such as home:eagle")
        return text

    def _array(self, scheduler: str) -> str:
        text = self._asked.array
        if text is None:
            return ""
        if scheduler == "cobalt":
            self._wrong("array", "Cobalt has no job arrays: submit the script several times")
            return ""
        if not any(TASK in word for word in self._asked.command):
            self._wrong(
                "array",
                f"all its jobs would do the same in one place: write {TASK}, their number, into the program's words",
            )
        before = len(self.problems)
        self._text("array", form := f"{scheduler} array")
        ranges = re.findall(r"(\d+)-(\d+)", text)
        if len(self.problems) == before and any(int(low) > int(high) for low, high in ranges):
            self._wrong("array", f"{text!r} is not {_FORMS[form][1]}")
        return text


def _launcher(program: Sequence[str]) -> str:
    """Return the words that start a launcher of ranks; "" if a program is none. Pure."""
    words = [Path(program[0]).name, *program[1:]]
    if words[:2] == ["hpcckpt", "supervise"] or words[1:4] == ["-m", "hpcckpt", "supervise"]:
        return " ".join(program[: words.index("supervise") + 1])
    return program[0] if words[0] in LAUNCHERS | {"hpcckpt-supervise"} else ""


def _cpus(system: System | None, ranks: int) -> int:
    """Return the number of CPUs per rank if none is given: its part of the cores, then of the threads."""
    if system is None:
        return 0
    return max(1, system.cores // ranks)
