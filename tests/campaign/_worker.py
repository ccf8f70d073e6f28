"""One worker of a campaign: reads numbers of cases from stdin, runs them, answers in lines of JSON.

    python _worker.py MODULE SEED SCRATCH

Answers go to what was stdout; whatever the cases print goes to stderr, which is the worker's log.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import shutil
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaign._common import Campaign, Case, Outcome, load_file


def run_case(campaign: Campaign, case: Case) -> Outcome:
    """Run one case; whatever it raises breaks the promise."""
    case.scratch.mkdir(parents=True)
    try:
        return campaign.run(case)
    except Exception:  # noqa: BLE001 - a case must not end the campaign
        return Outcome("wrong", text=traceback.format_exc())
    finally:
        shutil.rmtree(case.scratch, ignore_errors=True)


def _own_stdout() -> IO[str]:
    """Return the pipe to the driver, and let everything that is printed go to the log."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def main(module: str, seed: str, scratch: str) -> None:
    """Prepare, then run the cases that are asked for, until there are no more."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # how the driver asks a hung case where it is
    warnings.simplefilter("error")  # as in the suite
    answers = _own_stdout()

    def answer(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    campaign = load_file(Path(module))
    prepared = None
    if campaign.prepare is not None:
        place = Path(scratch, "prepared")
        place.mkdir(parents=True)
        prepared = campaign.prepare(place)
    answer({"is_ready": True})
    for line in sys.stdin:
        number = int(line)
        case = Case(campaign.name, int(seed), number, Path(scratch, f"case-{number}"), prepared)
        answer({"number": number, **dataclasses.asdict(run_case(campaign, case))})


if __name__ == "__main__":
    main(*sys.argv[1:])
