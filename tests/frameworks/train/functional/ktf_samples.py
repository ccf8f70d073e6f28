#!/usr/bin/env python3
"""Both samples of ktf's document run as they are written, offline; killed in each cycle they end with the same bits.

    ktf_samples.py [--images 640] [--ranks 1 2] [--exact-epochs 1] [--verbatim-only | --exact-only] [--directory DIR]

Nothing in the samples is changed for the first part: affNIST is generated, and the weights of ImageNet are looked for
in Keras' cache, where this script has put a file: random weights, with statistics of batch normalization that fit the
data. The second part sets a seed, how often is saved, and how many epochs, by ``--set``. With ``--images 4000`` it
takes an hour on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

import hpcckpt

SAMPLES = Path(__file__).resolve().parents[1] / "config" / "seeds"
N_CYCLES = {"simple": 1, "complex": 2}
WEIGHTS = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5"
LOOP = "train_loop.ktf.train.KerasTrainLoop.num_epochs"
LIMIT_S = 7200.0
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--samples", nargs="+", default=list(N_CYCLES), choices=list(N_CYCLES))
    parser.add_argument("--exact-epochs", type=int, default=1, help="of each cycle; default: %(default)s")
    parser.add_argument("--verbatim-only", action="store_true")
    parser.add_argument("--exact-only", action="store_true")
    parser.add_argument("--directory", type=Path)
    asked = parser.parse_args()
    with working_directory(asked.directory):
        prepare(asked.images)
        for sample in asked.samples:
            for n_ranks in asked.ranks:
                if not asked.exact_only:
                    verbatim(sample, n_ranks, asked.images)
                if not asked.verbatim_only:
                    exact(sample, n_ranks, asked)


@contextlib.contextmanager
def working_directory(directory: Path | None) -> Iterator[None]:
    """Work in a directory, by default one that is removed in the end; it is the home of Keras' cache, too."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as temporary:
        place = (directory or Path(temporary)).resolve()
        place.mkdir(parents=True, exist_ok=True)
        cache = os.environ.get("XDG_CACHE_HOME", os.path.join(os.path.expanduser("~"), ".cache"))
        os.environ.update({"HOME": str(place), "XDG_CACHE_HOME": cache, "https_proxy": "http://127.0.0.1:9"})
        os.chdir(place)
        try:
            yield
        finally:
            os.chdir(before)


def prepare(n_images: int) -> None:
    """Generate affNIST, and the file of weights in Keras' cache."""
    import tensorflow as tf

    from hpcckpt.train.datasets.digits import affnist

    affnist.convert("data/affnist", n_images=n_images)
    file = Path(".keras", "models", WEIGHTS)
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    tf.keras.utils.set_random_seed(1)
    base = tf.keras.applications.MobileNetV2((40, 40, 3), include_top=False, pooling="avg", weights=None)
    images, _ = next(iter(affnist.from_tfrecord("data/affnist", batch_size=256, force_rgb=True)[0]))
    for layer in base.layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.momentum = 0.0
    base(images, training=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base.save(file)


def start(sample: str, run: Path, n_ranks: int, sets: list[str]) -> subprocess.Popen[bytes]:
    """Begin, or resume, a training in a session of its own."""
    words = [sys.executable, "-m", "hpcckpt", "train", "-c", str(SAMPLES / f"{sample}.json"), "--run", str(run)]
    words = words if n_ranks == 1 else ["mpirun", "-n", str(n_ranks), *words]
    options = [word for each in sets for word in ("--set", each)]
    environment = os.environ | ({} if n_ranks == 1 else MPI | {"OMPI_MCA_orte_tmpdir_base": str(Path.cwd())})
    log = run.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            [*words, *options], env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )


def finish(sample: str, run: Path, n_ranks: int, sets: list[str]) -> float:
    """Train to the end, and return the seconds."""
    began = time.monotonic()
    code = start(sample, run, n_ranks, sets).wait(LIMIT_S)
    assert code == 0, (
        f"exit code {code}: " + run.with_suffix(".log").read_text(encoding="utf-8", errors="replace")[-3000:]
    )
    return time.monotonic() - began


def verbatim(sample: str, n_ranks: int, n_images: int) -> None:
    """Train by a sample as it is, and tell how well."""
    run = Path("runs", f"{sample}-{n_ranks}")
    seconds = finish(sample, run, n_ranks, [])
    log = run.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
    assert "are generated from" in log, log[-3000:]
    for cycle in range(1, N_CYCLES[sample] + 1):
        info = hpcckpt.info(run / f"cycle-{cycle}")
        shown = {name: round(value, 4) for name, value in info.metrics.items()}
        print(f"{sample}, {n_ranks} ranks, cycle {cycle}: step {info.step}, {shown}", flush=True)
    accuracy = accuracy_of(sample, run / f"cycle-{N_CYCLES[sample]}" / "final")
    print(
        f"{sample}, {n_ranks} ranks, {n_images} images, verbatim: accuracy={accuracy:.4f} seconds={seconds:.0f}",
        flush=True,
    )


def accuracy_of(sample: str, weights: Path) -> float:
    """Return the share of all images for validation that a model with saved weights knows."""
    from hpcckpt.train.config.cycles import cycles
    from hpcckpt.train.names.allow_list import Catalogue
    from hpcckpt.train.run.weights import fill

    cycle, catalogue = cycles(SAMPLES / f"{sample}.json")[0], Catalogue()
    _, valid = cycle.datasets.build(catalogue)
    model = cycle.model.build(catalogue)
    model(next(iter(valid))[0], training=False)
    fill(model, weights, 0, 1)
    right = [np.argmax(model(images, training=False), 1) == labels.numpy() for images, labels in valid]
    return float(np.concatenate(right).mean())


def exact(sample: str, n_ranks: int, asked: argparse.Namespace) -> None:
    """Train straight through, and killed once in each cycle; compare the bits of weights and optimizer."""
    n_steps = asked.images // 64 // n_ranks * asked.exact_epochs
    every = max(n_steps // 5, 1)
    sets = ["seed=1", f"checkpoint.every_n_batches={every}"]
    if sample == "complex":
        sets += [f"[{cycle}].{LOOP}={asked.exact_epochs}" for cycle in range(N_CYCLES[sample])]
        sets += ["checkpoint.batch_norm=per-rank"] if n_ranks > 1 else []  # each rank has its own statistics
    straight, killed = (Path("runs", f"{sample}-{n_ranks}-{kind}") for kind in ("straight", "killed"))
    finish(sample, straight, n_ranks, sets)
    steps = [kill_in(cycle, sample, killed, n_ranks, sets) for cycle in range(1, N_CYCLES[sample] + 1)]
    finish(sample, killed, n_ranks, sets)
    log = killed.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
    assert log.count("level=exact") >= len(steps), log
    for cycle in range(1, N_CYCLES[sample] + 1):
        one, other = (digest(run / f"cycle-{cycle}") for run in (straight, killed))
        print(
            f"{sample}, {n_ranks} ranks, cycle {cycle}: straight {one}, killed after step {steps[cycle - 1]} {other}",
            flush=True,
        )
        assert one == other, "the bits differ"


def kill_in(cycle: int, sample: str, run: Path, n_ranks: int, sets: list[str]) -> int:
    """Train until a cycle has a checkpoint, kill all ranks, and return its step."""
    job, limit = start(sample, run, n_ranks, sets), time.monotonic() + LIMIT_S
    folder = run / f"cycle-{cycle}"
    while not any(folder.glob("step-*/manifest.json")):
        assert job.poll() is None, f"the training ended with {job.returncode} before it could be killed"
        assert time.monotonic() < limit, f"no checkpoint in cycle {cycle}"
        time.sleep(0.01)
    os.killpg(job.pid, signal.SIGKILL)
    for child in ranks_of(run):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL, "the training was over before it was killed"
    return max(int(path.parent.name.removeprefix("step-")) for path in folder.glob("step-*/manifest.json"))


def ranks_of(run: Path) -> list[int]:
    """Return the processes that train in a run directory: mpirun starts each in a group of its own."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if str(run).encode() in words and Path(os.readlink(process / "cwd")) == Path.cwd():
                found.append(int(process.name))
    return found


def digest(cycle: Path) -> str:
    """Return a digest of the weights, and of the optimizer's state, at the end of a cycle."""
    tensors = {f"final/{name}": array for name, array in hpcckpt.load(cycle / "final").items()}
    tensors |= {name: array for name, array in hpcckpt.load(cycle).items() if name.startswith(("model", "optimizer"))}
    assert len(tensors) > 4, sorted(tensors)
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(name.encode())
        whole.update(np.ascontiguousarray(tensors[name]).tobytes())
    return whole.hexdigest()[:16]


if __name__ == "__main__":
    main()
    print("*********** Passed ***********")
