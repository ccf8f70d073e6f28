"""What the examples build on: dealing samples to ranks, and reading MNIST without running its pickle."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcckpt.keras.data.position import DataPosition
from tests.support import examples

mnist_data = examples.load("mnist_data")
Story = examples.load("jobs").Story
EpochSampler = examples.load("sampler").EpochSampler


def deal(
    n_ranks: int, n_steps: int | None, state: Any = None, n: int = 100, batch_size: int = 4
) -> tuple[list[int], Any]:
    """Return what `n_ranks` ranks see in `n_steps` steps, or to the end of the epoch, and the position after."""
    seen: list[int] = []
    for rank in range(n_ranks):
        sampler = EpochSampler(100, 4, rank, n_ranks)
        if state is not None:
            sampler.load_state_dict(state)
        count = sampler.steps_per_epoch - sampler.batch if n_steps is None else n_steps
        seen += [int(i) for index in islice(sampler.indices(), count) for i in index]
        sampler.advance(count)
    return seen, sampler.state_dict()


@pytest.mark.parametrize("counts", [(2, 1, 3), (1, 3, 2), (3, 3, 5), (5, 1, 1)])
def test_no_sample_is_seen_twice_when_the_ranks_change_within_an_epoch(counts: Any) -> None:
    first, state = deal(counts[0], 2)
    second, state = deal(counts[1], 3, state)
    third, state = deal(counts[2], None, state)
    seen = first + second + third
    assert len(set(seen)) == len(seen)
    assert 100 - len(seen) < 4 * counts[2]
    assert state == {"epoch": 1, "samples": 0}


def test_all_ranks_together_see_what_one_would() -> None:
    assert set(deal(5, 2)[0]) == set(deal(1, 10)[0])


def test_the_batches_left_are_whole() -> None:
    sampler: DataPosition = EpochSampler(100, 4, 0, 3)
    sampler.load_state_dict({"epoch": 2, "samples": 20})  # 80 left, 12 a step: 6 of 8 steps
    assert (sampler.epoch, sampler.batch) == (2, 2)
    sampler.load_state_dict({"epoch": 2, "samples": 92})  # 8 left are too few
    assert (sampler.epoch, sampler.batch) == (3, 0)


def test_a_data_set_too_small_for_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match="not enough"):
        EpochSampler(10, 4, 0, 3)


OLD_PICKLE = (
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I3\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntR"
    b"(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\nS'\\x00\\x07\\xff'\ntb."
)
"""The array [0, 7, 255] as Python 2 wrote it."""


def test_the_unpickler_reads_arrays_as_python_2_wrote_them() -> None:
    array = mnist_data.ArrayUnpickler(io.BytesIO(OLD_PICKLE), encoding="latin1").load()
    assert array.tolist() == [0, 7, 255]


@pytest.mark.parametrize("evil", [os.system, eval, Path, np.save])
def test_the_unpickler_refuses_everything_else(evil: Any) -> None:
    with pytest.raises(pickle.UnpicklingError, match="not array data"):
        mnist_data.ArrayUnpickler(io.BytesIO(pickle.dumps(evil, protocol=2))).load()


def test_the_cache_is_made_once_and_whole(tmp_path: Path, monkeypatch: Any) -> None:
    made: list[int] = []

    def read() -> dict[str, Any]:
        made.append(1)
        return dict(zip(mnist_data.NAMES, [np.ones((2, 28, 28), np.uint8), np.ones(2, np.uint8)] * 2, strict=True))

    def on_root(fn: Callable[[], str]) -> str:
        return fn()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(mnist_data, "_read_package", read)
    for _ in range(2):
        data = mnist_data.load(None, on_root)
    assert data.x_train.shape == (2, 28, 28, 1)
    assert data.x_train.max() == pytest.approx(1 / 255)
    assert made == [1]
    assert os.listdir(tmp_path / "hpcckpt-examples") == ["mnist.npz"]


def test_the_demo_understands_what_the_example_says() -> None:
    story = Story()
    for line in (
        "lenet5: ranks=1 averaging=horovod images=24000 steps_per_epoch=375",
        "hpcckpt: resume step=80 epoch=0 batch=160 from=a/step-0000000080 ranks 2->1 level=state iterator=exact",
        "probe: begin step=80 loss=0.25",
        "train: step=81 epoch=0 batch=161/375 loss=0.5",
        "probe: saving step=120 loss=0.125",
        "hpcckpt: saved step=120 epoch=0 bytes=4.93MiB stall=0.01s total=0.02s bw=1MiB/s backend=rankfile files=1",
        "done: step=500 test_loss=0.1 test_accuracy=0.98",
    ):
        story.hear(line)
    assert (story.steps_per_epoch, story.resumed, story.resumed_ranks, story.resumed_batch) == (375, 80, "2->1", 160)
    assert (story.first_step, story.begin_loss, story.losses, story.saved) == (81, "0.25", {120: "0.125"}, [120])
    assert story.accuracy == 0.98
