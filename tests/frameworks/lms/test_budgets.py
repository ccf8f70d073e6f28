"""Memory budgets on the CPU: kept, or refused before the first step; the best plan tried is the one that stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st

from hpcckpt.core.units import nbytes_text_up
from hpcckpt.errors import MemoryBudgetError
from hpcckpt.lms import LMS
from hpcckpt.lms.graph.graph import Graph, Op, Output, Use
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.planner.cost_planner import plan_by_cost
from hpcckpt.lms.planner.edited_graph import check, edited
from hpcckpt.lms.planner.kernel_scratch import scratch_nbytes
from hpcckpt.lms.planner.memory_limits import budget_for, refused, tensor_bytes
from hpcckpt.lms.planner.plan import Plan, text_of
from hpcckpt.lms.planner.swap_timeline import TierBandwidth
from hpcckpt.lms.planner.verify_step import Measured, MemoryWatch
from tests.support.lms import models
from tests.support.lms.steps import MIB, layers

DISK = TierBandwidth(write=1.2e9, read=0.8e9)

TRAINING = """
import json, sys
import keras, numpy as np
from hpcckpt.errors import MemoryBudgetError
from hpcckpt.lms import LMS; from hpcckpt.lms.planner import verify_step as verification
L = keras.layers
convolutions = [L.Conv2D(32, 3, padding="same", activation="relu") for _ in range(3)]
model = keras.Sequential([keras.Input((28, 28, 1)), *convolutions, L.Flatten(), L.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
seen = []
counting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
lms = LMS(memory_budget=sys.argv[1], directory=sys.argv[2])
x, y = np.ones((384, 28, 28, 1), np.float32), np.zeros(384, np.int64)
try:
    model.fit(x, y, batch_size=128, verbose=0, callbacks=[lms, counting])
except MemoryBudgetError as error:
    print(json.dumps({"refused": str(error), "n_steps": len(seen)}))
else:
    report = lms.report()
    peak = max(report.peak, verification.peak_since() - report.level)
    print(json.dumps({"peak": peak, "n_attempts": report.n_attempts, "n_steps": len(seen)}))
"""
"""A step of 50 MiB of tensors, 24.5 MiB at least; oneDNN's pool, the default with AVX512-VNNI, keeps all of it."""


def trained(budget: str, directory: Any, **environment: str) -> dict[str, Any]:
    program = [sys.executable, "-c", TRAINING, budget, str(directory)]
    given_ = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1"} | environment
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=given_)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("system_allocator", ["0", "1"])
def test_a_budget_near_the_least_is_kept_by_every_step(system_allocator: str, tmp_path: Any) -> None:
    found = trained("44 MiB", tmp_path, TF_ONEDNN_USE_SYSTEM_ALLOCATOR=system_allocator)
    assert found["n_attempts"] == 1
    assert found["n_steps"] == 3
    assert found["peak"] <= 44 * MIB


@pytest.mark.slow
def test_a_budget_is_kept_where_gradients_of_convolutions_have_scratch_memory(tmp_path: Any) -> None:
    found = trained("68 MiB", tmp_path, TF_ENABLE_ONEDNN_OPTS="0")
    assert (found["n_attempts"], found["n_steps"]) == (1, 3)
    assert found["peak"] <= 68 * MIB
    assert "the nearest budget that can be kept" in trained("50 MiB", tmp_path, TF_ENABLE_ONEDNN_OPTS="0")["refused"]


@pytest.mark.parametrize(("batch", "n_unfolded"), [(8, 8), (128, 27)])
def test_scratch_memory_of_a_gradient_is_as_many_unfolded_images_as_fit(batch: int, n_unfolded: int) -> None:
    image, filters = Output("float32", (None, 28, 28, 32)), Output("float32", (3, 3, 32, 64))
    sources = [Op(name, "_Arg", outputs=(output,)) for name, output in (("x", image), ("w", filters))]
    grown = Op("dy", "_Arg", outputs=(Output("float32", (None, 28, 28, 64)),))
    uses = tuple(Use(name, 0) for name in ("x", "w", "dy"))
    gradient = Op("dw", "Conv2DBackpropFilter", inputs=uses, outputs=(filters,))
    context = GraphContext(Graph.of([*sources, grown, gradient]), batch_size=batch)
    assert scratch_nbytes(context) == n_unfolded * 28 * 28 * (3 * 3 * 32) * 4


@pytest.mark.slow
def test_a_budget_out_of_reach_is_refused_before_the_first_step(tmp_path: Any) -> None:
    found = trained("30 MiB", tmp_path)
    assert found["n_steps"] == 0
    assert "memory_budget: 30.00 MiB cannot be kept" in found["refused"]


def heavier(monkeypatch: Any, *peaks: int) -> None:
    """Let steps take these numbers of bytes: the first plan's, the next one's."""
    left = list(peaks)
    end = MemoryWatch.end

    def told(watch: MemoryWatch) -> Measured:
        end(watch)
        return Measured(left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(MemoryWatch, "end", told)


def test_a_worse_plan_does_not_replace_a_better_one(monkeypatch: Any) -> None:
    heavier(monkeypatch, 30 * MIB, 50 * MIB)
    lms = LMS(memory_budget="20 MiB", min_bytes=1)
    models.fit(models.compiled(models.sequential), lms)
    report = lms.report()
    assert report.n_attempts > 1
    assert report.peak == 30 * MIB
    assert report.is_verified is False


def test_a_session_is_refused_before_its_first_step(monkeypatch: Any) -> None:
    heavier(monkeypatch, 30 * MIB)
    lms, graph = LMS(memory_budget="20 MiB", min_bytes=1), models.deep(6)
    lms.batch_size = 8
    before = graph.as_graph_def()
    with pytest.raises(MemoryBudgetError, match=r"can be kept is 31\.50 MiB: give that"):
        lms.run(graph)
    assert graph.as_graph_def() == before


@given(st.integers(0, 1 << 45))
def test_a_budget_for_tensors_has_room_for_them(nbytes: int) -> None:
    assert nbytes <= tensor_bytes(budget_for(nbytes)) <= nbytes + 1


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1024, "1.00 KiB"), (1025, "1.01 KiB"), (51417121, "49.04 MiB"), (1 << 30, "1.00 GiB")],
)
def test_a_limit_is_written_rounded_up(nbytes: int, text: str) -> None:
    assert nbytes_text_up(nbytes) == text


def test_question_and_answer_are_in_the_same_unit() -> None:
    error = refused(90 * MIB, 98 * MIB + 1)
    assert "memory_budget: 90.00 MiB" in str(error)
    assert "can be kept is 98.01 MiB" in str(error)
    assert error.nearest == 98 * MIB + 1


# -- where an allocator keeps what is freed


def released(budget: int) -> tuple[Any, Plan]:
    g = layers(12)
    return g, plan_by_cost(GraphContext(g), budget * MIB, DISK, release=True)


def test_memory_that_a_pool_keeps_is_given_back_after_the_last_user() -> None:
    g, plan = released(9)
    check(g, plan)
    ops = edited(g, plan).ops
    assert plan.releases
    for each in plan.releases:
        users = {name for name, op in ops.items() if each.tensor in op.inputs and name != each.name}
        assert users <= set(ops[each.name].controls)


def test_with_and_without_releases_tensors_move_the_same() -> None:
    g, plan = released(9)
    without = plan_by_cost(GraphContext(g), 9 * MIB, DISK)
    assert without.releases == ()
    assert (plan.swap_outs, plan.swap_ins) == (without.swap_outs, without.swap_ins)
    assert Plan.from_json(plan.to_json()).releases == plan.releases
    assert text_of(plan).count("release\t") == len(plan.releases)
