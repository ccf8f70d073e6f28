"""The constructor and the properties of `LMS`: what the original takes and refuses, with its texts, and ours beside."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.errors import OptionError
from hpcckpt.lms import LMS
from hpcckpt.lms.planner.parameter_search import is_wanted
from hpcckpt.lms.settings import checked

pytestmark = pytest.mark.one_case

ORIGINAL = {
    "swapout_threshold": -1, "swapin_groupby": -1, "swapin_ahead": -1, "sync_mode": 0, "serialization": (),
    "serialization_by_size": 0, "debug": False, "debug_level": 1, "cpu_device": "/cpu:0", "gpu_device": None,
}  # fmt: skip


def test_it_is_a_callback_of_keras_and_a_hook_of_sessions() -> None:
    assert issubclass(LMS, keras.callbacks.Callback)
    assert issubclass(LMS, tf.compat.v1.train.SessionRunHook)
    assert hc.lms.LMS is LMS


def test_the_defaults_are_those_of_the_original() -> None:
    settings = LMS().settings
    assert {name: getattr(settings, name) for name in ORIGINAL} == ORIGINAL


def test_the_first_ten_arguments_are_in_the_original_order() -> None:
    settings = LMS(50, 2, 3, 1, [1, "3:5"], 0.5, True, 2, "/cpu:1", "/gpu:1").settings
    assert [getattr(settings, name) for name in ORIGINAL] == [
        50, 2, 3, 1, (1, "3:5"), 0.5, True, 2, "/cpu:1", "/gpu:1"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["swapout_threshold", "swapin_groupby", "swapin_ahead", "sync_mode", "debug_level"])
def test_what_must_be_an_integer_is_refused_otherwise(name: str) -> None:
    with pytest.raises(ValueError, match=rf"Unsupported value for {name}: 1\.5\. {name} must be an integer"):
        LMS(**{name: 1.5})


def test_a_size_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="Unsupported value for serialization_by_size: big"):
        LMS(serialization_by_size="big")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["swapout_threshold", "swapin_ahead"])
def test_zero_is_refused_where_the_original_refuses_it(name: str) -> None:
    with pytest.raises(ValueError, match=f"0 is not a supported value for {name}."):
        LMS(**{name: 0})


@pytest.mark.parametrize("name", ["swapout_threshold", "swapin_groupby", "swapin_ahead"])
def test_a_distance_below_the_one_that_asks_for_a_search_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"-5 is not a supported value for {name}"):
        LMS(**{name: -5})


@pytest.mark.parametrize("name", ["cpu_device", "gpu_device"])
def test_a_text_that_names_no_device_is_refused(name: str) -> None:
    for device in ("/cpu:0", "/device:GPU:1", "/job:worker/task:0/cpu:0"):
        LMS(**{name: device})
    with pytest.raises(OptionError, match=f"{name}: 'xyz' – a device of TensorFlow"):
        LMS(**{name: "xyz"})


@pytest.mark.parametrize("size", [float("inf"), 10**400, "9" * 400 + "G"], ids=["inf", "int", "text"])
def test_a_size_that_cannot_be_counted_is_refused(size: Any) -> None:
    with pytest.raises(OptionError, match=r"memory_budget: .* – bytes, as a number or with a unit"):
        LMS(memory_budget=size)


def test_zero_is_no_grouping() -> None:
    assert LMS(swapin_groupby=0).settings.swapin_groupby == 0


@pytest.mark.parametrize("mode", [-1, 4])
def test_other_synchronous_modes_are_refused(mode: int) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"Invalid value for sync_mode {mode}. Valid values are: {{0, 1, 2, 3}}")
    ):
        LMS(sync_mode=mode)


def test_the_list_of_levels_is_copied_and_the_default_is_never_shared() -> None:
    levels: list[Any] = [1, "3:5", 7]
    lms = LMS(serialization=levels)
    levels.append(9)
    assert lms.settings.serialization == (1, "3:5", 7)
    assert LMS().settings.serialization == LMS().settings.serialization == ()


@pytest.mark.parametrize("wrong", ["3:5", 7, [1.5], ["a:b"], ["-"], [""], ["::0"]])
def test_what_names_no_levels_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="serialization: "):
        LMS(serialization=wrong)


def test_properties_begin_as_in_the_original() -> None:
    lms = LMS()
    assert (lms.is_training, lms.batch_size, lms.autotune_gpu_mem, lms.autotune_plot) == (True, None, None, False)


FILTERS = [
    f"{way}_{end}_by_{what}" for way in ("excl", "incl") for end in ("output", "input") for what in ("scopes", "types")
]


@pytest.mark.parametrize("name", FILTERS)
def test_each_filter_is_an_empty_set_until_it_is_set(name: str) -> None:
    lms, other = LMS(), LMS()
    assert getattr(lms, name) == set()
    setattr(lms, name, ["loss", "accuracy"])
    assert getattr(lms, name) == {"loss", "accuracy"}
    assert getattr(other, name) == set()


def test_there_are_eight_filters() -> None:
    assert len(FILTERS) == 8 == sum("_by_" in name and name[:4] in ("excl", "incl") for name in dir(LMS))


def given(**more: Any) -> Any:
    return LMS(**more).settings


@pytest.mark.parametrize(
    ("told", "nbytes"),
    [(1000, 1000), ("600 MiB", 600 << 20), ("98 MB", 98_000_000), ("1.5GiB", 3 << 29), ("2k", 2048), ("7", 7)],
)
def test_sizes_are_bytes_or_have_a_unit(told: Any, nbytes: int) -> None:
    settings = given(memory_budget=told, min_bytes=told, window=told)
    assert (settings.memory_budget, settings.min_bytes, settings.window) == (nbytes, nbytes, nbytes)


@pytest.mark.parametrize("name", ["memory_budget", "min_bytes", "window"])
@pytest.mark.parametrize("wrong", ["much", -1, "3 parsecs", True])
def test_what_is_no_size_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(OptionError, match=f"{name}: .* – bytes, as a number or with a unit"):
        given(**{name: wrong})


def test_unknown_planners_and_tiers_are_refused_by_name() -> None:
    with pytest.raises(OptionError, match="planner: 'best' – one of cost, distance"):
        given(planner="best")
    with pytest.raises(OptionError, match="tier: 'tape' – one of auto, host, file, host-then-file"):
        given(tier="tape")


def test_the_cost_planner_refuses_the_parameters_of_the_other() -> None:
    with pytest.raises(OptionError, match="'cost' knows no swapout_threshold, sync_mode; give planner='distance'"):
        given(planner="cost", swapout_threshold=50, sync_mode=2, memory_budget="1 GiB")


def test_a_directory_may_be_a_path(tmp_path: Path) -> None:
    assert given(directory=tmp_path).directory == str(tmp_path)
    with pytest.raises(OptionError, match="directory: 7 – a path"):
        given(directory=7)


def test_values_that_are_left_open_are_searched_for() -> None:
    assert is_wanted(given())
    assert is_wanted(given(swapout_threshold=50))
    assert not is_wanted(given(swapout_threshold=50, swapin_ahead=3, swapin_groupby=2))
    assert not is_wanted(given(swapout_threshold=50, sync_mode=2))
    assert is_wanted(given(swapout_threshold=50, sync_mode=1))


def test_checked_names_what_is_wrong_as_a_value_error_of_ours() -> None:
    with pytest.raises(OptionError) as error:
        LMS(sync_mode=9)
    assert isinstance(error.value, ValueError)
    assert checked.__doc__
