"""TensorBoard from a configuration: on rank 0, with what saves cost, and counters that go on."""

from __future__ import annotations

from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keras
import pytest

from hpcckpt.train.callbacks.tensorboard import called_on
from tests.support.train import pieces
from tests.support.train.launch import MPI4PY, completed, needs_mpirun, train

pytestmark = pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard is not installed")


def config(log_dir: Path, epochs: int = 2, **changes: Any) -> list[dict[str, Any]]:
    board = {"tf.keras.callbacks.TensorBoard": {"log_dir": str(log_dir), "profile_batch": [3, 4]}}
    return pieces.config(train_loop=pieces.loop(epochs=epochs, callbacks=[{"DieAt": {"cycle": 1}}, board]), **changes)


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard would draw of a directory, by tag."""
    import tensorflow as tf

    found = defaultdict(list)
    for path in sorted(directory.glob("events*"), key=lambda path: path.stat().st_mtime_ns):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.HasField("tensor") and value.metadata.plugin_data.plugin_name in {"scalars", ""}:
                    found[value.tag].append((event.step, float(tf.make_ndarray(value.tensor))))
    return dict(found)


def test_what_saves_cost_is_drawn_beside_the_curves_of_the_training(run: Any, tmp_path: Path) -> None:
    run(config(tmp_path / "board"))
    drawn = scalars(tmp_path / "board" / "checkpoint")
    assert set(drawn) == {"checkpoint/stall_seconds", "checkpoint/bytes", "checkpoint/GBps"}
    saved = {entry["step"]: entry for entry in pieces.log(tmp_path / "run", "saved")}
    assert [step for step, _ in drawn["checkpoint/bytes"]] == list(saved)
    for step, value in drawn["checkpoint/bytes"]:
        assert value == saved[step]["bytes"]
    for step, value in drawn["checkpoint/stall_seconds"]:
        assert value == pytest.approx(saved[step]["stall_seconds"], abs=1e-4)


def test_profile_batch_as_a_list_works(run: Any, tmp_path: Path) -> None:
    run(config(tmp_path / "board"))
    assert list((tmp_path / "board").glob("**/plugins/profile/*"))


def test_the_counters_go_on_behind_a_resume(tmp_path: Path) -> None:
    board, run = tmp_path / "board", tmp_path / "run"
    assert train(run, config(board, 3), kill="1:12").code == -9
    completed(train(run, config(board, 3)))
    epochs = [step for step, _ in scalars(board / "train")["epoch_loss"]]
    assert epochs == [0, 1, 2]
    steps = [step for step, _ in scalars(board / "checkpoint")["checkpoint/bytes"]]
    assert steps == sorted(steps)
    assert steps[-1] == 24


@needs_mpirun
@pytest.mark.parametrize("kind", [MPI4PY])
def test_only_rank_0_draws(kind: str, tmp_path: Path) -> None:
    completed(train(tmp_path / "run", config(tmp_path / "board", distributed=kind), 2))
    assert len(list((tmp_path / "board" / "train").glob("events*.v2"))) == 1
    assert len(scalars(tmp_path / "board" / "train")["epoch_loss"]) == 2


def test_callbacks_that_write_files_are_called_on_rank_0_only() -> None:
    writers = [
        keras.callbacks.TensorBoard("x"),
        keras.callbacks.CSVLogger("x"),
        keras.callbacks.ModelCheckpoint("x.keras"),
    ]
    others = [keras.callbacks.EarlyStopping(), keras.callbacks.Callback()]
    assert called_on(0, [*writers, *others]) == [*writers, *others]
    assert called_on(1, [*writers, *others]) == others
