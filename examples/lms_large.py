"""Train on larger and larger inputs until memory runs out, with and without LMS.

    python examples/lms_large.py --image-size 64 --batch-size 8                        ResNet50, one size, with LMS
    python examples/lms_large.py --network unet3d --image-size 32 --batch-size 1       a 3-D U-Net
    python examples/lms_large.py --grow image --cap-gib 1.0 --no-lms                   the largest images without LMS
    python examples/lms_large.py --grow batch --cap-gib 1.0                            the largest batch with LMS
    python examples/lms_large.py --swapout-threshold 100 --sync-mode 3                 LMS by distance, as TFLMSv2

``--grow`` enlarges the images (or volumes) or the batch; ``--stats-csv`` writes a row for each size. Each size runs in
a separate process, because a process that runs out of memory may be aborted or killed. ``--cap-gib`` sets RLIMIT_DATA
that much above the value before the first step. After a size runs out of memory, another process, without the limit,
traces the step and lists the largest tensors. Without a GPU, the figures are of CPU memory, and LMS swaps to a local
file.
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
    "network", "image_size", "batch_size", "lms", "recompute_grad", "ok", "step_s", "megapixels_per_s", "peak_mib",
    "swap_outs", "swapped_mib", "stalled_s", "loss", "why",
]  # fmt: skip
MEMORY_ERRORS = (
    "ResourceExhausted", "OOM when allocating", "MemoryError", "bad_alloc", "MemoryBudgetError", "exception:Status: 1,",
)  # fmt: skip
"""Parts of out-of-memory messages: TensorFlow, Python, C++, LMS, and oneDNN's status 1, `dnnl_out_of_memory`."""


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="A network until memory runs out, with Large Model Support")
    parser.add_argument(
        "--network", default="ResNet50", help="a name of keras.applications, or unet3d (default: %(default)s)"
    )
    parser.add_argument("--image-size", type=int, default=64, help="pixels on a side (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--depth", type=int, default=3, help="of unet3d: how many times it halves the volume")
    parser.add_argument("--filters", type=int, default=16, help="of unet3d: of its first convolutions")
    parser.add_argument("--channels-first", action="store_true", help="NCHW; see below what a CPU can do")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--recompute-grad", action="store_true", help="gradient checkpointing by tf.recompute_grad")
    lms = parser.add_argument_group("LMS")
    lms.add_argument("--lms", action=argparse.BooleanOptionalAction, default=True)
    lms.add_argument("--memory-budget", default="least", help="'600 MiB', or 'least': as little as a plan can do with")
    distance = parser.add_argument_group(
        "LMS by distance, as TFLMSv2", "used if one of the first three is given; -1 is found by a search"
    )
    distance.add_argument("--swapout-threshold", type=int)
    distance.add_argument("--swapin-ahead", type=int)
    distance.add_argument("--swapin-groupby", type=int)
    distance.add_argument("--sync-mode", type=int, default=0, choices=range(4))
    distance.add_argument("--serialization", nargs="+", type=level, default=[], metavar="LEVEL", help="1 3:5 7")
    distance.add_argument("--serialization-by-size", type=float, default=0, metavar="GIB")
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument("--grow", choices=["image", "batch"], help="continue with larger ones until memory runs out")
    sizes.add_argument("--by", type=float, default=1.5, help="how much larger each time (default: %(default)s)")
    sizes.add_argument("--most", type=int, default=8, metavar="N", help="sizes to try at most (default: %(default)s)")
    sizes.add_argument("--cap-gib", type=float, help="memory above what there is before the first step")
    sizes.add_argument("--stats-csv", metavar="FILE", help="append a row for each size")
    sizes.add_argument(
        "--largest",
        type=int,
        default=5,
        metavar="N",
        help="tensors to list when memory runs out (default: %(default)s)",
    )
    parser.add_argument("--child", choices=["train", "trace"], help=argparse.SUPPRESS)
    return parser.parse_args(given)


def level(text: str) -> int | str:
    """Return a level as an int, or a range of levels as text, as LMS accepts it."""
    return text if ":" in text else int(text)


# -- one size, in a separate process


def lms_of(args: argparse.Namespace) -> Any:
    """Return the LMS callback that the options describe."""
    from hpcckpt.lms import LMS

    given = {name: getattr(args, name) for name in ("swapout_threshold", "swapin_ahead", "swapin_groupby")}
    given = {name: value for name, value in given.items() if value is not None}
    if given:
        more = {name: getattr(args, name) for name in ("sync_mode", "serialization", "serialization_by_size")}
        lms = LMS(**given, **more, min_bytes="256 KiB", planner="distance")
    else:
        lms = LMS(planner="cost") if args.memory_budget == "least" else LMS(memory_budget=args.memory_budget)
    lms.batch_size = args.batch_size
    return lms


def model_and_batch(args: argparse.Namespace) -> tuple[Any, tuple[Any, Any]]:
    """Return a compiled model and one batch of random data."""
    import keras
    import numpy as np
    from large_models import build, names

    if args.network not in names():
        sys.exit(f"lms_large.py: no network {args.network!r}: one of {', '.join(names())}")
    keras.utils.set_random_seed(1)
    if args.channels_first:
        keras.backend.set_image_data_format("channels_first")
    form = {"depth": args.depth, "filters": args.filters, "recompute": args.recompute_grad}
    model = build(args.network, args.image_size, **form)
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy", jit_compile=False)
    chance = np.random.default_rng(0)
    x = chance.standard_normal((args.batch_size, *model.input_shape[1:]), np.float32)
    y = chance.integers(0, model.output_shape[-1], (args.batch_size, *model.output_shape[1:-1])).astype(np.int32)
    return model, (x, y)


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train some steps; return their time, peak memory, loss and swap figures."""
    import tensorflow as tf

    from hpcckpt.lms.verification import peak_since, reset_peak, resident

    model, batch = model_and_batch(args)
    batches = tf.data.Dataset.from_tensors(batch).repeat(args.steps)
    lms = lms_of(args) if args.lms else None
    clock, start = Clock(), resident()
    reset_peak()
    if args.cap_gib:
        cap = vm_data() + int(args.cap_gib * (1 << 30))
        resource.setrlimit(resource.RLIMIT_DATA, (cap, cap))
    fitted = model.fit(batches, verbose=0, callbacks=[clock.callback(), *([lms] if lms else [])])
    figures = {"step_s": clock.step_s, "peak_mib": (peak_since() - start) / (1 << 20)}
    return {**figures, "loss": fitted.history["loss"][-1], **swapped(lms)}


def trace(args: argparse.Namespace) -> dict[str, Any]:
    """Trace a step without running it, and return its largest tensors."""
    import tensorflow as tf

    from hpcckpt.lms import largest_tensors

    model, (x, y) = model_and_batch(args)
    step = tf.function(lambda *batch: model.train_step(batch))
    found = largest_tensors(step.get_concrete_function(tf.constant(x), tf.constant(y)).graph, args.largest)
    tensors = [[each.nbytes, each.dtype, each.shape, each.name] for each in found.tensors]
    return {"nbytes": found.nbytes, "op": found.op, "tensors": tensors}


def vm_data() -> int:
    """Return the bytes of this process that count against RLIMIT_DATA."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        if line.startswith("VmData:")
    )
    return int(line.split()[1]) << 10


def swapped(lms: Any) -> dict[str, Any]:
    """Return the number of swap-outs, the MiB swapped, and the seconds stalled."""
    if lms is None:
        return {}
    report, stats = lms.report(), lms.stats()
    stalled = sum(stats["stall_by_op"].values()) / 1e9
    plan = report.plan or {"n_swap_outs": 0, "nbytes_out": 0}
    return {"swap_outs": plan["n_swap_outs"], "swapped_mib": plan["nbytes_out"] / (1 << 20), "stalled_s": stalled}


class Clock:
    """Measures the median time of a step in seconds, without the first step."""

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


def child(what: str, image_size: int, batch_size: int) -> tuple[dict[str, Any] | None, str]:
    """Train or trace one size in a child; return its figures, or None and the cause."""
    sizes = ["--image-size", str(image_size), "--batch-size", str(batch_size)]
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], *sizes, "--child", what], capture_output=True, text=True, check=False
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
    if done.returncode == 0 and told:
        return json.loads(told[-1].removeprefix("FIGURES ")), ""
    return None, cause(done.returncode, done.stderr)


def cause(code: int, stderr: str) -> str:
    """Return a child's exit code and last message, if possible one about memory."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("[[")]  # TensorFlow names the node below its message
    of_memory = [line for line in lines if any(word in line for word in MEMORY_ERRORS)]
    last = (of_memory or lines or ["no message"])[-1]
    return f"exit {code}: {last[:160]}"


def is_out_of_memory(why: str) -> bool:
    """Return True if a child raised a memory error or was ended by a signal."""
    return why.startswith("exit -") or any(word in why for word in MEMORY_ERRORS)


def run(args: argparse.Namespace, image_size: int, batch_size: int) -> dict[str, Any]:
    """Run one size in a child, and return its row."""
    row: dict[str, Any] = {
        "network": args.network, "image_size": image_size, "batch_size": batch_size, "lms": args.lms,
        "recompute_grad": args.recompute_grad, "ok": False,
    }  # fmt: skip
    figures, why = child("train", image_size, batch_size)
    if figures is None:
        return row | {"why": why}
    n_pixels = batch_size * image_size ** (3 if args.network == "unet3d" else 2)
    return row | figures | {"ok": True, "megapixels_per_s": n_pixels / 1e6 / max(figures["step_s"], 1e-9)}


def largest(image_size: int, batch_size: int) -> list[str]:
    """Return text lines that list the largest tensors of a step."""
    found, why = child("trace", image_size, batch_size)
    if found is None:
        return [f"  the step cannot be traced: {why}"]
    lines = [f"  largest of {found['nbytes'] >> 20} MiB of tensors that exist while {found['op']} runs:"]
    return lines + [
        f"  {nbytes >> 20:>8} MiB {dtype} {shape} {name}" for nbytes, dtype, shape, name in found["tensors"]
    ]


def write(path: str, row: dict[str, Any]) -> None:
    """Append a row to the CSV file; a new file gets a header."""
    is_new = not Path(path).exists()
    with Path(path).open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        writer.writerow({name: round(v, 3) if isinstance(v := row.get(name, ""), float) else v for name in FIELDS})


def words(row: dict[str, Any]) -> str:
    """Return a row as readable text."""
    sides = " x ".join([str(row["image_size"])] * (3 if row["network"] == "unet3d" else 2))
    what = f"{row['network']}, {sides}, batch {row['batch_size']}, LMS {'on' if row['lms'] else 'off'}"
    what += ", tf.recompute_grad" if row["recompute_grad"] else ""
    if not row["ok"]:
        return f"{what}: {'out of memory' if is_out_of_memory(row['why']) else 'FAILED'} ({row['why']})"
    said = f"{what}: {row['step_s']:.2f} s a step, {row['megapixels_per_s']:.3f} MP/s, peak {row['peak_mib']:.0f} MiB"
    return f"{said}, {row['swap_outs']} swap-outs of {row['swapped_mib']:.0f} MiB" if row["lms"] else said


def main() -> None:
    """Run one size, or larger and larger ones until memory runs out."""
    args = arguments()
    if args.child:
        print("FIGURES", json.dumps((train if args.child == "train" else trace)(args)), flush=True)
        return
    image_size, batch_size = args.image_size, args.batch_size
    for _ in range(args.most if args.grow else 1):
        row = run(args, image_size, batch_size)
        print(words(row), flush=True)
        if args.stats_csv:
            write(args.stats_csv, row)
        if not row["ok"]:
            ran_out = is_out_of_memory(row["why"])
            if ran_out and args.largest:
                print(*largest(image_size, batch_size), sep="\n", flush=True)
            sys.exit(0 if args.grow and ran_out else 1)
        if args.grow == "image":
            image_size = int(image_size * args.by)
        else:
            batch_size = int(batch_size * args.by)


if __name__ == "__main__":
    main()
