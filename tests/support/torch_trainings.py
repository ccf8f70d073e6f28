"""Trainings that the tests run: small, with all that makes an exact resume hard."""

from __future__ import annotations

from typing import Any

import torch

import hpcckpt as hc


def net(seed: int = 0) -> torch.nn.Module:
    """Return a net with BatchNorm and dropout, built from a seed."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2)
    )


def train(model: torch.nn.Module, optimizer: Any, steps: int, scheduler: Any = None, seed: int = 7) -> list[float]:
    """Train on batches that follow from the seed; return the losses."""
    torch.manual_seed(seed)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 4)

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x).float() ** 2).mean()
            loss.backward()
            return loss

        losses.append(float(optimizer.step(closure).detach()))
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(losses[-1])
        elif scheduler is not None:
            scheduler.step()
    return losses


def save_and_restore(run_dir: Any, saved: Any, blank: Any, **options: Any) -> Any:
    """Save one state and restore it into another."""
    with hc.Checkpointer(run_dir, **options) as ckpt:
        ckpt.save(1, saved).result()
        restored = ckpt.restore(blank)
    assert restored.warnings == ()
    return restored


def assert_same(one: Any, other: Any) -> None:
    """Check that two state dicts are the same, to the bit."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)
    else:
        assert one == other
