"""The commands of PBS, Cobalt, PALS and ALPS as far as our scripts use them, over a directory in place of a server.

What they are given is checked against what is documented, and what is not documented is an error; jobs are queued here,
and run by `batch_server`.  Launchers hand over to the real mpirun.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SERVER = "STANDIN_SERVER"
"""The variable with the directory that simulates the server."""


def die(text: str, code: int = 2) -> None:
    """Complain as a command does, and end."""
    sys.stderr.write(f"{Path(sys.argv[0]).name}: {text}\n")
    sys.exit(code)


# -- the queue -------------------------------------------------------------------------------------


def server() -> Path:
    """Return the directory of the server."""
    return Path(os.environ[SERVER])


def jobs(directory: Path | None = None) -> list[dict[str, Any]]:
    """Return all jobs, oldest first, of this server, or of that of a directory."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((directory or server()).glob("job-*.json"))]


def write(job: Mapping[str, Any], directory: Path | None = None) -> None:
    """Write what is known of a job."""
    ((directory or server()) / f"job-{job['number']:04d}.json").write_text(json.dumps(job, indent=1), encoding="utf-8")


def find(job_id: str) -> dict[str, Any]:
    """Return a job by its id."""
    found = next((job for job in jobs() if job["id"] == job_id), None)
    if found is None:
        die(f"Unknown Job Id {job_id}", 153)
        raise AssertionError
    return found


def submission(dialect_name: str) -> tuple[Path, list[str], list[tuple[str, str]]]:
    """Check a command line and its script; return the script, its words, and all options, the last of each last."""
    from tests.support.jobs.directives import DIALECTS, check_script, missing, read_script, read_words

    dialect = DIALECTS[dialect_name]
    given, rest, problems = read_words(sys.argv[1:], dialect, "the command line")
    if problems:
        die("; ".join(map(str, problems)))
    if not rest or not Path(rest[0]).is_file():
        die(f"no script: {rest}")
    script = Path(rest[0])
    text = script.read_text(encoding="utf-8")
    inside, _ = read_script(text, dialect)
    problems = check_script(text, dialect) + missing([*inside, *given], dialect)
    if problems:
        die("; ".join(map(str, problems)))
    return script, rest[1:], [(one.name, one.value) for one in (*inside, *given)]


# -- PBS -------------------------------------------------------------------------------------------


def pbs_qsub() -> None:
    """Queue a job of PBS: the script is copied, what the directives and the command line ask for is remembered."""
    from tests.support.jobs.directives_values import split_resources

    script, words, options = submission("pbs")
    if words:
        die(f"a script takes no words in PBS: {words}")
    asked = dict(options)
    resources = dict(pair for name, value in options if name == "-l" for pair in split_resources(value))
    if "filesystems" not in resources:
        die("Resource: filesystems is required to be set.")
    depend = [value.removeprefix("depend=") for name, value in options if name == "-W" and value.startswith("depend=")]
    for known in (each for one in depend for each in one.split(":")[1:]):
        find(known)
    number = len(jobs()) + 1
    spool = server() / f"{number}.SC"
    shutil.copyfile(script, spool)
    spool.chmod(0o755)
    write({
        "number": number, "id": f"{number}.standin", "state": "Q", "name": asked.get("-N", script.name),
        "queue": asked.get("-q", "workq"), "account": asked["-A"], "resources": resources, "run_count": 0,
        "variables": _variables(options), "depend": depend, "workdir": os.getcwd(), "spool": str(spool),
    })  # fmt: skip
    print(f"{number}.standin")


def _variables(options: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return what -v forwards: a name without a value means the value here."""
    listed = [part for name, value in options if name == "-v" for part in value.split(",")]
    pairs = [part.partition("=") for part in listed]
    unset = [name for name, equals, _ in pairs if not equals and name not in os.environ]
    if unset:
        die(f"cannot send environment with the job: {', '.join(unset)}")
    return {name: value if equals else os.environ[name] for name, equals, value in pairs}


def pbs_qstat() -> None:
    """Print a job as qstat -f -F json does."""
    if sys.argv[1:4] != ["-f", "-F", "json"] or len(sys.argv) != 5:
        die(f"usage: qstat -f -F json JOB, not {sys.argv[1:]}")
    job = find(sys.argv[4])
    started = ["PBS_O_WORKDIR", "PBS_O_QUEUE"]
    print(json.dumps({"Jobs": {job["id"]: {
        "Job_Name": job["name"], "Account_Name": job["account"], "queue": job["queue"], "job_state": job["state"],
        "Resource_List": job["resources"], "run_count": job["run_count"], "stime": job.get("stime"),
        "Variable_List": {**dict.fromkeys(started, "x"), **job["variables"]},
    }}}))  # fmt: skip


def pbs_qselect() -> None:
    """Tell the ids of jobs that have a name and a state."""
    words = sys.argv[1:]
    if len(words) != 4 or words[0] != "-N" or words[2] != "-s":
        die(f"usage: qselect -N NAME -s STATES, not {words}")
    for job in jobs():
        if job["name"] == words[1] and job["state"] in words[3]:
            print(job["id"])


def pbs_qdel() -> None:
    """Take jobs out of the queue."""
    for job_id in sys.argv[1:]:
        write({**find(job_id), "state": "F", "code": None})


# -- Cobalt ----------------------------------------------------------------------------------------


def cobalt_qsub() -> None:
    """Queue a job of Cobalt: the script stays where it is, and a log tells how it was submitted."""
    from tests.support.jobs.directives import DIALECTS, read_script

    script, words, options = submission("cobalt")
    if not os.access(script, os.X_OK):
        die(f"command {script} is not executable")
    number = len(jobs()) + 1
    asked = dict(options)
    variables = [part for name, value in options if name == "--env" for part in re.split(r":(?=\w+=)", value)]
    write({
        "number": number, "id": str(number), "state": "Q", "nodes": int(asked["-n"]), "time": asked["-t"],
        "variables": dict(part.split("=", 1) for part in variables), "depend": [], "workdir": os.getcwd(),
        "words": [str(script.absolute()), *words],
    })  # fmt: skip
    inside, _ = read_script(script.read_text(encoding="utf-8"), DIALECTS["cobalt"])
    argv = ["--mode", "script", *(word for one in inside for word in one[1:] if word), *sys.argv[1:]]
    log = f"Jobid: {number}\nqsub {' '.join(argv)}\nsubmitted with cwd set to: {os.getcwd()}\n"
    Path(f"{number}.cobaltlog").write_text(log, encoding="utf-8")
    print(number)


# -- launchers -------------------------------------------------------------------------------------

PALS = {
    "-n": "COUNT", "--np": "COUNT", "--ppn": "COUNT", "--depth": "COUNT", "--cpu-bind": "CPU", "--mem-bind": "TEXT",
    "--gpu-bind": "TEXT", "--env": "ENV", "--hostfile": "PATH", "--wdir": "PATH", "--pmi": "TEXT", "--envall": "",
    "--line-buffer": "", "--label": "",
}  # fmt: skip
"""mpiexec of HPE's PALS, https://docs.alcf.anl.gov, "Running MPI+OpenMP Applications"."""
ALPS = {
    "-n": "COUNT", "-N": "COUNT", "-d": "COUNT", "-j": "CPUS", "-cc": "BIND", "-e": "ENV", "-S": "COUNT", "-ss": "",
    "-q": "", "-b": "", "-B": "", "-m": "TEXT", "-L": "TEXT", "-r": "COUNT",
}  # fmt: skip
"""aprun(1) of ALPS, S-2496."""
_VALUES = {
    "COUNT": r"[1-9]\d*",
    "CPU": r"(verbose,)?(none|depth|core|thread|numa|socket|list:\d+([-,]\d+)*(:\d+([-,]\d+)*)*)",
    "CPUS": r"[1-4]",
    "BIND": r"cpu|depth|numa_node|none|\d+([-,]\d+)*",
    "ENV": r"\w+=.*",
    "PATH": r".+",
    "TEXT": r".+",
}


def options_of(words: list[str], table: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the options of a command line and what follows; an option that is not in the table is an error."""
    given: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=") if rest[0].startswith("--") else (rest.pop(0), "", "")
        if name not in table:
            die(f"unrecognized option {name!r}")
        kind = table[name]
        if kind and not equals:
            value = rest.pop(0) if rest else ""
        if kind and not re.fullmatch(_VALUES[kind], value):
            die(f"{name}: {value!r} is no {kind}")
        if kind == "ENV":
            variable, _, text = value.partition("=")
            os.environ[variable] = text
        given[name] = value
    if not rest:
        die("no program")
    return given, rest


def launch(n_ranks: int, words: list[str]) -> None:
    """Become the real mpirun."""
    from tests.support.mpi.launch import clean_environment, find_mpirun

    launcher = find_mpirun()
    assert launcher is not None
    with (server() / "launched.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps({"by": Path(sys.argv[0]).name, "argv": sys.argv[1:], "n": n_ranks}) + "\n")
    sys.stdout.flush()
    environ = clean_environment(MPIRUN=launcher)
    os.execve(launcher, [launcher, "-n", str(n_ranks), "--bind-to", "none", *words], environ)


def pals_mpiexec() -> None:
    """Check what PALS is given, and launch."""
    given, words = options_of(sys.argv[1:], PALS)
    n_ranks, per_node = int(given["-n"]), int(given["--ppn"])
    n_nodes = len(set(Path(os.environ["PBS_NODEFILE"]).read_text(encoding="utf-8").split()))
    if n_ranks > n_nodes * per_node:
        die(f"{n_ranks} ranks do not fit on {n_nodes} nodes of {per_node}")
    if given.get("--cpu-bind") == "depth" and "--depth" not in given:
        die("--cpu-bind depth says nothing without --depth")
    listed = given.get("--cpu-bind", "").partition("list:")[2]
    if listed and len(listed.split(":")) < per_node:
        die(f"--cpu-bind names CPUs for fewer than {per_node} ranks")
    launch(n_ranks, words)


def alps_aprun() -> None:
    """Check what ALPS is given, and launch."""
    given, words = options_of(sys.argv[1:], ALPS)
    n_ranks, per_node = int(given["-n"]), int(given.get("-N", given["-n"]))
    n_nodes, per_core = int(os.environ["COBALT_JOBSIZE"]), int(given.get("-j", "1"))
    if n_ranks > n_nodes * per_node:
        die("claim exceeds reservation's node-count")
    if per_node * int(given.get("-d", "1")) > 64 * per_core:
        die("claim exceeds reservation's CPUs")
    if given.get("-cc") == "depth" and "-d" not in given:
        die("-cc depth says nothing without -d")
    launch(n_ranks, words)


# -- a site ----------------------------------------------------------------------------------------

MODULES = {
    "use": ["/soft/modulefiles"],
    "load": ["conda", "frameworks", "cce", "datascience/tensorflow-2.0", "cmake/3.14.5"],
    "swap": ["PrgEnv-intel PrgEnv-gnu"],
}


def site_module() -> None:
    """Note what is loaded; a module that the machines do not have is an error."""
    verb, *names = sys.argv[1:]
    if " ".join(names) not in MODULES.get(verb, []):
        die(f"Unable to locate a modulefile for {names}", 1)
    with (server() / "modules.txt").open("a", encoding="utf-8") as log:
        log.write(f"{verb} {' '.join(names)}\n")


def site_conda() -> None:
    """Know one environment."""
    if sys.argv[1:] != ["activate", "base"]:
        die(f"unknown: {sys.argv[1:]}", 1)
