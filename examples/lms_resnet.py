"""ResNet50 at growing image size, or batch, until memory runs out; without LMS and with it. Statistics as CSV.

    python examples/lms_resnet.py --image-size 64 --batch-size 8                       one size, with LMS
    python examples/lms_resnet.py --grow image --cap-gib 1.0 --no-lms                  how far it goes without
    python examples/lms_resnet.py --grow batch --cap-gib 1.0                           and how far with

Each size runs in a separate process, under RLIMIT_DATA of --cap-gib above what it has before the first step: one that
runs out of memory may end in any way. The figures are of CPU memory and a local file unless a GPU is used.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
FIELDS = [
    "image_size", "batch_size", "lms", "ok", "step_s", "megapixels_per_s", "peak_mib", "swap_outs", "swapped_mib",
    "stalled_s", "why",
]  # fmt: skip


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="ResNet50 until memory runs out, with Large Model Support")
    parser.add_argument("--image-size", type=int, default=64, help="pixels on a side (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lms", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--memory-budget", default="least", help="'600 MiB', or 'least': as little as a plan can do with"
    )
    parser.add_argument("--swapout-threshold", type=int, help="plan by distance, as TFLMSv2 does, with these")
    parser.add_argument("--swapin-ahead", type=int, default=3)
    parser.add_argument("--swapin-groupby", type=int, default=2)
    parser.add_argument("--grow", choices=["image", "batch"], help="go on with larger ones until memory runs out")
    parser.add_argument("--by", type=float, default=1.5, help="how much larger each time (default: %(default)s)")
    parser.add_argument("--most", type=int, default=8, metavar="N", help="sizes to try at most (default: %(default)s)")
    parser.add_argument("--cap-gib", type=float, help="memory above what there is before the first step")
    parser.add_argument("--stats-csv", metavar="FILE", help="append a row for each size")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


# -- one size, in a separate process


def lms_of(args: argparse.Namespace) -> Any:
    """Return the callback."""
    from hpcckpt.lms import LMS

    if args.swapout_threshold is not None:
        given = (args.swapout_threshold, args.swapin_groupby, args.swapin_ahead)
        return LMS(*given, min_bytes="256 KiB", planner="distance")
    if args.memory_budget == "least":
        return LMS(planner="cost")
    return LMS(memory_budget=args.memory_budget)


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train some steps, and return figures of them."""
    import keras
    import numpy as np

    from hpcckpt.lms.verification import peak_since, reset_peak, resident

    keras.utils.set_random_seed(1)
    size = args.image_size
    model = keras.applications.ResNet50(weights=None, input_shape=(size, size, 3), classes=100)
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy", jit_compile=False)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(args.batch_size * args.steps, size, size, 3)).astype(np.float32)
    y = rng.integers(0, 100, len(x))
    lms = lms_of(args) if args.lms else None
    clock, start = Clock(), resident()
    reset_peak()
    if args.cap_gib:
        cap = vm_data() + int(args.cap_gib * (1 << 30))
        resource.setrlimit(resource.RLIMIT_DATA, (cap, cap))
    callbacks = [clock.callback(), *([lms] if lms else [])]
    model.fit(x, y, args.batch_size, shuffle=False, verbose=0, callbacks=callbacks)
    return {"step_s": clock.step_s, "peak_mib": (peak_since() - start) / (1 << 20), **swapped(lms)}


def vm_data() -> int:
    """Return the bytes that RLIMIT_DATA counts."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        if line.startswith("VmData:")
    )
    return int(line.split()[1]) << 10


def swapped(lms: Any) -> dict[str, Any]:
    """Return what LMS says of it."""
    if lms is None:
        return {}
    report, stats = lms.report(), lms.stats()
    stalled = sum(stats["stall_by_op"].values()) / 1e9
    plan = report.plan or {"n_swap_outs": 0, "nbytes_out": 0}
    return {"swap_outs": plan["n_swap_outs"], "swapped_mib": plan["nbytes_out"] / (1 << 20), "stalled_s": stalled}


class Clock:
    """The median time of a step, but for the first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def callback(self) -> Any:
        import keras

        return keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_: self.times.append(time.perf_counter()))

    @property
    def step_s(self) -> float:
        steps = sorted(b - a for a, b in zip(self.times, self.times[1:], strict=False))
        return steps[len(steps) // 2] if steps else 0.0


# -- all sizes


def run(args: argparse.Namespace, image_size: int, batch_size: int) -> dict[str, Any]:
    """Run one size in a child, and return its row."""
    sizes = ["--image-size", str(image_size), "--batch-size", str(batch_size)]
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], *sizes, "--child"], capture_output=True, text=True, check=False
    )
    row: dict[str, Any] = {"image_size": image_size, "batch_size": batch_size, "lms": args.lms, "ok": False}
    told = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
    if done.returncode == 0 and told:
        row |= json.loads(told[-1].removeprefix("FIGURES ")) | {"ok": True}
        row["megapixels_per_s"] = batch_size * image_size**2 / 1e6 / max(row["step_s"], 1e-9)
        return row
    last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
    return row | {"why": f"exit {done.returncode}: {last[0][:100] if last else 'no word'}"}


def write(path: str, row: dict[str, Any]) -> None:
    """Append a row."""
    is_new = not Path(path).exists()
    with Path(path).open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        writer.writerow({name: round(v, 3) if isinstance(v := row.get(name, ""), float) else v for name in FIELDS})


def words(row: dict[str, Any]) -> str:
    """Return a row for people."""
    what = f"{row['image_size']} x {row['image_size']}, batch {row['batch_size']}, LMS {'on' if row['lms'] else 'off'}"
    if not row["ok"]:
        return f"{what}: out of memory ({row['why']})"
    said = f"{what}: {row['step_s']:.2f} s a step, {row['megapixels_per_s']:.3f} MP/s, peak {row['peak_mib']:.0f} MiB"
    return f"{said}, {row['swap_outs']} swap-outs of {row['swapped_mib']:.0f} MiB" if row["lms"] else said


def main() -> None:
    """Run the sizes."""
    args = arguments()
    if args.child:
        print("FIGURES", json.dumps(train(args)), flush=True)
        return
    image_size, batch_size = args.image_size, args.batch_size
    for _ in range(args.most if args.grow else 1):
        row = run(args, image_size, batch_size)
        print(words(row), flush=True)
        if args.stats_csv:
            write(args.stats_csv, row)
        if not row["ok"]:
            sys.exit(0 if args.grow else 1)
        if args.grow == "image":
            image_size = int(image_size * args.by)
        else:
            batch_size = int(batch_size * args.by)


if __name__ == "__main__":
    main()
