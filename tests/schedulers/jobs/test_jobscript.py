"""``hpcckpt jobscript``: it prints what is right for the scheduler, and tells all that is wrong with a request."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcckpt.jobs.site_profiles import SYSTEMS
from tests.support.jobs.batch_server import ROOT
from tests.support.jobs.directives import DIALECTS, check_script, missing, read_script
from tests.support.jobs.laptop import dry_run

pytestmark = pytest.mark.one_case

Script = Callable[..., tuple[int, str, str]]
SIZE = ["--nodes", "2", "--time", "1:00:00"]
END = ["--", "hpcckpt", "train", "-c", "a config.hjson", "--run", "runs/a"]
REQUESTS = {
    "slurm": ["--scheduler", "slurm", "--ranks-per-node", "4", "--gpus-per-node", "4", "--partition", "gpu"],
    "slurm preemptible": ["--scheduler", "slurm", "--qos", "preempt", "--grace", "60"],
    "slurm array": ["--scheduler", "slurm", "--array", "1-8%2", "--account", "mine"],
    "pbs": ["--scheduler", "pbs", "--ranks-per-node", "4", "--cpus-per-rank", "8", "--filesystems", "home"],
    "pbs array": ["--scheduler", "pbs", "--array", "0-9"],
    "polaris": ["--system", "polaris", "--account", "mine", "--scratch", "auto"],
    "aurora": ["--system", "aurora", "--account", "mine", "--scheduler", "pbs"],
    "cobalt": ["--scheduler", "cobalt", "--ranks-per-node", "64", "--account", "mine"],
    "theta": ["--system", "theta", "--scratch", "auto", "--setup", "/home/ada/my setup.sh"],
}


def request_of(name: str) -> list[str]:
    """Return the words of one of `REQUESTS`."""
    program = ["--", "python", "t.py", "{task}"] if "array" in name else END
    return [*REQUESTS[name], *SIZE, "--run", "runs/{task}" if "array" in name else "runs/a", *program]


@pytest.fixture(scope="module")
def shellcheck() -> str:
    """The linter of shell scripts."""
    beside = ROOT / ".venv-lint" / "bin" / "shellcheck"
    found = shutil.which("shellcheck") or (str(beside) if beside.exists() else None)
    if found is None:
        pytest.skip("needs shellcheck")
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_its_lines_are_what_the_scheduler_documents(name: str, jobscript: Script) -> None:
    code, script, err = jobscript(*request_of(name))
    assert code == 0, err
    dialect = DIALECTS[{"polaris": "pbs", "aurora": "pbs", "theta": "cobalt"}.get(name, name.partition(" ")[0])]
    assert check_script(script, dialect) == []
    given, _ = read_script(script, dialect)
    lacking = {problem.message.split()[0] for problem in missing(given, dialect)}
    assert lacking <= ({"-A", "-l"} if name in {"pbs", "pbs array"} else set())


@pytest.mark.parametrize("name", REQUESTS)
def test_it_passes_shellcheck(name: str, jobscript: Script, shellcheck: str) -> None:
    _, script, _ = jobscript(*request_of(name))
    done = subprocess.run([shellcheck, "-"], input=script, capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize("name", REQUESTS)
def test_a_rehearsal_on_a_laptop_names_the_whole_command(name: str, jobscript: Script, tmp_path: Path) -> None:
    _, script, _ = jobscript(*request_of(name))
    (tmp_path / "setup").touch()
    script = script.replace("'/home/ada/my setup.sh'", str(tmp_path / "setup"))
    done = dry_run(tmp_path, script=script)
    assert done.returncode == 0, done.stderr
    started = next(line for line in done.stderr.splitlines() if "would start: " in line)
    words = shlex.split(started.partition("would start: ")[2])
    assert words[0] in {"srun", "mpiexec", "aprun"}
    assert words[-len(END) + 1 :] == END[1:] or words[-3:] == ["python", "t.py", "0"]


@pytest.mark.parametrize("setup", ["my env.sh", "./my env.sh"])
def test_a_relative_setup_is_below_where_a_pbs_job_was_submitted(setup: str, jobscript: Script, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / setup).write_text("echo sourced\n", encoding="utf-8")
    _, script, _ = jobscript("--scheduler", "pbs", *SIZE, "--setup", setup, *END)
    done = dry_run(tmp_path, script=script, PBS_O_WORKDIR=str(tmp_path / "work"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:1] == ["sourced"]


def test_a_node_is_counted_once_however_many_ranks_pbs_places_on_it(jobscript: Script, tmp_path: Path) -> None:
    _, script, _ = jobscript(*request_of("pbs"))
    (tmp_path / "nodes").write_text("n1\n" * 4 + "n2\n" * 4, encoding="utf-8")  # with mpiprocs=4, a line for each
    done = dry_run(tmp_path, script=script, PBS_NODEFILE=str(tmp_path / "nodes"))
    assert "would start: mpiexec -n 8 --ppn 4 " in done.stderr


@pytest.mark.parametrize("name", REQUESTS)
def test_an_empty_array_ends_no_script_under_bash_before_4_4(name: str, jobscript: Script) -> None:
    _, script, _ = jobscript(*request_of(name))
    assert "dry=()" in script
    assert unguarded(script) == []


def unguarded(script: str) -> list[str]:
    """Return the arrays that may be empty, which ``set -u`` took for unset, and that are used unguarded."""
    maybe_empty = set(re.findall(r"\b(\w+)=\(\)", script) + re.findall(r"read -ra (\w+)", script))
    return [name for name in maybe_empty if re.search(r'(?<!\+)"\$\{' + name + r'\[@\]\}"', script)]


@pytest.mark.parametrize("kind", ["pbs", "slurm", "theta"])
def test_nor_any_of_the_scripts_that_are_there(kind: str) -> None:
    found = {path.name: unguarded(path.read_text(encoding="utf-8")) for path in (ROOT / "scripts" / kind).iterdir()}
    assert {name: names for name, names in found.items() if names} == {}


def test_a_grace_time_that_is_enough_for_a_last_save_is_a_line_of_the_script(jobscript: Script) -> None:
    words = ["--scheduler", "slurm", *SIZE, "--qos", "preempt", *END]
    code, script, err = jobscript("--grace", "300", *words)
    assert (code, err) == (0, "")
    assert "#SBATCH --qos=preempt\n" in script
    assert "# If it is preempted it has 300 s (--grace) to save and to stop; it is requeued and resumes.\n" in script


@pytest.mark.parametrize("grace", ["0", "2m"])
def test_a_grace_time_that_is_too_short_for_a_last_save_is_a_warning(jobscript: Script, grace: str) -> None:
    code, script, err = jobscript("--scheduler", "slurm", "--grace", grace, *SIZE, *END)
    assert code == 0
    assert "If it is preempted" in script
    assert "warning: --grace: " in err


def test_what_only_slurm_has_is_refused_for_others(jobscript: Script) -> None:
    code, _, err = jobscript("--scheduler", "pbs", "--grace", "60", "--qos", "preempt", *SIZE, *END)
    assert code == 2
    assert "--grace: pbs" in err
    assert "--qos: pbs" in err


def test_programs_words_reach_the_program_as_they_were_given(jobscript: Script) -> None:
    nasty = ["python", "a b.py", "$HOME", "`id`", "it's", '"', "*", "\\", "{task}"]
    _, script, _ = jobscript("--scheduler", "slurm", *SIZE, "--", *nasty)
    line = script.splitlines()[-1]
    assert shlex.split(line) == nasty


def test_scratch_may_be_named_by_a_variable_of_the_node(jobscript: Script, tmp_path: Path) -> None:
    command = ["--", "python", "t.py"]
    _, script, _ = jobscript("--scheduler", "slurm", *SIZE, "--scratch", "${TMPDIR}/a b", *command)
    line = next(line for line in script.splitlines() if "HPCCKPT_SCRATCH" in line and line.startswith("export"))
    shown = dry_run(tmp_path, script=f'{line}\nprintf %s "$HPCCKPT_SCRATCH"', TMPDIR="/local/7")
    assert shown.stdout == "/local/7/a b"


def test_the_name_of_a_run_is_one_that_pbs_takes(jobscript: Script) -> None:
    _, script, _ = jobscript("--scheduler", "pbs", *SIZE, "--run", "runs/_a", "--", "train")
    assert "#PBS -N a\n" in script
    assert check_script(script, DIALECTS["pbs"]) == []


def test_gpus_are_bound_before_mpi_starts(jobscript: Script) -> None:
    _, polaris, _ = jobscript(*request_of("polaris"))
    assert 'mpiexec -n "$((nodes * ranks))" --ppn "$ranks" --depth 8 --cpu-bind depth' in polaris
    assert "python -m hpcckpt.jobs.binding hpcckpt train" in polaris
    assert "export HPCCKPT_GPUS=${HPCCKPT_GPUS:-3,2,1,0}" in polaris
    assert "export TF_FORCE_GPU_ALLOW_GROWTH=${TF_FORCE_GPU_ALLOW_GROWTH:-true} TF_GPU_THREAD_MODE=" in polaris
    _, aurora, _ = jobscript(*request_of("aurora"))
    assert "--cpu-bind list:1-8:9-16" in aurora
    assert "export ZE_AFFINITY_MASK=" in aurora
    _, theta, _ = jobscript(*request_of("theta"))
    assert "binding" not in theta
    assert "TF_GPU" not in theta


def test_each_job_of_an_array_has_its_own_number(jobscript: Script) -> None:
    words = [
        "--scheduler",
        "pbs",
        "--array",
        "0-9",
        *SIZE,
        "--run",
        "runs/{task}",
        "--",
        "train",
        "--seed={task}",
        "x y",
    ]
    _, script, _ = jobscript(*words)
    assert "task=${PBS_ARRAY_INDEX:-0}" in script
    assert '--run runs/"$task"' in script
    assert script.splitlines()[-1].strip() == "train --seed=\"$task\" 'x y'"


# -- the lead --------------------------------------------------------------------------------------


def signal_of(script: str) -> int:
    """Return the seconds that a script of Slurm asks for."""
    return int(script.partition("--signal=B:USR1@")[2].split()[0])


def tell(path: Path, *seconds: object) -> None:
    """Write a journal of saves that took so long, a torn line, and entries that are none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"event": "saved", "seconds": each}) for each in seconds]
    path.write_text("\n".join(['{"event": "start"}', "[1]", *lines, '{"event": "sav']), encoding="utf-8")


@pytest.mark.parametrize(
    ("saves", "lead"),
    [([100.0, 120.5, 3], 271), ([2.0], 60), ([15.0], 60), ([15.1], 61), (["nan", None, -4, 1e9], 300)],
)
def test_the_lead_is_twice_the_longest_measured_save_and_half_a_minute(
    saves: list[object], lead: int, jobscript: Script, tmp_path: Path
) -> None:
    tell(tmp_path / "run" / "cycle-1" / "journal.jsonl", *saves)
    code, script, err = jobscript("--scheduler", "slurm", *SIZE, "--run", str(tmp_path / "run"), "--", "train")
    assert code == 0, err
    assert signal_of(script) == lead
    assert f"stop {lead} s before its end: " in script


def test_the_log_of_a_training_will_do_where_there_is_no_journal(jobscript: Script, tmp_path: Path) -> None:
    tell(tmp_path / "log.jsonl", 50.0)
    _, script, _ = jobscript("--scheduler", "slurm", *SIZE, "--run", str(tmp_path), "--", "train")
    assert signal_of(script) == 130


def test_pbs_and_cobalt_are_warned_by_supervise_itself(jobscript: Script, tmp_path: Path) -> None:
    tell(tmp_path / "journal.jsonl", 50.0)
    for scheduler in ("pbs", "cobalt"):
        _, script, _ = jobscript("--scheduler", scheduler, *SIZE, "--run", str(tmp_path), "--", "train")
        assert "--lead 130 --" in script
    _, script, _ = jobscript("--scheduler", "pbs", *SIZE, "--signal-lead", "10m", "--", "train")
    assert "--lead 600 --" in script


def test_json_has_the_script_and_the_reason(jobscript: Script) -> None:
    code, out, _ = jobscript("--system", "polaris", "--nodes", "4", "--time", "6h", "--json", "--", "train")
    document = json.loads(out)
    assert code == 0
    assert document["scheduler"] == "pbs"
    assert document["script"].startswith("#!/bin/bash -l\n#PBS -N hpcckpt\n#PBS -q capacity\n")
    assert document["lead_seconds"] == 300
    assert "no run was given" in document["lead_reason"]


def test_what_does_not_fit_a_queue_is_a_warning(jobscript: Script) -> None:
    words = ["--system", "polaris", "--queue", "debug", "--nodes", "4", "--time", "2h", "--", "train"]
    code, script, err = jobscript(*words)
    assert code == 0
    assert "#PBS -q debug" in script
    assert "warning: queue debug: takes 1 to 2 nodes, not 4" in err
    _, script, err = jobscript("--system", "polaris", "--nodes", "8", "--time", "20h", "--", "train")
    assert "#PBS -q preemptable" in script
    assert "without warning" in err


# -- what is wrong ---------------------------------------------------------------------------------

GOOD = {"--scheduler": "pbs", "--nodes": "2", "--time": "1h"}
WRONG = [
    ({"--scheduler": None}, "--scheduler: is needed – one of slurm, pbs, cobalt"),
    ({"--scheduler": "lsf"}, "--scheduler: 'lsf' – one of slurm, pbs, cobalt"),
    ({"--system": "summit"}, "--system: 'summit' – one of polaris, aurora, theta"),
    ({"--system": "polaris", "--scheduler": "slurm"}, "--scheduler: polaris has pbs, not slurm"),
    ({"--nodes": None}, "--nodes: is needed"),
    ({"--nodes": "0"}, "--nodes: '0' – a number from 1"),
    ({"--nodes": "-3"}, "--nodes: '-3'"),
    ({"--nodes": "two"}, "--nodes: 'two'"),
    ({"--nodes": "9999999"}, "--nodes: '9999999'"),
    ({"--ranks-per-node": "1.5"}, "--ranks-per-node: '1.5'"),
    ({"--ranks-per-node": "٣"}, "--ranks-per-node: '٣'"),
    ({"--system": "polaris", "--ranks-per-node": "65"}, "--ranks-per-node: 65 – a node of polaris has 64"),
    ({"--gpus-per-node": "many"}, "--gpus-per-node: 'many'"),
    ({"--system": "polaris", "--gpus-per-node": "8"}, "--gpus-per-node: 8 – a node of polaris has 4"),
    ({"--system": "aurora", "--cpus-per-rank": "18"}, "--cpus-per-rank: 12 ranks of 18 CPUs are 216"),
    ({"--time": None}, "--time: is needed"),
    ({"--time": "3600"}, "--time: '3600' is no duration"),
    ({"--time": "-1h"}, "--time: '-1h' is no duration"),
    ({"--time": "soon"}, "--time: 'soon' is no duration"),
    ({"--time": "45s"}, "--time: 45 s are too short"),
    ({"--time": "0.2s", "--signal-lead": "1"}, "--time: '0.2s' – a second at least"),
    ({"--account": "my project"}, "--account: 'my project' is not a name"),
    ({"--account": "a\n#PBS -q other"}, "--account: 'a\\n#PBS -q other' is empty, or has characters"),
    ({"--account": ""}, "--account: '' is empty"),
    ({"--queue": "a;b"}, "--queue: 'a;b' is not a name"),
    ({"--queue": "a", "--partition": "b"}, "--partition: 'b', but --queue says 'a'"),
    ({"--name": "two words"}, "--name: 'two words' is not a name"),
    ({"--name": "_x"}, "--name: '_x' – PBS wants a letter or figure first"),
    ({"--scratch": "tmp"}, "--scratch: 'tmp' – an absolute path, or 'auto'"),
    ({"--scratch": "/a/$(id)"}, "--scratch: '/a/$(id)' – of what the shell fills in only $NAME"),
    ({"--scratch": '$A"; id'}, "--scratch: '$A\"; id' – of what the shell fills in only $NAME"),
    ({"--filesystems": "home eagle"}, "--filesystems: 'home eagle' – names with : between"),
    ({"--filesystems": "home", "--scheduler": "slurm"}, "--filesystems: slurm does not take them"),
    ({"--array": "0-9"}, "--array: all its jobs would do the same"),
    ({"--array": "0-9", "--run": "runs/a"}, "--run: 'runs/a' – with --array each job needs its own: write {task}"),
    ({"--array": "9"}, "--array: '9' is not a range"),
    ({"--array": "0-9", "--scheduler": "cobalt"}, "--array: Cobalt has no job arrays"),
    ({"--signal-lead": "never"}, "--signal-lead: 'never' is no duration"),
    ({"--signal-lead": "2h"}, "--signal-lead: '2h' – from 1 s to less than the 1:00:00 of the job"),
    ({"--signal-lead": "0"}, "--signal-lead: '0'"),
    ({"--scheduler": "slurm", "--signal-lead": "20h", "--time": "24h"}, "'20h' – Slurm takes at most 65535"),
    ({"--max-restarts": "x"}, "--max-restarts: 'x'"),
    ({"--setup": "a\tb"}, "--setup: 'a\\tb' is empty, or has characters"),
    ({"--system": "theta", "--scheduler": "cobalt", "--nodes": "9"}, "--queue: no queue of theta that we know takes"),
    ({"COMMAND": ""}, "COMMAND: no program"),
    ({"COMMAND": "mpirun -n 4 python t.py"}, "COMMAND: the script starts the ranks itself: leave 'mpirun'"),
    ({"COMMAND": "/usr/bin/srun t"}, "leave '/usr/bin/srun'"),
    ({"COMMAND": "env A=1 srun -n 4 python a"}, "COMMAND: the script starts the ranks itself: leave 'srun'"),
    ({"COMMAND": "env -u X A=1 mpirun -n 2 x"}, "COMMAND: the script starts the ranks itself: leave 'mpirun'"),
    ({"COMMAND": "env -C /tmp srun x"}, "COMMAND: the script starts the ranks itself: leave 'srun'"),
    ({"COMMAND": "env -i A=1"}, "COMMAND: no program"),
    ({"COMMAND": "hpcckpt supervise -- srun x"}, "COMMAND: the script starts the ranks itself: leave 'hpcckpt"),
    ({"COMMAND": "env A=1 python -m hpcckpt supervise -- x"}, "leave 'python -m hpcckpt supervise' and its"),
    ({"COMMAND": "train.py a\udcff"}, "COMMAND: the program's words have characters"),
    ({"--run": "runs/\udcff"}, "--run: 'runs/\\udcff' is empty, or has characters"),
    ({"--setup": "/\udcff"}, "--setup: '/\\udcff' is empty, or has characters"),
    ({"--array": "9-1"}, "--array: '9-1' is not a range: 0-9"),
    ({"--array": "1,9-1", "--scheduler": "slurm"}, "--array: '1,9-1' is not indexes: 0-9"),
    ({"--array": "0-9:0", "--scheduler": "slurm"}, "--array: '0-9:0' is not indexes: 0-9"),
    ({"--array": "0-" + "9" * 5000, "--scheduler": "slurm"}, "9' is not indexes: 0-9"),
    ({"--colour": "red"}, "No such option"),
]  # fmt: skip


def test_an_empty_word_is_no_program(jobscript: Script) -> None:
    code, out, err = jobscript("--scheduler", "slurm", *SIZE, "--", "")
    assert (code, out, "COMMAND: no program" in err) == (2, "", True)


@pytest.mark.parametrize(("change", "complaint"), WRONG, ids=lambda value: str(value)[:50])
def test_wrong_requests_are_refused_with_a_clear_error(
    change: dict[str, str | None], complaint: str, jobscript: Script
) -> None:
    asked = GOOD | change
    program = asked.pop("COMMAND", "train.py {x}")
    words = [word for name, value in asked.items() if value is not None for word in (name, value)]
    code, out, err = jobscript(*words, "--", *(program or "").split())
    assert code == 2
    assert out == ""
    assert complaint in err
    assert "Traceback" not in err


def test_all_that_is_wrong_is_told_at_once(jobscript: Script) -> None:
    words = ["--scheduler", "pbs", "--nodes", "x", "--time", "y", "--account", "a b", "--scratch", "z", "--array", "q"]
    code, _, err = jobscript(*words)
    assert code == 2
    for name in ("--nodes", "--time", "--account", "--scratch", "--array", "COMMAND"):
        assert f"{name}: " in err


def test_a_run_whose_saves_take_longer_than_the_job_is_told_so(jobscript: Script, tmp_path: Path) -> None:
    tell(tmp_path / "journal.jsonl", 2000.0)
    code, _, err = jobscript("--scheduler", "slurm", *SIZE, "--run", str(tmp_path), "--", "train")
    assert code == 2
    assert "--time: 3600 s are too short, it would be told to stop 4030 s before its end" in err


def test_a_lead_that_slurm_does_not_take_is_told(jobscript: Script, tmp_path: Path) -> None:
    tell(tmp_path / "journal.jsonl", 40_000.0)
    words = ["--nodes", "2", "--time", "48h", "--run", str(tmp_path), "--", "train"]
    code, _, err = jobscript("--scheduler", "slurm", *words)
    assert code == 2
    assert "--signal-lead: Slurm takes at most 65535 s, it would be 80030 s" in err
    code, _, err = jobscript("--scheduler", "pbs", *words)
    assert code == 0, err


def test_every_machine_has_a_queue_for_the_least_job() -> None:
    for system in SYSTEMS.values():
        assert system.queue_for(1, 600) is not None
        assert system.scheduler in DIALECTS
