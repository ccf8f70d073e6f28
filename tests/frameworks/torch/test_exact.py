"""Killed within an epoch, a training goes on as if it had never been killed: the same weights, to the bit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import hpcckpt as hc
from hpcckpt.errors import OptionError
from tests.support.mnist import random_mnist
from tests.support.mpi.launch import find_mpirun, mpirun

JOB = str(Path(__file__).with_name("job_torch_exact.py"))


@pytest.fixture
def small_mnist(tmp_path: Path) -> Path:
    return random_mnist(tmp_path / "mnist.npz")


@pytest.mark.timeout(600)  # three jobs that each import PyTorch twice
@pytest.mark.skipif(find_mpirun() is None, reason="no mpirun")
def test_killed_and_resumed_the_weights_are_those_of_a_run_that_never_was(tmp_path, small_mnist):
    """SIGKILL to one of two ranks, within an epoch; dropout, BatchNorm, shuffling, a schedule and Adam."""
    common = ["--data", str(small_mnist), "--epochs", "2", "--batch-size", "10", "--every", "5"]

    def run(directory: str, kill_at: int) -> Any:
        arguments = [JOB, str(kill_at), "--run", str(tmp_path / directory), *common]
        return mpirun(2, *arguments, timeout_s=180, OMP_NUM_THREADS="1")

    straight = run("straight", 0)
    assert straight.code == 0, straight.err
    assert run("killed", 13).code != 0
    resumed = run("killed", 0)
    assert resumed.code == 0, resumed.err
    assert int(re.search(r"begin: step=(\d+)", resumed.out)[1]) in (5, 10)
    assert end_of(resumed.out) == end_of(straight.out)


def end_of(out: str) -> tuple[str, str]:
    found = re.search(r"done: step=(\d+) loss=\S+ sha256=([0-9a-f]{64})", out)
    assert found, out
    return found[1], found[2]


# -- the position in the data --------------------------------------------------------------------


def deal(n_ranks: int, n_steps: int | None, state: Any = None) -> tuple[list[int], dict[str, int]]:
    """Return what all ranks see in `n_steps` steps, or to the end of the epoch, and the position after."""
    seen, after = [], {}
    for rank in range(n_ranks):
        sampler = hc.torch.BatchSampler(100, 4, rank, n_ranks, seed=3)
        if state is not None:
            sampler.load_state_dict(state)
        for number, batch in enumerate(sampler.loader(range(100))):
            if number == n_steps:
                break
            seen += batch.tolist()
            sampler.advance()
        after = sampler.state_dict()
    return seen, after


@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 1, 3), (1, 3, 2), (5, 1, 2)])
def test_no_sample_is_seen_twice_when_the_ranks_change_within_an_epoch(counts):
    first, state = deal(counts[0], 2)
    second, state = deal(counts[1], 3, state)
    third, state = deal(counts[2], None, state)
    seen = first + second + third
    assert len(set(seen)) == len(seen)
    assert 100 - len(seen) < 4 * counts[2]
    assert state == {"epoch": 1, "samples": 0, "n_samples": 100, "seed": 3, "shuffle": True}


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ({"seed": 4}, "seed 4, not 3"),
        ({"n_samples": 80}, "n_samples 80, not 100"),
        ({"shuffle": False}, "shuffle False, not True"),
        ({}, None),
    ],
)
def test_a_position_in_another_order_of_samples_is_restored_with_a_warning(run_dir, caplog, now, named):
    saved = hc.torch.BatchSampler(100, 4, 0, 1, seed=3)
    saved.advance(2)
    hc.torch.save(run_dir, 1, data=saved)
    blank = hc.torch.BatchSampler(**{"n_samples": 100, "batch_size": 4, "rank": 0, "size": 1, "seed": 3, **now})
    hc.torch.restore(run_dir, data=blank)
    assert blank.samples == 8
    assert (named is None and not caplog.text) or f"this one has {named}" in caplog.text


def test_a_position_that_was_saved_without_its_seed_can_be_restored(run_dir, caplog):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"data": {"epoch": 2, "samples": 8}}).result()  # as 0.1 did
    blank = hc.torch.BatchSampler(100, 4, 0, 1, seed=3)
    hc.torch.restore(run_dir, data=blank)
    assert (blank.epoch, blank.samples, caplog.text) == (2, 8, "")


def test_all_ranks_together_see_what_one_would_and_epochs_differ():
    assert set(deal(5, 2)[0]) == set(deal(1, 10)[0])
    assert deal(1, None)[0] != deal(1, None, {"epoch": 1, "samples": 0})[0]
    assert deal(1, None)[0] == deal(1, None)[0]


def test_a_loader_leaves_the_programs_own_stream_alone():
    before = torch.get_rng_state()
    assert len([*hc.torch.BatchSampler(10, 2, 0, 1).loader(range(10))]) == 5
    assert torch.equal(torch.get_rng_state(), before)


def test_without_shuffling_samples_come_in_order():
    sampler = hc.torch.BatchSampler(7, 3, 0, 1, shuffle=False)
    assert ([*sampler], len(sampler), sampler.step) == ([[0, 1, 2], [3, 4, 5]], 2, 0)
    sampler.advance()
    assert ([*sampler], len(sampler), sampler.step) == ([[3, 4, 5]], 1, 1)
    with pytest.raises(OptionError, match="not enough"):
        hc.torch.BatchSampler(7, 3, 0, 3)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 0}, "batch_size: 0"),
        ({"rank": 2, "size": 2}, "rank: 2"),
        ({"seed": 1 << 60}, "seed: 1152921504606846976"),
    ],
)
def test_a_sampler_refuses_numbers_that_make_no_order_of_samples(options, named):
    with pytest.raises(OptionError, match=named):
        hc.torch.BatchSampler(**{"n_samples": 100, "batch_size": 4, "rank": 0, "size": 1, **options})


@pytest.mark.parametrize("seed", [-(1 << 43), (1 << 44) - 1])
def test_a_sampler_draws_orders_from_the_smallest_and_the_largest_seed(seed):
    sampler = hc.torch.BatchSampler(8, 4, 0, 1, seed=seed)
    assert sorted(number for batch in sampler for number in batch) == [*range(8)]
