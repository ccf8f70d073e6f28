"""Are memory budgets of Large Model Support kept on the CPU, or refused before the first step?

Every training runs in a separate process, by ``fit`` with ``LMS(memory_budget=...)`` and TensorFlow's settings as
they are; ``--system-allocator`` has TensorFlow started without oneDNN's pool. The peak is what the kernel counts
(``VmHWM``), without pages of files, above the process before its first step, over all its steps. A budget is *kept*
if all steps stay within it, the first one too, and *refused* if the error came before the first step.

    python bench/lms_budgets.py --directory /path/on/the/disk

Exits with 1 if a budget was neither kept nor refused.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from _lms_models import BATCHES

HERE = Path(__file__).parent
MIB = 1 << 20
BUDGETS = {
    "conv": (120, 112, 98, 90, 70, 61, 40),
    "mlp": (200, 120, 60, 30),
    "unet": (160, 110, 70),
    "transformer": (300, 200, 120),
}
"""MiB by model; the first six of `conv` are those of a trial in which none was kept."""


def trained(model: str, budget: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train a model within a budget of `budget` MiB, in a separate process."""
    task = {
        "model": model, "batch": BATCHES[model], "budget": f"{budget} MiB", "steps": options.steps,
        "directory": options.directory,
    }  # fmt: skip
    environment = os.environ | ({"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"} if options.system_allocator else {})
    program = [sys.executable, str(HERE / "_lms_budget_child.py"), json.dumps(task)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def verdict(found: dict[str, Any], budget: int) -> str:
    """Return whether the budget was kept or refused, in words."""
    if "failed" in found:
        return f"FAILED: {found['failed']}"
    if "refused" in found:
        return "refused" if found["n_steps"] == 0 else "REFUSED LATE"
    return "kept" if found["all"] <= budget * MIB and found["n_attempts"] == 1 else "NOT kept"


def row(model: str, budget: int, found: dict[str, Any]) -> str:
    """Return a row of the table."""
    sizes = [found.get(key) for key in ("without", "simulated", "first", "all")]
    cells = [model, str(BATCHES[model]), str(budget)]
    cells += ["–" if size is None else f"{size / MIB:.1f}" for size in sizes]
    nearest = found["refused"].partition("can be kept is ")[2].partition(":")[0] if "refused" in found else ""
    cells += [str(found.get("n_swapped", "–")), verdict(found, budget) + (f", nearest {nearest}" if nearest else "")]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Try every budget, print the table and the count."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--directory", default=".", help="where tensors go: on a disk")
    options.add_argument("--only", choices=BUDGETS, help="one model")
    options.add_argument("--budgets", type=int, nargs="+", help="MiB, in place of those of each model")
    options.add_argument("--steps", type=int, default=4)
    options.add_argument("--system-allocator", action="store_true", help="set TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1")
    chosen = options.parse_args()
    chosen.directory = os.path.abspath(chosen.directory)
    print("| model | batch | budget MiB | simulated without | with | first step | all steps | swap-ins | verdict |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|")
    verdicts: list[str] = []
    for model in [chosen.only] if chosen.only else BUDGETS:
        for budget in chosen.budgets or BUDGETS[model]:
            found = trained(model, budget, chosen)
            verdicts.append(verdict(found, budget))
            print(row(model, budget, found), flush=True)
    n_good = verdicts.count("kept") + verdicts.count("refused")
    print(f"\n{verdicts.count('kept')} kept, {verdicts.count('refused')} refused, {len(verdicts) - n_good} NOT kept")
    sys.exit(n_good < len(verdicts))


if __name__ == "__main__":
    main()
