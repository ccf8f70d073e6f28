"""Data of the user's own, shuffled, read ahead and repeated: resumed anywhere, its training ends with the same bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from hpcckpt.train import Environment, export_config
from tests.support.train import pieces

EPOCHS, STEPS = 3, 5
"""The data ends during the second epoch, which is five of its eight batches long."""
Run = Callable[..., list[Any]]


@export_config
def endless_data(is_read_ahead_last: bool) -> Any:
    """Return rounds in an order of their own, and what to validate with."""
    data = tf.data.Dataset.from_tensor_slices(pieces.rows(pieces.BATCHES * pieces.SIZE)).shuffle(50).batch(pieces.SIZE)
    valid = tf.data.Dataset.from_tensor_slices(pieces.rows(12)).batch(4)
    return (data.repeat().prefetch(2) if is_read_ahead_last else data.prefetch(2).repeat()), valid


def config(is_read_ahead_last: bool) -> list[dict[str, Any]]:
    return pieces.config(
        datasets={"endless_data": {"is_read_ahead_last": is_read_ahead_last}},
        train_loop=pieces.loop(epochs=EPOCHS, num_train_steps=STEPS),
        checkpoint={"every_n_batches": 1, "max_to_keep": None, "batch_norm": "per-rank"},
        seed=5,
    )


@pytest.mark.parametrize("is_read_ahead_last", [False, True], ids=["prefetch, repeat", "repeat, prefetch"])
def test_wherever_it_resumes_it_says_exact_and_ends_with_the_same_bits(
    is_read_ahead_last: bool, run: Run, tmp_path: Path, capfd: Any
) -> None:
    wanted = config(is_read_ahead_last)
    run(wanted)
    expected = pieces.ends_with(tmp_path / "run", 1)
    for step in (4, 6, 7, 8, 12):
        again = tmp_path / f"from {step}"
        shutil.copytree(tmp_path / "run", again)
        capfd.readouterr()
        Environment(again, step).run(wanted)
        assert "hpcckpt: next resume level=exact iterator=saved" in capfd.readouterr().err
        assert pieces.ends_with(again, 1) == expected, step
