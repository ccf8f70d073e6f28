"""`.pins` and `.damaged` are removed with their last file; a file that is made at that moment is made all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.rundir import damage_records, pins

SAVE_ID = "0" * 32
N_TIMES = 400


def pin(run_dir: Path, step: int) -> None:
    pins.pin(run_dir, step)
    assert step in pins.pins(run_dir)
    assert pins.unpin(run_dir, step)


def pin_as_reader(run_dir: Path, step: int) -> None:
    name = pins.reader_name()
    pins.pin(run_dir, step, name)
    assert step in pins.pins(run_dir)
    assert pins.unpin(run_dir, step, name)


def record_damage(run_dir: Path, step: int) -> None:
    assert damage_records.record(run_dir, step, SAVE_ID, "a bit", "a test")
    assert damage_records.recorded_problem(run_dir, step, SAVE_ID)
    assert damage_records.clear(run_dir, step, SAVE_ID)


@pytest.mark.parametrize("act", [pin, pin_as_reader, record_damage])
def test_threads_make_and_remove_files_of_a_side_directory_without_errors(
    run_dir: Path, act: Callable[[Path, int], None]
) -> None:
    with hc.Checkpointer(run_dir, max_to_keep=None) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, {"w": np.zeros(3)}).result()
    errors: list[BaseException] = []

    def repeat(step: int) -> None:
        try:
            for _ in range(N_TIMES):
                act(run_dir, step)
        except BaseException as error:  # noqa: BLE001 - the test shows it
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(step,)) for step in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not [path for path in run_dir.iterdir() if path.name in (".pins", ".damaged")]
