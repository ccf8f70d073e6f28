"""What `debug` and `debug_level` print, and that TensorFlow's verbosity alone shows the lines, as with TFLMSv2."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import tensorflow as tf

from hpcckpt.lms import LMS
from hpcckpt.lms.graph.graph import InputSlot, Use
from hpcckpt.lms.graph.levels import sort
from hpcckpt.lms.planner.debug_lines import debug_lines
from hpcckpt.lms.planner.plan import Copy, Plan, SwapIn, SwapOut
from tests.support.lms import models
from tests.support.lms.graphs import chain, graph, op
from tests.support.programs import environment

GIVEN = {"swapout_threshold": 5, "swapin_ahead": 3, "swapin_groupby": 2, "min_bytes": 1}


@pytest.fixture
def lines(caplog: Any) -> Any:
    """Return a function that returns what was printed, without the prefix of level 1 or 2."""
    caplog.set_level("INFO", logger="hpcckpt.lms")

    def of_level(level: int) -> list[str]:
        prefix = f"[LMS][{level}] "
        return [text.removeprefix(prefix) for text in caplog.messages if text.startswith(prefix)]

    return of_level


def test_each_swap_connection_and_control_edge_is_a_line_of_level_1() -> None:
    step = chain(9, op("z", "l08", "l01"))
    out = SwapOut("lms/swapout_l01_0", Use("l01", 0), 128)
    back = SwapIn("lms/swapin_l01_0", out.name, (InputSlot("z", 1),))
    plan = Plan((out,), (back,), edges=(("l06", back.name), ("l02", "l03")))
    texts = [" " * line.offset + line.text for line in debug_lines(step, sort(step), plan) if line.level == 1]
    assert texts[0] == "Operations in each topological sort level:"
    assert texts[1] == "[0]: [('l00', 'Relu', '')]"
    assert texts[-12:] == [
        "[9]: [('z', 'Relu', '')]",
        "Operation: l01",
        "  Swap-out: Tensor l01:0 (shape: (4, 8))",
        "    Swap-out operation: lms/swapout_l01_0",
        "    Connect: l01 => lms/swapout_l01_0",
        "  Swap-in: Tensor l01:0 (shape: (4, 8))",
        "    Swap-in operation: lms/swapin_l01_0",
        "    Connect: lms/swapout_l01_0 => lms/swapin_l01_0",
        "    Connect: lms/swapin_l01_0 => z",
        "Find a control dependency for swapping in z (level 9)",
        "Control dependency: l06 (level 6) => lms/swapin_l01_0 (level -1)",
        "Control dependency: l02 (level 2) => l03 (level 3)",
    ]


def test_an_operation_that_is_computed_again_has_its_lines() -> None:
    step = graph(op("a"), op("b", "a", kind="Tanh"), op("c", "b"))
    plan = Plan(copies=(Copy("lms/copy_b", "b", (Use("a", 0),), ((0, InputSlot("c", 0)),)),))
    assert [line.text for line in debug_lines(step, sort(step), plan)][-4:] == [
        "Recompute: Operation b (type: Tanh)",
        "Recompute operation: lms/copy_b",
        "Connect: a => lms/copy_b",
        "Connect: lms/copy_b => c",
    ]


def test_level_2_lists_each_operation_with_its_outputs_and_consumers() -> None:
    step = graph(op("a", shape=None), op("b", "a"))
    assert [line.text for line in debug_lines(step, sort(step), Plan()) if line.level == 2] == [
        "Operation: a",
        "Output tensor: a:0 (shape: <unknown>)",
        "Consuming op: b",
        "Operation: b",
        "Output tensor: b:0 (shape: (4, 8))",
    ]


def test_debug_prints_what_run_did_to_the_graph(lines: Any) -> None:
    step = models.deep()
    added = LMS(**GIVEN, debug=True).run(step)
    told = lines(1)
    for each in added:
        kind = "Swap-out" if each.type == "HpcckptSwapOut" else "Swap-in"
        assert f"    {kind} operation: {each.name}" in told
        assert f"    Connect: {each.inputs[0].op.name} => {each.name}" in told
        for consumer in each.outputs[0].consumers():
            assert f"    Connect: {each.name} => {consumer.name}" in told
        for first in each.control_inputs:
            assert any(re.match(rf"Control dependency: {first.name} \(.*\) => {each.name} ", line) for line in told)
    assert lines(2) == []


def test_debug_prints_what_the_native_pass_did(lines: Any) -> None:
    models.fit(models.compiled(models.sequential), lms := LMS(**GIVEN, debug=True, debug_level=2))
    assert sum("Swap-out operation: " in line for line in lines(1)) == lms.report().plan["n_swap_outs"] > 0
    assert any(line.startswith("  Consuming op: ") for line in lines(2))


def test_without_debug_nothing_of_it_is_printed(lines: Any) -> None:
    LMS(**GIVEN, debug_level=2).run(models.deep())
    assert lines(1) == lines(2) == []


# -- who shows the lines


def test_tensorflows_verbosity_shows_the_lines_where_logging_would_not(caplog: Any) -> None:
    before = tf.compat.v1.logging.get_verbosity()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    try:
        LMS(**GIVEN).run(models.deep())
    finally:
        tf.compat.v1.logging.set_verbosity(before)
    told = [record.name for record in caplog.records if "Editing model for LMS" in record.getMessage()]
    assert told == ["tensorflow"] * 2


def test_lines_that_logging_shows_are_not_shown_twice(caplog: Any) -> None:
    caplog.set_level("INFO", logger="hpcckpt.lms")
    before = tf.compat.v1.logging.get_verbosity()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    try:
        LMS(**GIVEN).run(models.deep())
    finally:
        tf.compat.v1.logging.set_verbosity(before)
    told = [record.name for record in caplog.records if "[LMS][0] " in record.getMessage()]
    assert set(told) == {"hpcckpt.lms"}


@pytest.mark.slow
@pytest.mark.parametrize(("verbosity", "is_shown"), [("INFO", True), ("WARN", False)])
def test_a_program_that_sets_tensorflows_verbosity_alone_sees_the_lines(verbosity: str, is_shown: bool) -> None:
    program = f"""
import tensorflow as tf
from tests.support.lms import models
from hpcckpt.lms import LMS
tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.{verbosity})
LMS(swapout_threshold=5, swapin_ahead=3, swapin_groupby=2, min_bytes=1).run(models.deep())
"""
    env = environment(TF_CPP_MIN_LOG_LEVEL="2")
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert ("[LMS][0] Editing model for LMS" in done.stderr) is is_shown
