"""The lines: worded as those of the original, said once per job, with the rank where there are several."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from hpcckpt.lms import messages
from hpcckpt.lms.messages import LmsLog

pytestmark = pytest.mark.one_case


def said(caplog: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "hpcckpt.lms"]


@pytest.fixture
def lines(caplog: Any) -> Any:
    caplog.set_level(logging.INFO, logger="hpcckpt.lms")
    return caplog


def test_a_line_has_the_prefix_of_the_original(lines: Any) -> None:
    LmsLog().info(messages.EDITING)
    assert said(lines) == ["[LMS][0] Editing model for LMS"]


def test_with_several_ranks_the_first_speaks_and_says_its_number(lines: Any) -> None:
    for rank in range(3):
        LmsLog(rank, 3).info(messages.EDITING)
    assert said(lines) == ["[0] [LMS][0] Editing model for LMS"]


def test_lines_of_debugging_are_said_by_every_rank_if_they_are_asked_for(lines: Any) -> None:
    for rank in range(2):
        LmsLog(rank, 2, debug=True, debug_level=1).info("of level 1", 1, 2)
        LmsLog(rank, 2, debug=True, debug_level=1).info("of level 2", 2)
        LmsLog(rank, 2, debug=False, debug_level=2).info("unasked", 1)
    assert said(lines) == ["[0] [LMS][1]   of level 1", "[1] [LMS][1]   of level 1"]


def test_level_2_says_all(lines: Any) -> None:
    lms_log = LmsLog(debug=True, debug_level=2)
    lms_log.info("one", 1)
    lms_log.info("two", 2)
    assert said(lines) == ["[LMS][1] one", "[LMS][2] two"]


def test_what_a_user_must_know_is_a_warning_and_said_once(lines: Any) -> None:
    lms_log = LmsLog()
    for _ in range(3):
        lms_log.warn_once("do this")
    assert said(lines) == ["[LMS][0] do this"]
    assert lines.records[-1].levelno == logging.WARNING


def parameters(mode: int = 0) -> dict[str, Any]:
    return {"sync_mode": mode, "swapout_threshold": 50, "swapin_ahead": 3, "swapin_groupby": 2}


MODES = [
    "(Asynchronous memory copy between host and device)",
    "(Synchronous memory copy from device to host, but asynchronous memory copy from host to device)",
    "(Asynchronous memory copy from device to host, but synchronous memory copy from host to device)",
    "(Synchronous memory copy between host and device)",
]


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_each_synchronous_mode_is_described(mode: int) -> None:
    assert messages.parameter_lines(parameters(mode))[0] == f"sync_mode: {mode} {MODES[mode]}"


def test_the_three_parameters_of_the_notebook_are_said() -> None:
    assert messages.parameter_lines(parameters())[1:] == [
        "swapout_threshold: 50", "swapin_ahead: 3", "swapin_groupby: 2"
    ]  # fmt: skip


@pytest.mark.parametrize("mode", [2, 3])
def test_what_a_synchronous_mode_ignores_is_said(mode: int) -> None:
    ignored = f"(ignored since sync_mode is {mode})"
    lines = messages.parameter_lines(parameters(mode))
    assert lines[2:] == [f"swapin_ahead: 3 {ignored}", f"swapin_groupby: 2 {ignored}"]


def test_the_lines_of_the_notebook() -> None:
    """Word for word, with the notebook's own numbers."""
    size = messages.size_lines(377, 483, 13_098_536)
    assert size == ["The graph has 377 vertices and 483 edges.", "The graph has 12.49 MiB of learning parameters."]
    name = "adam_optimizer/Adam/update_fc1/Variable/ApplyAdam"
    assert messages.largest_line(name, 64 << 20, is_gpu=False) == f"The largest operation is {name} consuming 0.06 GiB"
    assert messages.added_line(6, 100, 7, 200) == (
        "Added 13 operations to the model (6 swap-out operations (0.0 GiB) and 7 swap-in operations (0.0 GiB))"
    )


def test_on_a_gpu_the_largest_operation_is_called_so() -> None:
    assert messages.largest_line("a", 1 << 30, is_gpu=True) == "The largest GPU operation is a consuming 1.0 GiB"


def test_the_lines_of_the_search() -> None:
    assert messages.available_line(9 << 27, 0.9) == (
        "[Simulator] Available memory for simulation: 1.12 GiB (memory ratio: 0.9)"
    )
    assert messages.found_line(parameters(1)) == (
        "[Simulator] Found a parameter set: swapout_threshold 50, swapin_ahead 3, swapin_groupby 2, sync_mode 1"
    )


def test_the_warning_of_host_memory_names_the_variable_to_raise() -> None:
    line = messages.host_warning(70_000 << 20)
    assert "increase the values of the TF_GPU_HOST_MEM_LIMIT_IN_MB environment variable to 70000 or more." in line


REMEDIES = [messages.EAGER, messages.JIT, messages.OUTER_TAPE, messages.FRAMES, messages.TOO_LATE]


@pytest.mark.parametrize("text", REMEDIES)
def test_where_it_cannot_act_the_remedy_is_said(text: str) -> None:
    assert re.search(r"give LMS to|Use jit_compile=False|Put the GradientTape|Train one step|call lms.watch", text)


def test_a_step_that_was_verified_says_both_figures() -> None:
    assert messages.verified_line(1 << 30, 3 << 29) == (
        "Verified: a step took 1.00 GiB, within the memory budget of 1.50 GiB"
    )
    assert "ran out of memory" in messages.verified_line(1 << 62, 1 << 30)
    assert "set TF_LMS_SIMULATOR_MEM_RATIO lower" in messages.not_kept(2, 1)
