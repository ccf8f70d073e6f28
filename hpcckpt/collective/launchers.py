"""Which launcher started this process, its rank and the number of ranks: read from the environment, never guessed.

1. Each launcher sets its variables; those of one launcher are a *claim*: rank, size, index on the node.
2. A claim that is provably of another job or step is dropped: PMIx names the Slurm step that it belongs to, and what
   Slurm exports into a batch script or an interactive step is no rank.  A batch script that was submitted
   from a step has that step's variables too: the ancestors of a process show which step it is of (`ancestry`).
3. Another launcher may run within Slurm: mpirun in an allocation starts one daemon per node by ``srun``, and people
   work in ``srun --pty bash``.  Such a step, of one task or of one per node, is ignored.
4. All other claims must agree.  Where they do not, none is chosen: the error names the variables.

``HPCCKPT_LAUNCHER`` chooses a launcher where the environment is ambiguous.  All but `here` is pure.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

Environ = Mapping[str, str]
OVERRIDE = "HPCCKPT_LAUNCHER"
NOBODY = "none"
_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # Slurm's numbers for batch scripts, interactive and external steps
_MAX_RANKS = 1 << 31


class Fact(NamedTuple):
    """A number, and the variable that says so."""

    value: int
    variable: str

    def __str__(self) -> str:
        return f"{self.variable}={self.value}"


@dataclass(frozen=True, slots=True)
class Launch:
    """What one launcher, or several that agree, say about this process; ``None`` is what they leave open.

    Attributes
    ----------
    launcher : str
        Who started it.
    rank, size, local_rank, local_size, node, n_nodes : Fact or None
        Its number among all ranks and theirs, among those of its node and theirs, and of its node and theirs.
    """

    launcher: str
    rank: Fact | None = None
    size: Fact | None = None
    local_rank: Fact | None = None
    local_size: Fact | None = None
    node: Fact | None = None
    n_nodes: Fact | None = None

    def __str__(self) -> str:
        rank = "a rank" if self.rank is None else f"rank {self.rank.value} ({self.rank.variable})"
        size = "?" if self.size is None else f"{self.size.value} ({self.size.variable})"
        return f"{rank} of {size} by {self.launcher}"


_ASPECTS = ("rank", "size", "local_rank", "local_size", "node", "n_nodes")


@dataclass(frozen=True, slots=True)
class Reading:
    """What the environment says.

    Attributes
    ----------
    launch : Launch or None
        Who started this process; ``None`` if no launcher did, or if they disagree and none is nearer than the others.
    disagreements : tuple of str
        What does not fit together, each with the variables; then `launch` is only the nearest guess.
    """

    launch: Launch | None
    disagreements: tuple[str, ...] = ()

    def problem(self) -> str:
        """Return the disagreements as one text with what to do; "" if there are none."""
        if not self.disagreements:
            return ""
        return (
            f"who started this process is not clear: {'; '.join(self.disagreements)}; unset what is left from another "
            f"job (env -u NAME …), start with one launcher only, or say whom to believe: "
            f"{OVERRIDE}={'|'.join([*_READERS, NOBODY])}"
        )


# -- claims ----------------------------------------------------------------------------------------


def _fact(environ: Environ, *names: str) -> Fact | None:
    for name in names:
        value = environ.get(name, "").strip()
        if value.isascii() and value.isdigit() and len(value) < 11 and int(value) < _MAX_RANKS:
            return Fact(int(value), name)
    return None


def _claim(launcher: str, environ: Environ, **names: tuple[str, ...]) -> Launch | None:
    facts = {aspect: _fact(environ, *those) for aspect, those in names.items()}
    if facts.get("rank") is None and facts.get("size") is None:
        return None
    return Launch(launcher, **facts)


def _openmpi(environ: Environ) -> Launch | None:
    own = "OMPI_COMM_WORLD_"
    return _claim(
        "Open MPI's mpirun", environ, rank=(f"{own}RANK",), size=(f"{own}SIZE",),
        local_rank=(f"{own}LOCAL_RANK",), local_size=(f"{own}LOCAL_SIZE",),
    )  # fmt: skip


def _pals(environ: Environ) -> Launch | None:
    return _claim(
        "PALS' mpiexec", environ, rank=("PALS_RANKID",), size=("PALS_SIZE",), local_rank=("PALS_LOCAL_RANKID",),
        local_size=("PALS_LOCAL_SIZE",), node=("PALS_NODEID",),
    )  # fmt: skip


def _alps(environ: Environ) -> Launch | None:
    return _claim("aprun", environ, rank=("ALPS_APP_PE",))


def _pmi(environ: Environ) -> Launch | None:
    return _claim(
        "a launcher with PMI", environ, rank=("PMI_RANK",), size=("PMI_SIZE",),
        local_rank=("PMI_LOCAL_RANK", "MPI_LOCALRANKID"), local_size=("PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"),
    )  # fmt: skip


def _pmix(environ: Environ) -> Launch | None:
    step = _step_of_pmix(environ)
    if step is not None and step != _step(environ):
        return None  # left by another step, from which this shell or job was started
    return _claim("a launcher with PMIx", environ, rank=("PMIX_RANK",), size=("PMIX_SIZE",))


def _slurm(environ: Environ) -> Launch | None:
    if _is_special(environ) or _fact(environ, "SLURM_STEP_NUM_TASKS") is None:
        return None  # a batch script has SLURM_PROCID=0 and SLURM_NTASKS, and is no rank
    if _is_heterogeneous(environ):  # whether sizes are those of one part or of all depends on the version
        return _claim("srun", environ, rank=("SLURM_PROCID",))
    claim = _claim(
        "srun", environ, rank=("SLURM_PROCID",), size=("SLURM_STEP_NUM_TASKS",), local_rank=("SLURM_LOCALID",),
        node=("SLURM_NODEID",), n_nodes=("SLURM_STEP_NUM_NODES",),
    )  # fmt: skip
    return claim and _with_local_size(claim, environ)


def _is_heterogeneous(environ: Environ) -> bool:
    n_parts = _fact(environ, "SLURM_HET_SIZE")
    return n_parts is not None and n_parts.value > 1


def _is_special(environ: Environ) -> bool:
    """Return True if the step is a special one of Slurm: a batch script's, an interactive shell's."""
    text = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    return text.isascii() and text.isdigit() and int(text[:20]) >= _FIRST_SPECIAL_STEP


_READERS: dict[str, Callable[[Environ], Launch | None]] = {
    "openmpi": _openmpi,
    "pals": _pals,
    "alps": _alps,
    "pmi": _pmi,
    "pmix": _pmix,
    "slurm": _slurm,
}


def _is_of_another(step: str, environ: Environ) -> bool:
    """Return True if Slurm's variables are of another step than this process's `step`; "" is unknown."""
    job, _, number = step.partition(".")
    said = _step(environ)
    if not step or said is None:
        return False
    is_one_job = said[0] and not _is_heterogeneous(environ)  # each part of such a job has its number
    return number != said[1] or (bool(is_one_job) and job != said[0])


def _step(environ: Environ) -> tuple[str, str] | None:
    """Return job and step of this process by Slurm's variables."""
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    return (environ.get("SLURM_JOB_ID", environ.get("SLURM_JOBID", "")), step) if step else None


def _step_of_pmix(environ: Environ) -> tuple[str, str] | None:
    """Return the job and the step of Slurm for which PMIx was set up; ``None`` if another launcher did."""
    found = re.fullmatch(r"slurm\.pmix\.(\d{1,20})\.(\d{1,20})", environ.get("PMIX_NAMESPACE", ""))
    return (found[1], found[2]) if found else None


def tasks_per_node(text: str) -> list[int]:
    """Read Slurm's short form of tasks per node, ``2(x3),1``; [] if it is none. Pure."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"(\d{1,7})(?:\(x(\d{1,7})\))?", part.strip(), re.ASCII)
        if match is None or int(match[2] or 1) > 1 << 20:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _with_local_size(claim: Launch, environ: Environ) -> Launch:
    per_node = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if claim.node is None or claim.node.value >= len(per_node):
        return claim
    return replace(claim, local_size=Fact(per_node[claim.node.value], "SLURM_STEP_TASKS_PER_NODE"))


# -- whether they agree ----------------------------------------------------------------------------


def here() -> Reading:
    """Return who started this process, or what does not fit together. Independent."""
    step = slurm_step() if any(name in os.environ for name in ("SLURM_STEP_ID", "SLURM_STEPID")) else ""
    return read(os.environ, step)


def read(environ: Environ, step: str = "") -> Reading:
    """Return who started this process, or what does not fit together. Pure.

    Parameters
    ----------
    environ : mapping
        The environment.
    step : str, optional
        The step of Slurm that the process is of, ``7.0`` or ``7.batch``, as the system tells; "" where it does not.
    """
    chosen = environ.get(OVERRIDE, "").strip().lower()
    if chosen:
        return _chosen(chosen, environ)
    if _is_of_another(step, environ):
        environ = {name: value for name, value in environ.items() if not _is_of_slurm(name, environ)}
    claims = _alive([claim for reader in _READERS.values() if (claim := reader(environ))], environ)
    claims = _without_carrier(claims)
    wrong = [text for claim in claims for text in _within(claim, environ)]
    wrong += [text for one, other in itertools.combinations(claims, 2) for text in _between(one, other)]
    return Reading(_joined(claims), tuple(dict.fromkeys(wrong)))


def _is_of_slurm(name: str, environ: Environ) -> bool:
    """Return True if a step of Slurm set this variable; srun's PMIx shows it in its name space."""
    return name.startswith("SLURM_STEP") or (name.startswith("PMIX_") and _step_of_pmix(environ) is not None)


def _chosen(name: str, environ: Environ) -> Reading:
    if name == NOBODY:
        return Reading(None)
    if name not in _READERS:
        return Reading(None, (f"{OVERRIDE}={name} is no launcher",))
    claim = _READERS[name](environ)
    if claim is None:
        return Reading(None, (f"{OVERRIDE}={name}, but there is nothing of it in the environment",))
    return Reading(claim, tuple(_within(claim, environ)))


def _alive(claims: Sequence[Launch], environ: Environ) -> list[Launch]:
    """Leave out what mpirun left around a step of Slurm: with PMIx it would have put its own name there."""
    step = _step_of_pmix(environ)
    if step is None or step != _step(environ):
        return list(claims)
    return [claim for claim in claims if claim.launcher != "Open MPI's mpirun"]


def _without_carrier(claims: list[Launch]) -> list[Launch]:
    """Leave out a step of Slurm that only carries another launcher."""
    inner = [claim for claim in claims if claim.launcher != "srun"]
    outer = next((claim for claim in claims if claim.launcher == "srun"), None)
    if outer is None or not inner:
        return claims
    is_one_per_node = outer.n_nodes is not None and outer.size is not None and outer.n_nodes.value == outer.size.value
    is_carrier = is_one_per_node or (outer.size is not None and outer.size.value == 1)
    differs = any(next(_between(claim, outer), "") for claim in inner)
    return inner if is_carrier and differs else claims


def _between(one: Launch, other: Launch) -> Iterator[str]:
    """Yield where two launchers disagree."""
    for aspect in _ASPECTS:
        mine, theirs = getattr(one, aspect), getattr(other, aspect)
        if mine is not None and theirs is not None and mine.value != theirs.value:
            yield f"{one.launcher} says {mine}, {other.launcher} says {theirs}"


def _within(claim: Launch, environ: Environ) -> Iterator[str]:
    """Yield what one launcher says that cannot be."""
    for small, great in (("rank", "size"), ("local_rank", "local_size"), ("node", "n_nodes")):
        index, count = getattr(claim, small), getattr(claim, great)
        if index is not None and count is not None and index.value >= count.value:
            yield f"{claim.launcher} says {index} and {count}: there is no such {small.replace('_', ' ')}"
    for part, whole in (("local_size", "size"), ("n_nodes", "size")):
        less, more = getattr(claim, part), getattr(claim, whole)
        if less is not None and more is not None and less.value > more.value:
            yield f"{claim.launcher} says {less} and {more}: the one cannot be the greater"
    if claim.launcher == "srun":
        yield from _nodes_of_slurm(claim, environ)


def _nodes_of_slurm(claim: Launch, environ: Environ) -> Iterator[str]:
    n_tasks = _fact(environ, "SLURM_NTASKS")
    if n_tasks is not None and claim.size is not None and n_tasks.value != claim.size.value:
        yield f"srun says {claim.size} and {n_tasks}: within a step they are equal"
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    per_node = tasks_per_node(text)
    said = f"SLURM_STEP_TASKS_PER_NODE={text}"
    if per_node and claim.size is not None and sum(per_node) != claim.size.value:
        yield f"srun says {claim.size} and {said}: these are {sum(per_node)} tasks"
    if per_node and claim.n_nodes is not None and len(per_node) != claim.n_nodes.value:
        yield f"srun says {claim.n_nodes} and {said}: these are {len(per_node)} nodes"


def _joined(claims: Sequence[Launch]) -> Launch | None:
    """Return what the claims say together; the first one counts where they differ."""
    if not claims:
        return None
    facts = {
        aspect: next((fact for claim in claims if (fact := getattr(claim, aspect)) is not None), None)
        for aspect in _ASPECTS
    }
    names = [claim.launcher for claim in claims if not claim.launcher.startswith("a launcher with")]
    return Launch(" and ".join(names) or claims[0].launcher, **facts)


# -- ancestors of this process --------------------------------------------------------------------


_TITLE = re.compile(rb"slurmstepd: \[(\d{1,20})\.(\w{1,20})\]")
_MAX_DEPTH = 64


def slurm_step() -> str:
    """Return the step of Slurm that this process is of, ``7.0`` or ``7.batch``; "" where none is seen. Independent."""
    return _step_above(os.getpid())


@functools.lru_cache(maxsize=2)
def _step_above(pid: int, processes: Path = Path("/proc")) -> str:
    for _ in range(_MAX_DEPTH):
        try:
            found = _TITLE.match((processes / str(pid) / "cmdline").read_bytes())
            stat = (processes / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        if found:
            return f"{found[1].decode()}.{found[2].decode()}"
        pid = int(stat.rpartition(")")[2].split()[1])
        if pid <= 0:
            return ""
    return ""
