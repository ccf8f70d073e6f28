"""A loop of one's own: its step trains, its figures are those of the epoch, its state is saved, its faults are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.train import CustomTrainLoop, export_config
from tests.support.train import pieces

PLAIN: dict[str, Any] = {
    "datasets": {"toy_data": {"is_shuffled": False}},
    "model": {"ToyModel": {"dropout": 0.0}},
    "seed": 5,
}


def test_a_tape_trains_as_fit_does(run: Any, tmp_path: Path) -> None:
    from hpcckpt.train import Environment

    run(pieces.config(**PLAIN, train_loop=pieces.loop("TapeLoop")))
    Environment(tmp_path / "fit", verbose=0).run(pieces.config(**PLAIN))
    expected = pieces.model_weights(tmp_path / "fit")
    for name, value in pieces.model_weights(tmp_path / "run").items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_figures_are_means_over_the_epoch_and_metrics_are_those_of_the_configuration(run: Any, tmp_path: Path) -> None:
    from hpcckpt.train import Environment

    (own,) = run(pieces.config(**PLAIN, train_loop=pieces.loop("TapeLoop")))
    (fits,) = Environment(tmp_path / "fit", verbose=0).run(pieces.config(**PLAIN))
    for name in ("loss", "mae", "val_loss", "val_mae"):
        np.testing.assert_allclose(own.history[name], fits.history[name], rtol=1e-4, err_msg=name)


def test_what_the_loop_says_is_its_state_is_saved_and_restored(run: Any, tmp_path: Path) -> None:
    run(pieces.config(train_loop=pieces.loop("TapeLoop")))
    assert hc.load(tmp_path / "run" / "cycle-1" / "step-0000000009")["n_rows"] == 9 * pieces.SIZE
    run(pieces.config(train_loop=pieces.loop("TapeLoop", epochs=3)))
    assert hc.load(tmp_path / "run" / "cycle-1")["n_rows"] == 24 * pieces.SIZE


def test_a_loop_may_validate_in_its_own_way(run: Any) -> None:
    @export_config
    class OwnValidation(pieces.TapeLoop):
        def valid_step(self, batch: Any) -> dict[str, Any]:
            return {"largest": tf.reduce_max(self.model(batch[0]))}

    (history,) = run(pieces.config(train_loop=pieces.loop("OwnValidation")))
    assert len(history.history["val_largest"]) == 2


def test_a_loop_may_run_as_python(run: Any) -> None:
    seen = []

    @export_config
    class Eager(pieces.TapeLoop):
        is_eager = True

        def train_step(self, batch: Any) -> dict[str, Any]:
            seen.append(batch[0].numpy().shape)
            return super().train_step(batch)

    (history,) = run(pieces.config(train_loop=pieces.loop("Eager", epochs=1)))
    assert len(seen) == pieces.BATCHES
    assert len(history.history["loss"]) == 1


def test_a_loss_by_name_is_one_number_for_a_batch(run: Any) -> None:
    (history,) = run(pieces.config(**PLAIN, loss="mse", train_loop=pieces.loop("TapeLoop", epochs=1)))
    (again,) = run(pieces.config(**PLAIN, train_loop=pieces.loop("TapeLoop", epochs=1)), "never", overwrite=True)
    np.testing.assert_allclose(history.history["loss"], again.history["loss"], rtol=1e-6)


def test_a_tape_trains_alike_under_an_optimizer_that_scales_the_loss(run: Any, tmp_path: Path) -> None:
    sgd = {"tf.keras.optimizers.SGD": {"learning_rate": 0.05}}
    scaling = {"tf.keras.mixed_precision.LossScaleOptimizer": {"inner_optimizer": sgd}}
    trained = []
    for optimizer in (sgd, scaling):
        run(pieces.config(**PLAIN, optimizer=optimizer, train_loop=pieces.loop("TapeLoop")), "never", overwrite=True)
        trained.append(pieces.model_weights(tmp_path / "run"))
    for name, value in trained[0].items():
        np.testing.assert_allclose(trained[1][name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("metrics", [[], ["mae"]])
def test_a_step_need_not_measure_the_metrics(metrics: list[str], run: Any) -> None:
    @export_config
    class MeasuresNothing(pieces.TapeLoop):
        def measure(self, *batch: Any) -> dict[str, Any]:
            return {}

    (history,) = run(pieces.config(metrics=metrics, train_loop=pieces.loop("MeasuresNothing")))
    assert len(history.history["loss"]) == len(history.history["val_loss"]) == 2


def test_a_loop_without_a_step_says_what_to_write(run: Any) -> None:
    with pytest.raises(hc.errors.OptionError, match="CustomTrainLoop has no train_step; name ktf"):
        run(pieces.config(train_loop=pieces.loop("hpcckpt.train.CustomTrainLoop")))


def test_a_step_that_gives_no_figures_is_told_before_anything_is_trained(run: Any, tmp_path: Path) -> None:
    @export_config
    class Silent(CustomTrainLoop):
        def train_step(self, batch: Any) -> Any:
            return None

    with pytest.raises(hc.errors.CodeError, match=r"Silent\.train_step gives NoneType, not a mapping"):
        run(pieces.config(train_loop=pieces.loop("Silent")))
    assert not list((tmp_path / "run").glob("cycle-1/step-*"))
