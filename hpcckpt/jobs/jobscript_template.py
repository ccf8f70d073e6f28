"""Batch scripts, filled in from one template for each scheduler: lines for the scheduler, and one command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from hpcckpt.jobs.jobscript import TASK, BatchJob
from hpcckpt.jobs.jobscript_lead_time import Lead
from hpcckpt.jobs.site_profiles import System

_TEMPLATES = Path(__file__).parent / "templates"
_BIND = "python -m hpcckpt.jobs.binding"
ADVICE = ": load it in $setup (HPCCKPT_SETUP names another file)"
SOURCE = """\
arguments=("$@") && set -- # a sourced file sees them, and may change them
trap 'echo "$setup ended the job with $?: a command in it failed" >&2' EXIT
# shellcheck source=/dev/null
. "$setup"
trap - EXIT
set -- "${arguments[@]}\""""
"""Lines of a shell that source the file ``$setup``."""
SETUP = f"""\
setup=${{HPCCKPT_SETUP:-$HOME/.hpcckpt.sh}} # modules of the site, an environment
case $setup in */*) ;; *) setup=./$setup ;; esac # a name alone would be looked up on PATH
if [ -r "$setup" ]; then
{indent(SOURCE, "    ")}
elif [ -n "${{HPCCKPT_SETUP:-}}" ]; then
    echo "HPCCKPT_SETUP: $setup cannot be read in $PWD on $(hostname): give the path of a file to source" >&2
    exit 2"""
"""Lines of a shell that source the user's file; the caller adds what else there is to do, and ``fi``."""
_TASKS = {"slurm": "SLURM_ARRAY_TASK_ID", "pbs": "PBS_ARRAY_INDEX"}


@dataclass(frozen=True, slots=True)
class TemplateTexts:
    """The texts of a script that are not in the job.

    Attributes
    ----------
    header : str
        Comments below the scheduler's lines.
    command : str
        The program, as the shell is to read it.
    run : str
        The run directory, as the shell is to read it; "" if there is none.
    inputs : str
        Lines that set variables which the other texts use.
    max_restarts : int or None
        ``None``: what the environment says.
    lead : str
        Seconds before its end at which a job is signalled, as the shell is to read it.
    setup : str
        Lines that load modules, if not those of the machine.
    """

    header: str
    command: str
    run: str = ""
    inputs: str = ""
    max_restarts: int | None = None
    lead: str = ""
    setup: str = ""


def fill(job: BatchJob, texts: TemplateTexts, lead_s: int) -> str:
    """Return the script of a job. Independent."""
    values = {
        "directives": "\n".join(_DIRECTIVES[job.scheduler](job, lead_s)),
        "header": texts.header,
        "setup": texts.setup or _setup(job),
        "advice": "" if job.setup else ADVICE,
        "inputs": texts.inputs,
        "walltime": clock(job.seconds),
        "ranks": str(job.ranks_per_node),
        "supervise": _supervise(job, texts),
        "launch": _LAUNCHES[job.scheduler](job),
        "command": f"{_BIND} {texts.command}" if job.gpus_per_node and job.scheduler != "slurm" else texts.command,
    }
    return substitute((_TEMPLATES / f"{job.scheduler}.sh.in").read_text(encoding="utf-8"), values)


def script_of(job: BatchJob, lead: Lead, words: Sequence[str], grace: str = "") -> str:
    """Return the script that people have asked for by `words`. Independent."""
    header = [f"# Made by: hpcckpt jobscript {shlex.join(words)}"]
    header.append(f"# Submit it by: {_submit(job)}; HPCCKPT_DRY_RUN=1 bash FILE shows what it would do.")
    header.append(f"# It is signalled to save and to stop {lead.seconds} s before its end: {lead.why}.")
    header += [f"# {grace}."] if grace else []
    header += [f"# Note: {warning}." for warning in job.warnings]
    inputs = _surroundings(job)
    if job.array:
        inputs.append(f"task=${{{_TASKS[job.scheduler]}:-0}}")
    run = _quoted(str(job.run), job) if job.run else ""
    command = " ".join(_quoted(word, job) for word in job.command)
    texts = TemplateTexts("\n".join(header), command, run, "\n".join(inputs), job.max_restarts, str(lead.seconds))
    return fill(job, texts, lead.seconds)


def substitute(template: str, values: Mapping[str, str]) -> str:
    """Put values in the place of ``@names@``; a line that is a name alone goes if its value is empty. Pure."""
    lines = []
    for line in template.splitlines():
        alone = re.fullmatch(r"@(\w+)@", line)
        if alone is None:
            lines.append(re.sub(r"@(\w+)@", lambda found: values[found[1]], line))
        elif values[alone[1]]:
            lines.append(values[alone[1]])
    return "\n".join(lines) + "\n"


def clock(seconds: int) -> str:
    """Return a duration as all three schedulers read it: HH:MM:SS. Pure."""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _quoted(word: str, job: BatchJob) -> str:
    """Return a word quoted for the shell; in an array, `TASK` becomes the number of the job."""
    if not job.array or TASK not in word:
        return shlex.quote(word)
    return '"$task"'.join(shlex.quote(part) if part else "" for part in word.split(TASK))


def _submit(job: BatchJob) -> str:
    program = "sbatch" if job.scheduler == "slurm" else "qsub"
    account = "" if job.account or job.scheduler == "slurm" else " -A PROJECT"
    return f"{program}{account} FILE" + (" (chmod +x FILE first)" if job.scheduler == "cobalt" else "")


def _surroundings(job: BatchJob) -> list[str]:
    """Return the lines that set what the program's step_environment_of are."""
    scratch = f'"{job.scratch}"' if "$" in job.scratch else shlex.quote(job.scratch)
    lines = [f"export HPCCKPT_SCRATCH={scratch}"] if job.scratch else []
    if job.gpus_per_node and job.system is not None and job.system.gpu_variable:
        lines.append(gpu_line(job.system))
    if job.gpus_per_node:
        lines.append(TENSORFLOW_LINE)
    return lines


TENSORFLOW_LINE = (
    "export TF_FORCE_GPU_ALLOW_GROWTH=${TF_FORCE_GPU_ALLOW_GROWTH:-true} "
    "TF_GPU_THREAD_MODE=${TF_GPU_THREAD_MODE:-gpu_private} # of a GPU's memory only what is needed; own threads for it"
)
"""The line that says how TensorFlow uses GPUs, unless the environment says so already."""


def gpu_line(system: System) -> str:
    """Return the line that says which GPUs ranks take, unless the environment says so already."""
    name, _, value = system.gpu_variable.partition("=")
    return f"export {name}=${{{name}:-{value}}} # one for each rank, before MPI starts"


def _setup(job: BatchJob) -> str:
    if job.setup:
        path = job.setup if "/" in job.setup else f"./{job.setup}"  # a name alone would be looked up on PATH
        return f"setup={shlex.quote(path)}\n{SOURCE}"
    lines = [SETUP]
    if job.system is not None:
        lines += ["elif command -v module >/dev/null; then", *(f"    {line}" for line in job.system.setup)]
    return "\n".join([*lines, "fi"])


def _supervise(job: BatchJob, texts: TemplateTexts) -> str:
    words = [f"--run {texts.run}"] if texts.run else []
    words += [f"--max-restarts {texts.max_restarts}"] if texts.max_restarts is not None else []
    words += [f"--lead {texts.lead}"] if job.scheduler != "slurm" else []  # Slurm sends a signal itself
    return " ".join(words)


# -- lines for the schedulers ----------------------------------------------------------------------


def _slurm_lines(job: BatchJob, lead_s: int) -> list[str]:
    output = "%x-%A_%a.out" if job.array else "%x-%j.out"
    asked = {
        "job-name": job.name, "account": job.account, "partition": job.queue, "qos": job.qos, "nodes": job.n_nodes,
        "ntasks-per-node": job.ranks_per_node, "cpus-per-task": job.cpus_per_rank, "gpus-per-node": job.gpus_per_node,
        "time": clock(job.seconds), "array": job.array, "signal": f"B:USR1@{lead_s}", "output": output,
    }  # fmt: skip
    lines = [f"#SBATCH --{name}={value}" for name, value in asked.items() if value]
    return [*lines, "#SBATCH --open-mode=append", "#SBATCH --requeue"]


def _pbs_lines(job: BatchJob, lead_s: int) -> list[str]:  # noqa: ARG001 - PBS sends no signal before the end
    chunk = f"system={job.system.name}" if job.system else _chunk(job)
    asked = {
        "-N": job.name, "-A": job.account, "-q": job.queue, "-l select": f"{job.n_nodes}:{chunk}",
        "-l place": "scatter", "-l walltime": clock(job.seconds), "-l filesystems": job.filesystems, "-J": job.array,
    }  # fmt: skip
    lines = [f"#PBS {name}{'=' if ' ' in name else ' '}{value}" for name, value in asked.items() if value]
    return [*lines, *(["#PBS -k doe"] if job.system else []), "#PBS -j oe", "#PBS -r y"]


def _chunk(job: BatchJob) -> str:
    needs = [f"ncpus={job.ranks_per_node * max(1, job.cpus_per_rank)}", f"mpiprocs={job.ranks_per_node}"]
    return ":".join([*needs, *([f"ngpus={job.gpus_per_node}"] if job.gpus_per_node else [])])


def _cobalt_lines(job: BatchJob, lead_s: int) -> list[str]:  # noqa: ARG001 - Cobalt sends no signal before the end
    first = [f"-n {job.n_nodes}", f"-t {clock(job.seconds)}", "--mode script"]
    first += [f"-q {job.queue}"] if job.queue else []
    first += [f"-A {job.account}"] if job.account else []
    lines = [f"#COBALT {' '.join(first)}", f"#COBALT --jobname {job.name}"]
    attrs = [job.system.attrs] if job.system and job.system.attrs else []
    attrs += ["ssds=required:ssd_size=128"] if job.scratch and job.system else []
    return [*lines, *([f"#COBALT --attrs {':'.join(attrs)}"] if attrs else [])]


_DIRECTIVES = {"slurm": _slurm_lines, "pbs": _pbs_lines, "cobalt": _cobalt_lines}


# -- launchers -------------------------------------------------------------------------------------


def _mpiexec(job: BatchJob) -> str:
    words = ['mpiexec -n "$((nodes * ranks))" --ppn "$ranks"']
    listed = dict(job.system.cpu_lists).get(job.ranks_per_node) if job.system and job.has_own_cpus else None
    if listed:
        words.append(f"--cpu-bind list:{listed}")
    elif job.cpus_per_rank:
        words.append(f"--depth {job.cpus_per_rank} --cpu-bind depth --env OMP_NUM_THREADS={job.cpus_per_rank}")
    return " ".join(words)


def _aprun(job: BatchJob) -> str:
    depth = job.cpus_per_rank or 1
    threads_per_core = -(-job.ranks_per_node * depth // (job.system.cores if job.system else 64))
    binding = f"-d {depth} -j {min(4, max(1, threads_per_core))} -cc depth -e OMP_NUM_THREADS={depth}"
    return f'aprun -n "$((nodes * ranks))" -N "$ranks" {binding}'


_LAUNCHES = {"slurm": lambda _: "", "pbs": _mpiexec, "cobalt": _aprun}  # srun is in the template
