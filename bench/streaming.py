"""Images on disk, more than a process may have in memory: peak memory, throughput, and a resume within an epoch.

Noise as PNG files of 512×512 pixels, without compression, in four folders, and the same files in shards.  Each is
trained on for an epoch, with RLIMIT_DATA below their size: without interruption; and killed by SIGKILL behind half of
the epoch, and resumed.  Then batches are read without a training, by hpcckpt's data sets and by plain ``tf.data``, in
turns: files in a shuffled list, and TFRecords through a shuffle buffer, decoded, scaled and batched as there.

    python bench/streaming.py --mib 1200 --limit-mib 1024 --repeat 7
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from _calibrate import Machine
from _common import parser, scratch
from _report import Table, condition, figure, machine_facts, place_of, publish
from _rounds import Figures, interleave, spread

from hpcckpt.train.datasets import folders, shards

_SIDE, _SCALED, _CLASSES, _BATCH, _RUN = 512, 64, 4, 32, 4
_PATTERNS = 61
"""Different images; each is in all classes, so what is learned depends on the order."""
_MIB = 1 << 20
READERS = {"folders": "ktf.datasets.folders.from_raw", "shards": "ktf.datasets.shards.from_tfrecord"}


def write_images(place: Path, nbytes: int) -> tuple[int, int]:
    """Write PNG files until they are large enough; return how many, and their bytes."""
    n, written = 0, 0
    for label in range(_CLASSES):
        (place / f"class-{label}").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (_PATTERNS, _SIDE, _SIDE, 3), np.uint8)
    patterns = [tf.io.encode_png(each, compression=0).numpy() for each in noise]
    while written < nbytes:
        encoded = patterns[n % _PATTERNS]
        (place / f"class-{n % _CLASSES}" / f"{n:06d}.png").write_bytes(encoded)
        n, written = n + 1, written + len(encoded)
    return n, written


# -- trainings ---------------------------------------------------------------------------------------


def trained(asked: Any, place: Path, reader: str, run: str, kill: int = 0) -> dict[str, Any]:
    """Train for an epoch in a process of its own; return what it found, or nothing if it was killed as asked."""
    options = {"directory": str(place / reader), "batch_size": _BATCH, "image_size": _SCALED}
    orders = {
        "reader": READERS[reader], "options": options, "run": str(place / run), "kill": kill,
        "limit": asked.limit_mib * _MIB, "every": asked.every,
    }  # fmt: skip
    child = Path(__file__).with_name("_streaming_child.py")
    done = subprocess.run([sys.executable, str(child), json.dumps(orders)], capture_output=True, text=True, check=False)
    if kill:
        assert done.returncode == -signal.SIGKILL, done.stderr
        return {}
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return found


def resumed(asked: Any, place: Path, n_images: int) -> tuple[Table, dict[str, Any]]:
    """Train each data set without interruption, and killed and resumed; compare the weights."""
    table = Table(
        f"An epoch of images on {place_of(machine_facts(asked.directory))}, RLIMIT_DATA {asked.limit_mib} MiB",
        ["data set", "run", "peak data, MiB", "peak RSS, MiB", "read, MiB", "first batch after, s", "weights"],
    )
    n_batches = n_images * 4 // 5 // _BATCH
    kill = n_batches // 2 + 1
    found: dict[str, Any] = {}
    for reader in asked.parts:
        if reader not in READERS:
            continue
        straight = trained(asked, place, reader, f"{reader}-straight")
        trained(asked, place, reader, f"{reader}-killed", kill)
        again = trained(asked, place, reader, f"{reader}-killed")
        assert again["digest"] == straight["digest"], f"{reader}: other weights after a resume"
        found[reader] = {"straight": straight, "resumed": again}
        for name, one in found[reader].items():
            sizes = [f"{one[key] / _MIB:,.0f}" for key in ("peak_data", "peak_rss", "read")]
            table.rows.append([reader, name, *sizes, f"{one['first_batch_s']:.1f}", one["digest"][:12]])
    table.notes.append(
        f"{n_batches} batches of {_BATCH}, a checkpoint every {asked.every}, killed behind batch {kill}; "
        "the weights are equal in every bit"
    )
    return table, found


# -- reading alone -----------------------------------------------------------------------------------


def _decode(encoded: Any, label: Any) -> tuple[Any, Any]:
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    scaled = tf.image.resize(image, (_SCALED, _SCALED))
    return tf.cast(tf.clip_by_value(tf.math.round(scaled), 0, 255), tf.uint8), label


def _batched(decoded: Any) -> Any:
    batches = decoded.batch(_BATCH, drop_remainder=True).prefetch(2)
    return batches.map(lambda images, labels: (tf.cast(images, tf.float32) / 255, labels))


def plain_folders(place: Path) -> Any:
    """Return what one would write with tf.data: a list of files, shuffled as a whole."""
    paths = sorted(str(path) for path in (place / "folders").glob("*/*"))
    labels = [int(path.split("class-")[1][0]) for path in paths]
    files = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths), seed=1)
    return _batched(files.map(lambda path, label: _decode(tf.io.read_file(path), label), tf.data.AUTOTUNE))


def plain_shards(place: Path) -> Any:
    """Return what one would write with tf.data: files by turns, records through a shuffle buffer."""
    spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parsed(record: Any) -> tuple[Any, Any]:
        found = tf.io.parse_single_example(record, spec)
        return _decode(found["image"], found["label"])

    files = tf.data.Dataset.from_tensor_slices(sorted(map(str, (place / "shards").glob("*.tfrecord")))).shuffle(8)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=4, block_length=16).shuffle(256, seed=1)
    return _batched(records.map(parsed, tf.data.AUTOTUNE))


def reading(make: Callable[[], Any], n_batches: int) -> Callable[[], Figures]:
    """Return what reads batches from the first one on, after two that do not count."""

    def measure() -> Figures:
        iterator = iter(make())
        for _ in range(2):
            next(iterator)
        began, used = time.perf_counter(), time.process_time()
        for _ in range(n_batches):
            next(iterator)
        return {"read": time.perf_counter() - began, "processor": time.process_time() - used}

    return measure


def throughput(asked: Any, place: Path) -> tuple[Table, dict[str, Any]]:
    """Read batches by each reader in turns."""
    common = {"batch_size": _BATCH, "image_size": _SCALED}
    makes = {
        "plain tf.data, files": lambda: plain_folders(place),
        "folders.from_raw": lambda: folders.from_raw(place / "folders", **common)[0],
        "plain tf.data, TFRecords": lambda: plain_shards(place),
        "shards.from_tfrecord": lambda: shards.from_tfrecord(place / "shards", **common)[0],
        f"shards.from_tfrecord, run={_RUN}": lambda: shards.from_tfrecord(place / "shards", **common, run=_RUN)[0],
    }
    variants = {name: reading(make, asked.batches) for name, make in makes.items()}
    found = interleave(variants, Machine().copy_rate, repeat=asked.repeat, drift=asked.drift)
    facts = machine_facts(asked.directory)
    table = Table(
        f"Images read, decoded and scaled from {_SIDE} to {_SCALED} pixels, on {place_of(facts)}",
        [
            "",
            "images/s",
            "least to most",
            "throughput over plain",
            "least to most",
            "processor time over plain",
            "least to most",
        ],
    )
    for name in variants:
        base = "plain tf.data, files" if "folders" in name or "files" in name else "plain tf.data, TFRecords"
        rates = [asked.batches * _BATCH / seconds for seconds in found.of(name, "read")]
        over = figure(spread(found.ratios(base, name, "read")))
        used = figure(spread(found.ratios(name, base, "processor")))
        table.rows.append([name, *figure(spread(rates), digits=0), *over, *used])
    table.notes.append(f"{asked.batches} batches of {_BATCH}; {condition(found, facts)}")
    return table, {"figures": found.figures, "facts": facts}


def main() -> None:
    """Run."""
    options = parser(__doc__, mib=1200, repeat=7)
    options.add_argument("--limit-mib", type=int, default=1024, help="RLIMIT_DATA of the trainings")
    options.add_argument("--parts", nargs="+", default=[*READERS, "throughput"], choices=[*READERS, "throughput"])
    options.add_argument("--every", type=int, default=10, help="save every so many batches")
    options.add_argument("--batches", type=int, default=10, help="batches in a measurement of throughput")
    asked = options.parse_args()
    with scratch(asked.directory) as place:
        n_images, nbytes = write_images(place / "folders", asked.mib * _MIB)
        folders.convert(place / "shards", 16, source=place / "folders")
        first, trainings = resumed(asked, place, n_images)
        first.notes.append(f"{n_images} images, {nbytes / _MIB:,.0f} MiB")
        tables, data = [first] if trainings else [], {"program": "streaming", "trainings": trainings}
        if "throughput" in asked.parts:
            second, rates = throughput(asked, place)
            tables.append(second)
            data |= rates
    for table in tables:
        publish(table, asked, data)


if __name__ == "__main__":
    main()
