"""A step is a whole number wherever one is taken; nothing is rounded, read from text, or taken for a number."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.core.options import Best, Options, parse_best
from hpcckpt.errors import OptionError, StateError, StepNotFoundError
from hpcckpt.format import layout
from hpcckpt.rundir import discovery, pins

WRONG: list[Any] = [3.7, 1.5, 3.0, "5", True, np.True_, np.float64(3), np.array([5]), decimal.Decimal(3), b"5", None]
RIGHT: list[Any] = [5, np.int64(5), np.uint8(5), np.array(5)]
BAD_STEP = "is not a whole number"


@pytest.mark.parametrize("step", WRONG, ids=repr)
def test_a_save_takes_whole_numbers_only_the_first_and_later_ones(run_dir, step, saving):
    with hc.Checkpointer(run_dir, **saving) as ckpt:
        for before in ((), (1,)):
            for number in before:
                ckpt.save(number, {"w": np.ones(3)}).result()
            with pytest.raises(StateError, match=BAD_STEP):
                ckpt.save(step, {"w": np.ones(3)}).result()
        assert ckpt.all_steps() == [1]
        ckpt.save(2, {"w": np.ones(3)}).result()


@pytest.mark.parametrize("step", RIGHT, ids=repr)
def test_integers_of_numpy_are_steps(run_dir, step):
    with hc.Checkpointer(run_dir) as ckpt:
        saved = ckpt.save(step, {"w": np.ones(3)}).result()
        ckpt.pin(step)
        restored = ckpt.restore({"w": np.zeros(3)}, step)
        assert ckpt.unpin(step)
    assert (type(saved.step), saved.step, restored.step) == (int, 5, 5)
    assert hc.load(run_dir, step=int(step))["w"].tolist() == [1.0] * 3


@pytest.mark.parametrize("step", [wrong for wrong in WRONG if wrong is not None], ids=repr)
def test_restore_and_pins_take_whole_numbers_only(run_dir, step):
    with hc.Checkpointer(run_dir) as ckpt:
        for number in (1, 3, 5):
            ckpt.save(number, {"w": np.full(3, float(number))}).result()
        state = {"w": np.zeros(3)}
        for use in (lambda: ckpt.restore(state, step), lambda: ckpt.pin(step), lambda: ckpt.unpin(step)):
            with pytest.raises(StateError, match=BAD_STEP):
                use()
        assert state["w"].tolist() == [0.0] * 3
    assert pins.pins(run_dir) == set()


@pytest.mark.parametrize("step", [3.7, 1.0, True, "1.0"], ids=repr)
def test_load_takes_whole_numbers_only(run_dir, step):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": np.ones(3)}).result()
    with pytest.raises(StepNotFoundError, match="names no step"):
        hc.load(run_dir, step=step)


@pytest.mark.counts(2)
def test_a_step_that_one_rank_gets_wrong_is_refused_on_all(run_dir, ranks):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"w": np.ones(3)}).result()
            with pytest.raises(StateError, match=BAD_STEP):
                ckpt.save(2 if comm.is_root else 2.0, {"w": np.ones(3)}).result()

    ranks(body)


@pytest.mark.parametrize("step", [-1, layout.MAX_STEP + 1])
def test_a_step_out_of_range_is_refused(run_dir, step):
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateError, match="is not between 0 and"):
        ckpt.save(step, {"w": np.ones(3)})


def test_integers_of_pytorch_are_steps_and_its_other_numbers_are_not():
    torch = pytest.importorskip("torch")
    assert layout.as_step(torch.tensor(7)) == 7
    for wrong in (torch.tensor(7.0), torch.tensor(True), torch.tensor([7])):
        with pytest.raises(StateError, match=BAD_STEP):
            layout.as_step(wrong)


@pytest.mark.tf
def test_integers_of_tensorflow_are_steps_and_its_other_numbers_are_not(run_dir):
    tf = pytest.importorskip("tensorflow")
    assert [layout.as_step(value) for value in (tf.constant(7), tf.Variable(7))] == [7, 7]
    manager = hc.tensorflow.CheckpointManager(tf.train.Checkpoint(w=tf.Variable(1.0)), run_dir, None)
    for wrong in (tf.constant(7.5), tf.Variable(7.0), tf.constant(True), 3.7, "5", True):
        with pytest.raises(StateError, match=BAD_STEP):
            layout.as_step(wrong)
        with pytest.raises(StateError, match=BAD_STEP):
            manager.save(wrong)
    assert manager.checkpoint.save_counter.numpy() == 0
    manager.save(np.int64(4))
    manager.close()
    assert discovery.step_numbers(run_dir) == [4]


MISSPELT = {
    "min": "write 'min:METRIC', such as 'min:val_loss'",
    "max": "write 'max:METRIC', such as 'max:accuracy'",
    "auto": "write 'auto:METRIC', such as 'auto:val_loss'",
    "max:": "write 'max:METRIC', such as 'max:accuracy'",
    "Min:val_loss": "write 'min:val_loss'",
    "maximum:reward": "write 'max:reward'",
    "highest": "write 'max:METRIC', such as 'max:accuracy'",
    "": "write 'val_loss', 'min:val_loss' or 'max:accuracy'",
    ":val_loss": "write 'val_loss', 'min:val_loss' or 'max:accuracy'",
}


@pytest.mark.parametrize("text", MISSPELT)
def test_keep_best_without_a_metric_is_refused_with_the_right_spelling(run_dir, text):
    with pytest.raises(OptionError) as refused:
        hc.Checkpointer(run_dir, keep_best=text)
    assert MISSPELT[text] in str(refused.value)


def test_a_metric_that_is_called_like_a_direction_can_be_given_as_an_object():
    assert Options(keep_best=Best("max")).problems() == []
    assert parse_best("max:val_loss:3") == Best("val_loss", "max", 3)
    assert parse_best("val_loss:2") == Best("val_loss", "auto", 2)
    assert parse_best("maximal_error") == Best("maximal_error")


@pytest.mark.parametrize("name", ["async_save", "incremental", "nan_guard"])
@pytest.mark.parametrize("value", ["no", "off", "", None, 2])
def test_an_option_that_is_true_or_false_takes_no_text(run_dir, name, value):
    with pytest.raises(OptionError, match=f"{name}: must be True or False"):
        hc.Checkpointer(run_dir, **{name: value})


@pytest.mark.parametrize("name", ["comm", "nice", "self", "threads"])
def test_an_argument_of_a_backend_that_is_no_option_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"backend_options.{name}: backend 'rankfile' has no such option"):
        hc.Checkpointer(tmp_path, backend_options={name: 1})
    assert not list(tmp_path.iterdir())
