"""The doors of scripts/pbs and scripts/theta as `hpcckpt jobscript` would fill them in.

``python -m tests.support.jobs.doors`` writes them."""

from __future__ import annotations

import os

from hpcckpt.jobs.jobscript import BatchJob, JobscriptRequest, read_request
from hpcckpt.jobs.jobscript_template import TemplateTexts, fill, gpu_line
from hpcckpt.jobs.site_profiles import SYSTEMS
from tests.support.paths import ROOT

TRAIN = 'hpcckpt train -c "$HPCCKPT_CONFIG" --run "$HPCCKPT_RUN"'
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
# Trains from a configuration on {title}, however many jobs it takes.
#
#   qsub -A PROJECT -v HPCCKPT_CONFIG=CONFIG {script}
#   qsub -A PROJECT -v HPCCKPT_CONFIG=CONFIG {more} {script}
#
# README.md lists what else it heeds; HPCCKPT_DRY_RUN=1 bash {script} shows what it would do."""
    inputs = f"""\
: "${{HPCCKPT_CONFIG:?which configuration? qsub -v HPCCKPT_CONFIG=CONFIG {script}}}"
name=${{HPCCKPT_CONFIG##*/}}
export HPCCKPT_RUN=${{HPCCKPT_RUN:-runs/${{name%.*}}}}"""
    inputs += f'\nread -ra options <<<"${{HPCCKPT_OPTIONS:-}}"\n{gpu_line(SYSTEMS[system])}'
    command = f'{TRAIN} ${{options[@]+"${{options[@]}}"}}'
    texts = TemplateTexts(header, command, '"$HPCCKPT_RUN"', inputs, lead='"${HPCCKPT_LEAD:-300}"')
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
# Goes on with a run by its own configuration, on as many ranks or others.
#
#   qsub -A PROJECT -n 8 -t 1:00:00 scripts/theta/restart.qsub RUN [latest|best|STEP [OPTIONS OF hpcckpt train...]]
#
# Sent back to an older step, it goes back once: submitted again, it goes on from its own newest one."""
    inputs = """\
RUN=${1:?which run directory? qsub scripts/theta/restart.qsub RUN}
FROM=${2:-latest}
if [ "${HPCCKPT_RESTARTS:-0}" != 0 ]; then FROM=latest; fi"""
    command = 'hpcckpt train -c "$RUN/config.json" --run "$RUN" --resume "$FROM" "${@:3}"'
    texts = TemplateTexts(header, command, '"$RUN"', inputs, lead='"${HPCCKPT_LEAD:-300}"', setup=COMMON)
    return fill(door("theta", 8, "1h", 4), texts, 300)


POLARIS_MORE = "-l select=4:system=polaris -l walltime=6:00:00 -q preemptable"
AURORA_MORE = "-l select=64:system=aurora -l walltime=6:00:00 -q prod"
DOORS = {
    "scripts/pbs/polaris.pbs": lambda: pbs("polaris", "Polaris (four GPUs a node)", POLARIS_MORE),
    "scripts/pbs/aurora.pbs": lambda: pbs("aurora", "Aurora (twelve tiles of GPUs a node)", AURORA_MORE),
    "scripts/theta/train.qsub": theta_train,
    "scripts/theta/restart.qsub": theta_restart,
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
