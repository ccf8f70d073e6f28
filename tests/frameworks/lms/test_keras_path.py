"""`fit` with LMS among the callbacks, and functions of one's own: when it acts, when it cannot, what it then says."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.errors import MemoryBudgetError, OptionError
from hpcckpt.lms import LMS
from hpcckpt.lms.planner.verify_step import Measured, MemoryWatch
from hpcckpt.lms.runtime import native_engine
from tests.support.lms import models

GIVEN = {"swapout_threshold": 2, "swapin_ahead": 1, "swapin_groupby": 0, "min_bytes": 1}


@pytest.fixture
def lines(caplog: Any) -> Any:
    caplog.set_level("INFO", logger="hpcckpt.lms")

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "hpcckpt.lms"]

    return said


def swapped(lms: LMS) -> int:
    return int(lms.report().plan.get("n_swap_outs", 0))


def moved() -> int:
    return native_engine.stats().bytes_out


def test_fit_is_planned_by_the_native_pass_and_says_so(lines: Any) -> None:
    lms = LMS(**GIVEN)
    models.fit(models.compiled(models.sequential), lms)
    report = lms.report()
    assert report.mode == "pass"
    assert swapped(lms) > 0
    assert sum(line == "[LMS][0] Editing model for LMS" for line in lines()) == 1
    assert any("Added " in line for line in lines())


@pytest.mark.parametrize("type_", ["Relu", "Conv2D", "BiasAdd", "_FusedConv2D"])
def test_filters_by_type_find_what_the_optimizer_fused(type_: str, lines: Any) -> None:
    fused, left = LMS(**GIVEN), LMS(**GIVEN)
    fused.incl_output_by_types, left.excl_output_by_types = {type_}, {type_}
    for lms in (fused, left):
        models.fit(models.compiled(models.convolving), lms)
    layers = [name for name in swapped_operations(fused) if re.search(r"\bconv2d(_\d+)*/Relu$", name)]
    assert len(layers) == 3, swapped_operations(fused)
    assert not swapped_operations(fused) & swapped_operations(left)
    assert not any("No operations" in line for line in lines())


def test_filters_that_match_nothing_do_not_end_the_training(lines: Any) -> None:
    lms = LMS(**GIVEN)
    lms.excl_output_by_types, lms.excl_input_by_scopes = {"Conv7D"}, {"nowhere"}
    models.fit(models.compiled(models.convolving), lms, epochs=2)
    assert swapped(lms) > 0
    told = [line for line in lines() if "No operations were found" in line]
    assert len(told) == 2  # once each
    assert any(
        re.search(r"types: Conv7D\. excl_output_by_types has no effect by it; the graph has .*Conv2D,.*Relu", line)
        for line in told
    )


def swapped_operations(lms: LMS) -> set[str]:
    """The names of the operations whose outputs are swapped."""
    return {out.tensor.op for out in lms._path.outcome.result.plan.swap_outs}


def test_the_batch_size_is_taken_from_fit() -> None:
    lms = LMS(**GIVEN)
    models.fit(models.compiled(models.sequential), lms, batch_size=4)
    assert lms.batch_size == 4


def test_the_batch_size_is_taken_from_a_pipeline() -> None:
    lms = LMS(**GIVEN)
    x, y = models.rows()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).prefetch(2)
    models.compiled(models.sequential).fit(data, shuffle=False, verbose=0, callbacks=[lms])
    assert lms.batch_size == 8


def test_a_batch_size_that_the_user_sets_stays() -> None:
    lms = LMS(**GIVEN)
    lms.batch_size = 64
    models.fit(models.compiled(models.sequential), lms)
    assert lms.batch_size == 64


def test_a_model_that_trained_before_is_planned_all_the_same() -> None:
    model = models.compiled(models.sequential)
    models.fit(model)
    lms, before = LMS(**GIVEN), moved()
    models.fit(model, lms)
    assert swapped(lms) > 0
    assert moved() > before


def test_a_second_fit_with_the_same_object_goes_on_with_the_plan(lines: Any) -> None:
    lms, model = LMS(**GIVEN), models.compiled(models.sequential)
    models.fit(model, lms)
    before = moved()
    models.fit(model, lms)
    assert moved() > before
    assert sum("Editing model" in line for line in lines()) == 1


def test_without_lms_nothing_is_planned_though_it_was_armed_before() -> None:
    models.fit(models.compiled(models.sequential), LMS(**GIVEN))
    before = moved()
    models.fit(models.compiled(models.sequential))
    assert moved() == before


def test_validation_in_fit_is_left_alone(lines: Any) -> None:
    lms = LMS(**GIVEN)
    models.fit(models.compiled(models.sequential), lms, validation_data=models.rows(8))
    assert sum("Editing model" in line for line in lines()) == 1


def sources(lms: LMS) -> set[str]:
    """Return the types of the ops whose tensors left."""
    outcome = lms._path.outcome
    assert outcome is not None
    assert outcome.result is not None
    assert outcome.context is not None
    return {outcome.context.graph.ops[out.tensor.op].type for out in outcome.result.plan.swap_outs}


def test_a_filter_holds_in_the_pass_too() -> None:
    plain, lms = LMS(**GIVEN), LMS(**GIVEN)
    models.fit(models.compiled(models.sequential), plain)
    left_out = max(sources(plain))
    lms.excl_output_by_types = {left_out}
    models.fit(models.compiled(models.sequential), lms)
    assert sources(lms) == sources(plain) - {left_out}


def test_a_loaded_model_trains_with_lms_without_being_given_it_again(tmp_path: Path) -> None:
    model = models.compiled(models.sequential)
    models.fit(model, hc.keras.ModelCheckpoint(tmp_path / "run" / "{epoch}", save_weights_only=False))
    lms, before = LMS(**GIVEN), moved()
    lms.batch_size = 8
    loaded = hc.keras.load_model(tmp_path / "run", callbacks=[lms])
    models.fit(loaded)
    assert swapped(lms) > 0
    assert moved() > before


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("name", ["model.keras", "model.h5", "saved_model"])
def test_a_file_of_keras_is_loaded_with_lms_too(name: str, tmp_path: Path) -> None:
    if name != "model.keras" and keras.__version__.startswith("3"):
        pytest.skip("Keras 3 saves no directories, and does not train what it loads from a .h5 file with its optimizer")
    model = models.compiled(models.sequential)
    models.fit(model)
    model.save(tmp_path / name)
    lms = LMS(**GIVEN)
    lms.batch_size = 8
    models.fit(hc.keras.load_model(tmp_path / name, callbacks=[lms]))
    assert swapped(lms) > 0


# -- checkpoints


def saved(place: Path, *callbacks: Any) -> Any:
    model = models.compiled(models.skipping)
    models.fit(model, hc.keras.ModelCheckpoint(place / "{epoch}", save_weights_only=False), *callbacks)
    return model, hc.load(place)


def test_checkpoints_have_the_same_names_shapes_and_signature(tmp_path: Path) -> None:
    lms = LMS(**GIVEN)
    plain, without = saved(tmp_path / "plain")
    edited, with_lms = saved(tmp_path / "lms", lms)
    assert swapped(lms) > 0
    assert list(without) == list(with_lms)
    assert [(v.shape, v.dtype) for v in without.values()] == [(v.shape, v.dtype) for v in with_lms.values()]
    assert hc.keras.signature(plain) == hc.keras.signature(edited)


def test_a_model_saved_by_keras_has_no_swaps(tmp_path: Path) -> None:
    model = models.compiled(models.sequential)
    models.fit(model, LMS(**GIVEN))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert models.digest(loaded.get_weights()) == models.digest(model.get_weights())
    before = moved()
    models.fit(loaded)
    assert moved() == before


def test_a_saved_model_has_no_swaps(tmp_path: Path) -> None:
    model = models.compiled(models.sequential)
    models.fit(model, LMS(**GIVEN))
    tf.saved_model.save(model, str(tmp_path / "sm"))
    definition = (tmp_path / "sm" / "saved_model.pb").read_bytes()
    assert b"HpcckptSwap" not in definition
    assert b"lms/swap" not in definition


# -- budgets


def test_a_budget_that_cannot_be_met_is_the_typed_error_of_the_step() -> None:
    with pytest.raises(MemoryBudgetError, match=r"nearest budget that can be kept is \d+\.\d\d MiB: give that"):
        models.fit(models.compiled(models.sequential), LMS(memory_budget=1, min_bytes=1))


def test_after_an_error_the_next_training_is_free_of_it() -> None:
    model = models.compiled(models.sequential)
    with pytest.raises(MemoryBudgetError):
        models.fit(model, LMS(memory_budget=1, min_bytes=1))
    assert models.fit(models.compiled(models.sequential))


def test_an_unknown_batch_size_is_refused_by_the_cost_planner() -> None:
    x, y = models.rows()
    data = tf.data.Dataset.from_generator(
        lambda: iter([(x, y)]), output_signature=(tf.TensorSpec((None, 16)), tf.TensorSpec((None,), tf.int64))
    )
    with pytest.raises(OptionError, match="the training batch size has not been set on the LMS instance"):
        models.compiled(models.sequential).fit(data, shuffle=False, verbose=0, callbacks=[LMS(memory_budget="1 GiB")])


def heavier(monkeypatch: Any, *peaks: int) -> None:
    """Let steps take so much: the first plan's, the next one's."""
    left = list(peaks)
    end = MemoryWatch.end

    def told(watch: MemoryWatch) -> Measured:
        end(watch)
        return Measured(left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(MemoryWatch, "end", told)


def test_a_first_step_that_takes_too_much_has_the_function_made_anew(lines: Any, monkeypatch: Any) -> None:
    heavier(monkeypatch, 30 << 20, 10 << 20)
    lms = LMS(memory_budget="20 MiB", min_bytes=1)
    models.fit(models.compiled(models.sequential), lms)
    report = lms.report()
    assert (report.n_attempts, report.is_verified) == (2, True)
    assert "[LMS][0] NOT kept: a step took 30.00 MiB, more than the memory budget of 20.00 MiB" in lines()
    assert "[LMS][0] Verified: a step took 10.00 MiB, within the memory budget of 20.00 MiB" in lines()


def test_a_budget_that_no_plan_keeps_is_a_warning_and_training_goes_on(lines: Any, monkeypatch: Any) -> None:
    heavier(monkeypatch, 30 << 20)
    lms = LMS(memory_budget="20 MiB", min_bytes=1)
    models.fit(models.compiled(models.sequential), lms)
    assert lms.report().is_verified is False
    assert sum("raise memory_budget to 31.50 MiB, lower the batch size" in line for line in lines()) == 1


def test_the_first_step_is_measured(lines: Any) -> None:
    lms = LMS(memory_budget="1 GiB")
    models.fit(models.compiled(models.sequential), lms)
    report = lms.report()
    assert report.is_verified
    assert json.loads(report.to_json())["memory_budget"] == 1 << 30


def trained(weight: Any, x: Any) -> Any:
    """Train a chain of three layers by one step, with one weight."""
    with tf.GradientTape() as tape:
        h = x
        for _ in range(3):
            h = tf.tanh(h @ weight)
        loss = tf.reduce_mean(h * h)
    weight.assign_sub(tape.gradient(loss, weight))
    return loss


class Trainer:
    """Has a step that is a method."""

    def __init__(self) -> None:
        self.weight = tf.Variable(tf.eye(16))

    @tf.function
    def step(self, x: Any) -> Any:
        return trained(self.weight, x)


def test_methods_of_a_class_are_watched_for_each_object() -> None:
    lms = LMS(**GIVEN)
    kind = type("Watched", (Trainer,), {"step": lms.watch(Trainer.__dict__["step"])})
    one, other = kind(), kind()
    assert float(one.step(tf.ones((8, 16)))) == float(other.step(tf.ones((8, 16))))
    assert lms.report().mode == "pass"
    assert one.step is one.step


def test_a_function_that_is_made_again_keeps_its_options(monkeypatch: Any) -> None:
    heavier(monkeypatch, 30 << 20, 10 << 20)
    lms, weight = LMS(memory_budget="20 MiB", min_bytes=1), tf.Variable(tf.eye(16))
    lms.batch_size = 8
    signature = [tf.TensorSpec((None, 16))]
    step = lms.watch(tf.function(lambda x: trained(weight, x), input_signature=signature, reduce_retracing=True))
    for _ in range(2):
        step(tf.ones((8, 16)))
    assert lms.report().n_attempts == 2
    assert step.get_concrete_function().structured_input_signature[0][0].shape == (None, 16)


def test_only_the_shapes_that_were_measured_are_verified() -> None:
    lms, weight = LMS(memory_budget="1 GiB"), tf.Variable(tf.eye(16))
    step = lms.watch(tf.function(lambda x: trained(weight, x)))
    step(tf.ones((8, 16)))
    assert lms.report().is_verified
    step(tf.ones((512, 16)))
    assert lms.report().is_verified is None


def test_each_of_two_functions_has_its_own_trials(monkeypatch: Any) -> None:
    heavier(monkeypatch, 30 << 20, 10 << 20, 30 << 20, 10 << 20)
    lms = LMS(memory_budget="20 MiB", min_bytes=1)
    lms.batch_size = 8
    weights = [tf.Variable(tf.eye(16)) for _ in range(2)]
    for weight in weights:
        step = lms.watch(tf.function(lambda x, weight=weight: trained(weight, x)))
        for _ in range(2):
            step(tf.ones((8, 16)))
        assert lms.report().n_attempts == 2
        assert lms.report().is_verified


# -- where it cannot act


def test_a_function_within_another_one_is_not_planned_and_that_is_said(lines: Any) -> None:
    inner, outer, weight = LMS(**GIVEN), LMS(**GIVEN), tf.Variable(tf.eye(16))
    step = inner.watch(tf.function(lambda x: trained(weight, x)))
    outer.watch(tf.function(lambda x: step(x)))(tf.ones((8, 16)))
    assert (inner.report().mode, outer.report().mode) == ("none", "pass")
    assert sum("call lms.watch on the outermost tf.function" in line for line in lines()) == 1


def test_a_function_without_gradients_is_not_planned_and_that_is_said(lines: Any) -> None:
    lms = LMS(**GIVEN)
    lms.watch(tf.function(lambda x: tf.tanh(x)))(tf.ones((8, 16)))
    assert "set lms.is_training = False if it only predicts" in lms.report().notes[0]
    assert len(lines()) == 1


def test_functions_that_run_eagerly_are_not_planned_and_that_is_said(lines: Any) -> None:
    lms, weight = LMS(**GIVEN), tf.Variable(tf.eye(16))
    step = lms.watch(tf.function(lambda x: trained(weight, x)))
    tf.config.run_functions_eagerly(True)
    try:
        step(tf.ones((8, 16)))
    finally:
        tf.config.run_functions_eagerly(False)
    assert "tf.config.run_functions_eagerly(True) is set" in lines()[0]


def test_a_model_for_xla_is_left_alone_and_the_remedy_said_once(lines: Any) -> None:
    lms = LMS(**GIVEN)
    models.fit(models.compiled(models.sequential, jit_compile=True), lms)
    assert swapped(lms) == 0
    assert lms.report().mode == "none"
    assert [line for line in lines() if "Use jit_compile=False" in line] == lines()
    assert len(lines()) == 1


def test_a_model_that_runs_eagerly_is_left_alone_and_the_remedy_said_once(lines: Any) -> None:
    lms = LMS(**GIVEN)
    models.fit(models.compiled(models.sequential, run_eagerly=True), lms)
    assert len(lines()) == 1
    assert "The model runs eagerly (run_eagerly=True): compile it without" in lines()[0]


def test_several_steps_in_one_call_are_inside_a_loop_and_that_is_said(lines: Any) -> None:
    lms = LMS(**GIVEN)
    models.fit(models.compiled(models.sequential, steps_per_execution=2), lms)
    assert any("Train one step per call (steps_per_execution=1" in line for line in lines())


def test_gradients_taken_outside_of_the_function_are_beyond_reach_and_that_is_said(lines: Any) -> None:
    model, lms = models.compiled(models.sequential), LMS(**GIVEN)
    step = lms.watch(tf.function(lambda x: tf.reduce_sum(model(x))))
    with tf.GradientTape() as tape:
        loss = step(tf.ones((4, 16)))
    assert tape.gradient(loss, model.trainable_variables)[0] is not None
    assert sum("Put the GradientTape and the optimizer's step inside the tf.function" in line for line in lines()) == 1


class _Step:
    """A step that is an object."""

    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def __call__(self, x: Any) -> Any:
        return trained(self.weight, x)


@pytest.mark.parametrize("make", [lambda weight: functools.partial(trained, weight), _Step], ids=["partial", "object"])
def test_a_function_without_a_name_is_planned(lines: Any, make: Any) -> None:
    lms = LMS(**GIVEN)
    step = lms.watch(tf.function(make(tf.Variable(tf.ones((16, 16))))))
    step(tf.ones((8, 16)))
    assert swapped(lms)


def test_a_concrete_function_is_said_not_to_be_planned(lines: Any) -> None:
    weight = tf.Variable(tf.ones((16, 16)))
    step = LMS(**GIVEN).watch(tf.function(lambda x: trained(weight, x)))
    step.get_concrete_function(tf.ones((8, 16)))(tf.ones((8, 16)))
    assert any("get_concrete_function" in line and "call <lambda> itself" in line for line in lines())


def test_what_is_no_function_of_tensorflow_is_returned_as_it_is(lines: Any) -> None:
    lms = LMS(**GIVEN)
    assert lms.watch(len) is len
    assert "len is no tf.function" in lines()[0]


def test_a_function_that_ran_already_is_returned_as_it_is(lines: Any) -> None:
    @tf.function
    def step(x: Any) -> Any:
        return x + 1

    step(tf.ones(2))
    assert LMS(**GIVEN).watch(step) is step
    assert "step was called before lms.watch(step), so its tensors are not swapped" in lines()[0]


def test_a_function_for_xla_is_returned_as_it_is(lines: Any) -> None:
    step = tf.function(lambda x: x, jit_compile=True)
    assert LMS(**GIVEN).watch(step) is step
    assert "jit_compile=False" in lines()[0]


def test_a_model_that_is_only_used_is_planned_when_it_predicts() -> None:
    lms = LMS(**GIVEN)
    lms.is_training = False
    model = models.compiled(models.skipping)
    wanted = model.predict(models.rows()[0], batch_size=8, verbose=0)
    got = model.predict(models.rows()[0], batch_size=8, verbose=0, callbacks=[lms])
    assert lms.report().mode == "pass"
    assert models.digest(got) == models.digest(wanted)
