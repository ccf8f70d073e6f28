"""Made-up checkpoints whose every checksum fits: readers accept or refuse them, and nothing else.

One case: a dozen mutations of one step, each read in every way.  The coverage-guided form is ``scripts/dev/fuzz.sh``.
"""

from __future__ import annotations

import json
import shutil
import traceback
from pathlib import Path
from typing import Any

from tests.campaign._common import Campaign, Case, Outcome
from tests.support.fuzz import cases as fuzz_cases, readers as fuzz_readers

PER_CASE = 12


def prepare(scratch: Path) -> tuple[dict[str, Any], ...]:
    """Return the descriptions that all cases start from."""
    return fuzz_cases.seeds()


def run(case: Case) -> Outcome:
    """Mutate a step again and again, each time from where the last accepted one was."""
    base = case.rng.choice(case.prepared)
    accepted = 0
    for number in range(PER_CASE):
        made_up = fuzz_cases.mutated(case.rng, base)
        try:
            is_accepted = _read(case, made_up, case.scratch / str(number))
        except Exception:  # noqa: BLE001 - any is a fault of a reader
            found = json.dumps(made_up)
            return Outcome("wrong", text=f"{traceback.format_exc()}\n{found if len(found) < 20_000 else ''}")
        if is_accepted:
            accepted += 1
            base = made_up
    return Outcome("good", figures={"accepted of each dozen": accepted})


def _read(case: Case, made_up: dict[str, Any], scratch: Path) -> bool:
    step = fuzz_readers.step_path(scratch, made_up)
    nbytes = fuzz_cases.build(made_up, step)
    manifest = (step / "manifest.json").read_bytes()
    fuzz_readers.read_manifest(manifest)
    is_accepted = fuzz_readers.read_step(step, nbytes, case.rng)
    if case.rng.random() < 0.2:
        fuzz_readers.run_verb(step, case.rng.choice(fuzz_readers.VERBS))
    shutil.rmtree(scratch)
    return is_accepted


CAMPAIGN = Campaign(
    "fuzz",
    "Made-up manifests and headers whose checksums fit are read or refused with a typed error, in memory that is "
    "bounded by the size of the files.",
    full=5_000,
    run=run,
    prepare=prepare,
    jobs=2,
    in_memory=True,
)
