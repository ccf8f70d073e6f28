"""One rank of three differs from the others, at a random place of a random sequence of calls.

It makes another call, gives other arguments or options, ends by ``sys.exit`` or an uncaught exception, or stops for
5 s.  Every rank that is in one of our calls, or enters one, must get the same class of error, in time; a stop alone is
no error.  Every fifth case runs under mpirun, the others as threads; `peer_timeout_s` is 8.
"""

from __future__ import annotations

import json
from pathlib import Path

import hpcckpt as hc
from hpcckpt.testing.ranks import run_ranks
from tests.campaign._common import Campaign, Case, Outcome
from tests.campaign._misuse_job import KINDS, N_RANKS, play
from tests.support.mpi.launch import mpirun

SECONDS = 60.0
EXPECTED = {"option": "OptionError", "stop": "none"}


def _processes(case: Case, seed: str, kind: str) -> list[tuple[str, str, float]]:
    """Return what each rank got that could say so."""
    program = Path(__file__).with_name("_misuse_job.py")
    mpirun(N_RANKS, str(program), str(case.scratch), seed, kind, timeout_s=SECONDS)
    return [tuple(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(case.scratch.glob("rank-*.json"))]


def run(case: Case) -> Outcome:
    """Play one sequence."""
    kind, is_process = KINDS[case.number // 5 % len(KINDS)], case.number % 5 == 4
    seed = f"{case.seed}/{case.number}"
    if is_process:
        found = _processes(case, seed, kind)
    else:
        found = run_ranks(
            N_RANKS, lambda comm: play(comm, case.scratch / "run", seed, kind, is_process=False), timeout_s=SECONDS
        )
        found = [each for each in found if each[0] != "ended"]
    classes = sorted({name for name, _, _ in found})
    what = f"{kind}{', mpirun' if is_process else ''}: {', '.join(classes) or 'nothing'}"
    n_expected = N_RANKS - 1 if kind in {"exit", "exception"} else N_RANKS
    if classes != [EXPECTED.get(kind, "CollectiveMisuseError")] or len(found) != n_expected:
        return Outcome("wrong", what, f"{len(found)} ranks: {found}")
    if kind != "option" and hc.load(case.scratch / "run")["w"].shape != (100,):
        return Outcome("lost", what, "no step is left")
    seconds = max(each[2] for each in found)
    return Outcome("good" if kind == "stop" else "detected", what, figures={f"seconds, {kind}": seconds})


CAMPAIGN = Campaign(
    "misuse",
    "one rank of three differs (call, argument, option, end, stop): all get the same error, in time",
    full=500,
    run=run,
    timeout_s=3 * SECONDS,
    in_memory=True,
)
