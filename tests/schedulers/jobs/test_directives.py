"""The lines of batch scripts for their schedulers, checked against what the schedulers document."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobs.directives import DIALECTS, check_script, dialect_of, missing, read_script, read_words
from tests.support.jobs.doors import DOORS
from tests.support.paths import ROOT

pytestmark = pytest.mark.one_case

SCRIPTS = sorted(path for room in ("slurm", "pbs", "theta") for path in (ROOT / "scripts" / room).iterdir())
BATCH = [path for path in SCRIPTS if path.suffix in {".sbatch", ".pbs", ".qsub"}]


def problems(scheduler: str, *lines: str, head: str = "#!/bin/bash") -> list[str]:
    """Return what is wrong with a script of these lines."""
    return [str(one) for one in check_script("\n".join([head, *lines, "echo work"]), DIALECTS[scheduler])]


@pytest.mark.parametrize("path", BATCH, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_our_scripts_say_what_their_scheduler_understands(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    dialect = dialect_of(text)
    assert dialect is not None
    assert dialect.scheduler == {"theta": "cobalt"}.get(path.parent.name, path.parent.name)
    assert check_script(text, dialect) == []


def test_there_are_scripts_for_all_three() -> None:
    assert {path.parent.name for path in BATCH} == {"slurm", "pbs", "theta"}
    assert len(BATCH) >= 8


@pytest.mark.parametrize("path", [path for path in BATCH if path.suffix != ".sbatch"], ids=lambda path: path.name)
def test_no_script_names_an_account(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    dialect = dialect_of(text)
    assert dialect is not None
    given, _ = read_script(text, dialect)
    assert [one.loc + str(one.message) for one in missing(given, dialect)] == (
        ["submission-A is not given"] if dialect.scheduler == "pbs" else []
    )
    assert not any(one.name == "-A" for one in given)


@pytest.mark.parametrize("path", DOORS)
def test_doors_are_what_jobscript_makes_from_its_templates(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == DOORS[path]()


@pytest.mark.parametrize("path", [path for path in BATCH if path.suffix == ".qsub"], ids=lambda path: path.name)
def test_cobalt_can_execute_its_scripts(path: Path) -> None:
    assert path.stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("scheduler", "line", "complaint"),
    [
        ("slurm", "#SBATCH --nods=2", "line 2: --nods is no option of slurm"),
        ("slurm", "#SBATCH --nodes=two", "line 2: -N/--nodes: 'two' is not a number of nodes"),
        ("slurm", "#SBATCH --signal=USR1@70000", "at most 65535"),
        ("slurm", "#SBATCH --signal=B:@300", "is not [B:]SIGNAL[@SECONDS]"),
        ("slurm", "#SBATCH --time=2 hours", "'hours' belongs to no option"),
        ("slurm", "#SBATCH --requeue=yes", "--requeue takes no value"),
        ("slurm", "#SBATCH --open-mode=overwrite", "append or truncate"),
        ("slurm", "#SBATCH --array=a-b", "is not indexes"),
        ("slurm", "#SBATCH --time", "--time needs a value"),
        ("slurm", "#SBATCH --comment='no end", "a quotation does not end"),
        ("slurm", "#SBATCH--nodes=2", "must begin the line, with a blank behind it"),
        ("pbs", "#PBS --nodes=2", "--nodes is no option of pbs"),
        ("pbs", "#PBS -l walltime=1h", "walltime=1h is no time"),
        ("pbs", "#PBS -l select=two:system=polaris", "does not begin with a number of chunks"),
        ("pbs", "#PBS -l select=2:gpus=4", "'gpus' is no resource of a chunk"),
        ("pbs", "#PBS -l place=spread", "place=spread is none of"),
        ("pbs", "#PBS -l nodes=2:ppn=4", "'nodes' is no resource of a whole job"),
        ("pbs", "#PBS -W depend=afterwards:12", "depend=afterwards is none of"),
        ("pbs", "#PBS -W requeue=true", "'requeue' is no attribute"),
        ("pbs", "#PBS -r yes", "is not y or n"),
        ("pbs", "#PBS -N my job", "'job' belongs to no option"),
        ("pbs", "#PBS -q debug  # the short one", "belongs to no option"),
        ("pbs", "#PBS -k oo", "letters of d, o, e"),
        ("cobalt", "#COBALT -n 2 -t 1:30", "is not a time: minutes, or HH:MM:SS"),
        ("cobalt", "#COBALT -n two -t 30", "-n/--nodecount: 'two' is not a number"),
        ("cobalt", "#COBALT --mode c16", "script or interactive"),
        ("cobalt", "#COBALT --attrs mcdram", "is not name=value"),
        ("cobalt", "#COBALT --dependencies=afterok:1", "is not job numbers"),
        ("cobalt", "#COBALT --walltime 30", "--walltime is no option of cobalt"),
    ],
)
def test_what_is_not_documented_is_named_with_its_line(scheduler: str, line: str, complaint: str) -> None:
    assert complaint in "; ".join(problems(scheduler, line))


def test_all_problems_are_told_at_once() -> None:
    found = problems("pbs", "#PBS -q", "#PBS -Y", "#PBS -l walltime=x", "", "echo", "#PBS -r y")
    assert [one.partition(":")[0] for one in found] == ["line 2", "line 3", "line 4", "line 7"]
    assert problems("slurm", "#SBATCH -N 2", head="#SBATCH -n 3") == [
        "line 1: no #! line: the scheduler takes the login shell, whatever that is"
    ]


def test_a_directive_below_the_first_command_is_told_to_be_ignored() -> None:
    for scheduler, line in (("slurm", "#SBATCH -N 2"), ("pbs", "#PBS -r y"), ("cobalt", "#COBALT -n 1")):
        assert problems(scheduler, "echo early", line) == [
            f"line 3: {scheduler} ignores this line where it stands: {line}"
        ]


def test_cobalt_ignores_what_follows_a_gap() -> None:
    assert problems("cobalt", "#COBALT -n 1", "", "#COBALT -t 30") == [
        "line 4: cobalt ignores this line where it stands: #COBALT -t 30"
    ]


def test_comments_between_the_lines_of_pbs_are_refused_and_below_them_welcome() -> None:
    assert "something else" in problems("pbs", "#PBS -r y", "# the queue", "#PBS -q debug")[0]
    assert problems("pbs", "#PBS -r y", "#PBS -q debug", "", "# the queue") == []
    assert problems("slurm", "#SBATCH -N 2  # nodes", "# a word", "#SBATCH --requeue") == []


def test_what_contradicts_itself_is_named() -> None:
    assert problems("slurm", "#SBATCH -N 2", "#SBATCH --nodes=3") == ["line 3: -N stands in line 2 already"]
    assert "rerunnable" in problems("pbs", "#PBS -J 0-3", "#PBS -r n")[0]
    assert problems("pbs", "#PBS -l select=1:ncpus=1", "#PBS -l walltime=10:00") == []


def test_words_of_a_command_line_are_read_as_the_scheduler_does() -> None:
    given, rest, wrong = read_words(["-n", "2", "-t30", "--attrs=a=b", "run.sh", "-x"], DIALECTS["cobalt"], "there")
    assert [(one.name, one.value) for one in given] == [("-n", "2"), ("-t", "30"), ("--attrs", "a=b")]
    assert (rest, wrong) == (["run.sh", "-x"], [])
    _, _, wrong = read_words(["-W", "depend=afterany:", "-Zx"], DIALECTS["pbs"], "there")
    assert [str(one) for one in wrong] == ["there: -Zx is no option of pbs", "there: -W: depend=afterany names no job"]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.scheduler)
def test_every_table_names_its_source(dialect: object) -> None:
    assert "http" in dialect.source  # type: ignore[attr-defined]
