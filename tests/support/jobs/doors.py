"""The batch scripts of scripts/slurm, scripts/pbs and scripts/theta, from the templates of `hpcckpt jobscript`.

``python -m tests.support.jobs.doors`` writes them."""

from __future__ import annotations

import os
from pathlib import Path

from hpcckpt.jobs import jobscript_template
from hpcckpt.jobs.jobscript import BatchJob, JobscriptRequest, read_request
from hpcckpt.jobs.jobscript_template import ADVICE, SETUP, TENSORFLOW_LINE, TemplateTexts, fill, gpu_line, substitute
from hpcckpt.jobs.site_profiles import SYSTEMS
from tests.support.paths import ROOT

TRAIN = 'hpcckpt train -c "$HPCCKPT_CONFIG" --run "$HPCCKPT_RUN" ${options[@]+"${options[@]}"}'
SLURM = Path(jobscript_template.__file__).parent / "templates" / "slurm.sh.in"
CONFIG = """\
CONFIG=${1:?which configuration? sbatch scripts/slurm/%s CONFIG}
name=${CONFIG##*/}
RUN=${HPCCKPT_RUN:-runs/${name%%.*}}"""
MORE = "# scripts/slurm/README.md lists the variables; HPCCKPT_DRY_RUN=1 bash FILE shows what it would do."
RENDEZVOUS = """\
# For torch.distributed: rank 0 is on the node of this script.
export MASTER_ADDR=${MASTER_ADDR:-$(hostname)} MASTER_PORT=${MASTER_PORT:-%s}"""
COMMON = '# shellcheck source=scripts/theta/common.sh\n. "$(dirname "$0")/common.sh"'


def door(system: str, nodes: int, time: str, ranks: int | None = None) -> BatchJob:
    """Return the job that a door asks for."""
    ranks_per_node = None if ranks is None else str(ranks)
    return read_request(
        JobscriptRequest(
            ("hpcckpt",), system=system, nodes=str(nodes), time=time, ranks_per_node=ranks_per_node, name="hpcckpt"
        )
    )


def pbs(system: str, title: str, more: str) -> str:
    """Return a door of scripts/pbs."""
    script = f"scripts/pbs/{system}.pbs"
    header = f"""\
# Trains from a configuration, or runs any program, on {title}, however many jobs it takes.
#
#   qsub -A PROJECT -v HPCCKPT_CONFIG=CONFIG {script}
#   qsub -A PROJECT -v HPCCKPT_CONFIG=CONFIG {more} {script}
#   qsub -A PROJECT -v HPCCKPT_RUN=RUN,HPCCKPT_COMMAND="python train.py --run RUN" {script}
#
# README.md lists what else it heeds; HPCCKPT_DRY_RUN=1 bash {script} shows what it would do."""
    rendezvous = RENDEZVOUS.replace("\n", "\n    ") % "29511"
    inputs = f"""\
if [ -n "${{HPCCKPT_COMMAND:-}}" ]; then
    : "${{HPCCKPT_RUN:?which run directory? qsub -v HPCCKPT_RUN=RUN,HPCCKPT_COMMAND=COMMAND {script}}}"
    eval "program=($HPCCKPT_COMMAND)" # words as in a shell: quotes count
    {rendezvous}
else
    : "${{HPCCKPT_CONFIG:?which configuration? qsub -v HPCCKPT_CONFIG=CONFIG {script}; or HPCCKPT_COMMAND}}"
    name=${{HPCCKPT_CONFIG##*/}}
    export HPCCKPT_RUN=${{HPCCKPT_RUN:-runs/${{name%.*}}}}
    read -ra options <<<"${{HPCCKPT_OPTIONS:-}}"
    program=({TRAIN})
fi
{gpu_line(SYSTEMS[system])}
{TENSORFLOW_LINE}"""
    texts = TemplateTexts(header, '"${program[@]}"', '"$HPCCKPT_RUN"', inputs, lead='"${HPCCKPT_LEAD:-300}"')
    return fill(door(system, 2, "1h"), texts, 300)


def theta_train() -> str:
    """Return scripts/theta/train.qsub."""
    header = """\
# Trains from a configuration, however many jobs it takes: checkpointed, submitted again, and so on.
#
#   qsub -A PROJECT -n 8 -t 1:00:00 scripts/theta/train.qsub CONFIG [OPTIONS OF hpcckpt train...]
#
# Theta was retired at the end of 2023; scripts/pbs is for the machines that came after it.
# common.sh lists what else it heeds; HPCCKPT_DRY_RUN=1 bash scripts/theta/train.qsub CONFIG shows what it does."""
    inputs = """\
CONFIG=${1:?which configuration? qsub scripts/theta/train.qsub CONFIG}
name=${CONFIG##*/}
RUN=${HPCCKPT_RUN:-runs/${name%.*}}"""
    command = 'hpcckpt train -c "$CONFIG" --run "$RUN" "${@:2}"'
    texts = TemplateTexts(header, command, '"$RUN"', inputs, lead='"${HPCCKPT_LEAD:-300}"', setup=COMMON)
    return fill(door("theta", 8, "1h", 4), texts, 300)


def theta_restart() -> str:
    """Return scripts/theta/restart.qsub."""
    header = """\
# Resumes a run with its own configuration, on the same or another number of ranks.
#
#   qsub -A PROJECT -n 8 -t 1:00:00 scripts/theta/restart.qsub RUN [latest|best|STEP [OPTIONS OF hpcckpt train...]]
#
# With an older STEP it goes back once: submitted again, it resumes from its newest step."""
    inputs = """\
RUN=${1:?which run directory? qsub scripts/theta/restart.qsub RUN}
FROM=${2:-latest}"""
    command = 'hpcckpt train -c "$RUN/config.json" --run "$RUN" --resume "$FROM" "${@:3}"'
    texts = TemplateTexts(header, command, '"$RUN"', inputs, lead='"${HPCCKPT_LEAD:-300}"', setup=COMMON)
    return fill(door("theta", 8, "1h", 4), texts, 300)


def theta_program() -> str:
    """Return scripts/theta/program.qsub."""
    header = """\
# Runs any program that saves and exits with 75 when it is asked to stop, however many jobs it takes.
#
#   qsub -A PROJECT -n 8 -t 1:00:00 scripts/theta/program.qsub RUN COMMAND...
#
# RUN is the program's run directory, COMMAND what every rank runs, without a launcher."""
    inputs = """\
RUN=${1:?which run directory? qsub scripts/theta/program.qsub RUN COMMAND...}
: "${2:?which program? qsub scripts/theta/program.qsub RUN COMMAND...}\""""
    texts = TemplateTexts(header, '"${@:2}"', '"$RUN"', inputs, lead='"${HPCCKPT_LEAD:-300}"', setup=COMMON)
    return fill(door("theta", 8, "1h", 4), texts, 300)


def slurm(name: str, header: str, inputs: str, command: str, *, is_array: bool = False) -> str:
    """Return a script of scripts/slurm: complete, because Slurm copies it away from the checkout before it runs."""
    output = "%x-%A_%a.out" if is_array else "%x-%j.out"
    asked = (f"job-name={name}", f"output={output}", "open-mode=append", "signal=B:USR1@300", "requeue")
    return substitute(
        SLURM.read_text(encoding="utf-8"),
        {
            "directives": "\n".join(f"#SBATCH --{words}" for words in asked),
            "header": f"{header}\n{MORE}",
            "setup": f"{SETUP}\nfi",
            "advice": ADVICE,
            "inputs": f"{inputs}\n{TENSORFLOW_LINE}",
            "supervise": '--run "$RUN"',
            "command": command,
        },
    )


def slurm_train() -> str:
    """Return scripts/slurm/train.sbatch."""
    header = """\
# Trains from a configuration, however many jobs it takes: checkpointed and requeued before its time is up, and again.
#
#   sbatch --ntasks=4 --time=02:00:00 scripts/slurm/train.sbatch CONFIG [OPTIONS OF hpcckpt train...]
#"""
    command = 'hpcckpt train -c "$CONFIG" --run "$RUN" "${@:2}"'
    return slurm("hpcckpt", header, CONFIG % "train.sbatch", command)


def slurm_array() -> str:
    """Return scripts/slurm/train_array.sbatch."""
    header = """\
# Trains one configuration with many seeds, each in its own run directory, each requeued by itself.
#
#   sbatch --array=1-8 --ntasks=4 --time=02:00:00 scripts/slurm/train_array.sbatch CONFIG [OPTIONS OF hpcckpt train...]
#
# The number in the array is the seed, and the name of the directory below RUN."""
    inputs = (CONFIG % "train_array.sbatch").replace(
        "? sbatch", "? sbatch --array=1-8"
    ) + "\nTASK=${SLURM_ARRAY_TASK_ID:-1}\nRUN=$RUN/$TASK"
    command = 'hpcckpt train -c "$CONFIG" --run "$RUN" --set "seed=$TASK" "${@:2}"'
    return slurm("hpcckpt-array", header, inputs, command, is_array=True)


def slurm_restart() -> str:
    """Return scripts/slurm/restart.sbatch."""
    header = """\
# Resumes a run with its own configuration, on the same or another number of ranks.
#
#   sbatch --ntasks=8 --time=02:00:00 scripts/slurm/restart.sbatch RUN [latest|best|STEP [OPTIONS OF hpcckpt train...]]
#
# With an older STEP it goes back once: requeued, it resumes from its newest step. Steps newer than STEP are moved aside
# in RUN, not deleted."""
    inputs = """\
RUN=${1:?which run directory? sbatch scripts/slurm/restart.sbatch RUN}
FROM=${2:-latest}"""
    command = 'hpcckpt train -c "$RUN/config.json" --run "$RUN" --resume "$FROM" "${@:3}"'
    return slurm("hpcckpt-restart", header, inputs, command)


def slurm_program() -> str:
    """Return scripts/slurm/program.sbatch."""
    header = """\
# Runs any program that saves and exits with 75 when asked to stop (docs/preemption.md), however many jobs it takes.
#
#   sbatch --ntasks=4 --time=02:00:00 scripts/slurm/program.sbatch RUN COMMAND...
#   sbatch --ntasks=4 --time=2:00:00 scripts/slurm/program.sbatch runs/t python examples/torch_resume.py --run runs/t
#
# RUN is the program's run directory, COMMAND what every rank runs, without a launcher."""
    inputs = """\
RUN=${1:?which run directory? sbatch scripts/slurm/program.sbatch RUN COMMAND...}
: "${2:?which program? sbatch scripts/slurm/program.sbatch RUN COMMAND...}"
"""
    return slurm("hpcckpt-program", header, inputs + RENDEZVOUS % "$((20000 + ${SLURM_JOB_ID:-0} % 10000))", '"${@:2}"')


POLARIS_MORE = "-l select=4:system=polaris -l walltime=6:00:00 -q preemptable"
AURORA_MORE = "-l select=64:system=aurora -l walltime=6:00:00 -q prod"
DOORS = {
    "scripts/pbs/polaris.pbs": lambda: pbs("polaris", "Polaris (four GPUs a node)", POLARIS_MORE),
    "scripts/pbs/aurora.pbs": lambda: pbs("aurora", "Aurora (twelve tiles of GPUs a node)", AURORA_MORE),
    "scripts/theta/train.qsub": theta_train,
    "scripts/theta/restart.qsub": theta_restart,
    "scripts/theta/program.qsub": theta_program,
    "scripts/slurm/train.sbatch": slurm_train,
    "scripts/slurm/train_array.sbatch": slurm_array,
    "scripts/slurm/restart.sbatch": slurm_restart,
    "scripts/slurm/program.sbatch": slurm_program,
}
"""By path: what makes the door."""


def main() -> None:
    """Write the doors."""
    for path, make in DOORS.items():
        (ROOT / path).write_text(make(), encoding="utf-8")
        if path.endswith(".qsub"):  # Cobalt refuses a script that cannot be executed
            os.chmod(ROOT / path, 0o755)


if __name__ == "__main__":
    main()
