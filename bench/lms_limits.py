"""How large a model may get in limited memory: without anything, with LMS, with `tf.recompute_grad`, with both.

For ResNet50 the largest batch, for a 3-D U-Net the largest volume, under ``RLIMIT_DATA`` of what there is before the
first step + 1.5 GiB; and the time of a step at one size that fits in every variant.

Each point is a run of ``examples/lms_large.py`` in a separate process. LMS takes the plan of least memory, with a file
as tier. All processes have the same settings: oneDNN on, ``TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1`` (oneDNN's pool would keep
what is freed), and ``MALLOC_MMAP_THRESHOLD_=65536`` (so does malloc). Times are taken in rounds, each variant
once in an order of chance; a ratio is taken within a round.

    python bench/lms_limits.py --directory /path/on/the/disk --json found.json --plot found.svg

``--json`` is written after each point; a run that was interrupted continues from it. On a slow machine use
``--probes 1`` first: the table has the largest size that was seen to fit, and the smallest that was seen not to.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _machine import cpu

PROGRAM = Path(__file__).parent.parent / "examples" / "lms_large.py"
CAP_GIB = 1.5
VARIANTS = {
    "nothing": ("--no-lms",),
    "recompute_grad": ("--no-lms", "--recompute-grad"),
    "LMS": (),
    "both": ("--recompute-grad",),
}
SETTINGS = {
    "TF_ENABLE_ONEDNN_OPTS": "1", "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1", "MALLOC_MMAP_THRESHOLD_": "65536",
    "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A network, which of its sizes grows and by what unit, where the search begins, and the size that is timed."""

    title: str
    options: tuple[str, ...]
    grows: str
    unit: int
    guesses: tuple[int, ...]
    timed: int

    def amount(self, size: int) -> int:
        """Return how much data a step of this size has: images, or voxels."""
        return size if self.grows == "--batch-size" else size**3


CASES = {
    "resnet50": Case(
        "ResNet50, 224 x 224", ("--network", "ResNet50", "--image-size", "224"), "--batch-size", 2, (14, 32, 96, 96),
        4,
    ),
    "unet3d": Case(
        "3-D U-Net, depth 3, 8 filters, batch 1", ("--network", "unet3d", "--filters", "8", "--batch-size", "1"),
        "--image-size", 8, (120, 136, 160, 168), 80,
    ),
}  # fmt: skip


class Bench:
    """Runs points, and keeps what was found in a file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.path = Path(options.json) if options.json else None
        self.found: dict[str, Any] = {"facts": facts(), "points": {}}
        if self.path and self.path.exists():
            self.found = json.loads(self.path.read_text(encoding="utf-8"))

    def point(self, case: str, variant: str, size: int, steps: int, turn: str = "limit") -> dict[str, Any]:
        """Train in a separate process; return its figures, and ``"why"`` if it failed."""
        key = f"{case} {variant} {size} {turn}"
        points = self.found["points"]
        if key not in points:
            points[key] = self._trained(CASES[case], variant, size, steps)
            print(f"{key}: {points[key]}", file=sys.stderr, flush=True)
            if self.path:
                self.path.write_text(json.dumps(self.found, indent=1), encoding="utf-8")
        figures: dict[str, Any] = points[key]
        return figures

    def seen(self, case: str, variant: str) -> tuple[int, int]:
        """Return the largest size that fits and the smallest that does not, of those that were tried; 0 if none."""
        tried = {
            int(size): "why" not in figures
            for size, figures in (
                (key.split()[2], figures)
                for key, figures in self.found["points"].items()
                if key.startswith(f"{case} {variant} ") and key.endswith(" limit")
            )
        }
        fit = max((size for size, does_fit in tried.items() if does_fit), default=0)
        return fit, min((size for size, does_fit in tried.items() if not does_fit), default=0)

    def _trained(self, case: Case, variant: str, size: int, steps: int) -> dict[str, Any]:
        task = [*case.options, case.grows, str(size), "--steps", str(steps), "--cap-gib", str(CAP_GIB)]
        program = [sys.executable, str(PROGRAM), *task, *VARIANTS[variant], "--child", "train"]
        environment = os.environ | SETTINGS | {"HPCCKPT_LMS_DIR": self.options.directory}
        done = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
        told = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
        if done.returncode == 0 and told:
            return {**json.loads(told[-1].removeprefix("FIGURES ")), "load": os.getloadavg()[0]}
        last = [line.strip() for line in done.stderr.splitlines() if line.strip()][-3:]
        return {"why": f"exit {done.returncode}: {' '.join(last)[-300:]}"}


def limits(bench: Bench, case: str, variant: str, guess: int) -> tuple[int, int]:
    """Return the largest size that was seen to fit, and the smallest that was seen not to; 0 if there was none.

    Trainings of two steps: up or down from a guess, then by bisection, until one unit or an eighth is between them, or
    the probes are used up. What the file has already is no probe.
    """
    unit, n_probes, size = CASES[case].unit, 0, guess
    while True:
        low, high = bench.seen(case, variant)
        if low and high:
            if high - low <= max(unit, low / 8):
                return low, high
            size = max(low + unit, (low + high) // 2 // unit * unit)
        elif low or high:
            size = max(unit, round((low * 1.25 if low else high / 1.25) / unit) * unit)
        if n_probes == bench.options.probes or high == unit:
            return low, high
        bench.point(case, variant, size, 2)
        n_probes += 1


def facts() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {"cpu": cpu(), "n_cpus": os.cpu_count(), "settings": SETTINGS, "cap_gib": CAP_GIB}


def table(bench: Bench, case: str) -> Iterator[str]:
    """Measure a network; return the lines of its table."""
    chosen, rounds = CASES[case], range(bench.options.repeat)
    chance = random.Random(1)
    turns: list[dict[str, dict[str, Any]]] = []
    for turn in rounds:
        names = chance.sample(sorted(VARIANTS), len(VARIANTS))
        turns.append(
            {name: bench.point(case, name, chosen.timed, bench.options.steps, f"round {turn}") for name in names}
        )
    sizes = {name: limits(bench, case, name, guess) for name, guess in zip(VARIANTS, chosen.guesses, strict=True)}
    rows = [_row(chosen, name, sizes, turns) for name in VARIANTS]
    bench.found.setdefault("tables", {})[case] = rows
    what = "batch" if chosen.grows == "--batch-size" else "edge"
    yield f"## {chosen.title}: the largest {what} under RLIMIT_DATA (before the first step + {CAP_GIB} GiB)\n"
    timed = f"at {what} {chosen.timed}: s/step | times as long | peak MiB"
    yield f"| | {what} that fits | that does not | times as much data | {timed} |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        cells = [str(row["fits"] or "–"), str(row["fails"] or "–"), f"{row['gain']:.1f}"]
        cells += [f"{row['step_s']:.1f}", f"{row['ratio']:.2f}", f"{row['peak_mib']:.0f}"]
        yield "| " + " | ".join([row["name"], *cells]) + " |"
    yield ""


def _row(
    case: Case, name: str, sizes: dict[str, tuple[int, int]], turns: list[dict[str, dict[str, Any]]]
) -> dict[str, Any]:
    fits, fails = sizes[name]
    ratios = [turn[name]["step_s"] / turn["nothing"]["step_s"] for turn in turns]
    return {
        "name": name, "fits": fits, "fails": fails, "gain": case.amount(fits) / case.amount(sizes["nothing"][0]),
        "ratio": statistics.median(ratios), "step_s": statistics.median(turn[name]["step_s"] for turn in turns),
        "peak_mib": statistics.median(turn[name]["peak_mib"] for turn in turns),
    }  # fmt: skip


def draw(tables: dict[str, list[dict[str, Any]]], path: str) -> None:
    """Draw the sizes and times of all tables; a limit that was not reached is a size "or more"."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "hpcckpt"
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(len(tables), 2, figsize=(9, 2.2 * len(tables)), squeeze=False, layout="constrained")
    colors = ["grey", "tab:orange", "tab:blue", "tab:green"]
    for axes, (case, rows) in zip(grid, tables.items(), strict=True):
        names = [row["name"] for row in rows]
        labels = [f"{row['gain']:.1f} ({row['fits']}{'' if row['fails'] else ' or more'})" for row in rows]
        gains = axes[0].barh(names, [row["gain"] for row in rows], color=colors)
        axes[0].bar_label(gains, labels, padding=3, fontsize=8)
        axes[0].set_title(f"{CASES[case].title}: data in a step that fits", fontsize=9)
        ratios = axes[1].barh(names, [row["ratio"] for row in rows], color=colors)
        axes[1].bar_label(ratios, [f"{row['ratio']:.2f}" for row in rows], padding=3, fontsize=8)
        axes[1].set_title(f"time of a step, all at {CASES[case].timed}", fontsize=9)
        for each in axes:
            each.invert_yaxis()
            each.margins(x=0.35)
            each.set_xlabel("times that of nothing", fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
    plt.close(figure)


def main() -> None:
    """Measure the cases that are asked for, print their tables."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--directory", default=".", help="where tensors go: on a disk")
    options.add_argument("--only", choices=CASES, help="one network")
    options.add_argument("--steps", type=int, default=3)
    options.add_argument("--repeat", type=int, default=3, help="rounds at the same size")
    options.add_argument("--probes", type=int, default=8, help="trainings at most in the search for each limit")
    options.add_argument("--json", metavar="FILE", help="write all points there, and use those that are there")
    options.add_argument("--plot", metavar="FILE", help="draw the tables")
    chosen = options.parse_args()
    chosen.directory = os.path.abspath(chosen.directory)
    bench = Bench(chosen)
    print(f"{bench.found['facts']['cpu']}, {bench.found['facts']['n_cpus']} cores, {SETTINGS}\n")
    for case in [chosen.only] if chosen.only else CASES:
        for line in table(bench, case):
            print(line, flush=True)
    if bench.path:
        bench.path.write_text(json.dumps(bench.found, indent=1), encoding="utf-8")
    if chosen.plot:
        draw(bench.found["tables"], chosen.plot)


if __name__ == "__main__":
    main()
