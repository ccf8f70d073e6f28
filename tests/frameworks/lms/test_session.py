"""`run` on the graph of a session, and the hook: lines, refusals, filters, what is written, what is verified."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import hpcckpt.lms.planner.cost_planner
from hpcckpt.errors import CodeError, OptionError, StateError
from hpcckpt.lms import LMS, session_config
from hpcckpt.lms.planner.verify_step import OUT_OF_MEMORY, Measured
from hpcckpt.lms.runtime import tf_session, trial_step
from hpcckpt.lms.runtime.feeds import feeds_of
from hpcckpt.lms.runtime.trial_step import Dry
from tests.support.lms import models

v1 = tf.compat.v1
NOTEBOOK = {"swapout_threshold": 50, "swapin_ahead": 3, "swapin_groupby": 2}
GIVEN = {"swapout_threshold": 5, "swapin_ahead": 3, "swapin_groupby": 2, "min_bytes": 1}


@pytest.fixture
def lines(caplog: Any) -> Any:
    """Return what was said, without the prefix."""
    caplog.set_level("INFO", logger="hpcckpt.lms")

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "hpcckpt.lms"]

    return said


GIB = r"\d+\.\d+ GiB"
BACK = rf"\d+ swap-in operations \({GIB}\)"
LINES = [
    r"\[LMS\]\[0\] Editing model for LMS",
    r"\[LMS\]\[0\] The graph has \d+ vertices and \d+ edges\.",
    r"\[LMS\]\[0\] The graph has \d+\.\d+ MiB of learning parameters\.",
    r"\[LMS\]\[0\] The largest operation is \S+ consuming \d+\.\d+ GiB",
    r"\[LMS\]\[0\] Original categorized topological sort has \d+ levels\.",
    r"\[LMS\]\[0\] LMS will use the following parameter set:",
    r"\[LMS\]\[0\]   sync_mode: 0 \(Asynchronous memory copy between host and device\)",
    r"\[LMS\]\[0\]   swapout_threshold: 50",
    r"\[LMS\]\[0\]   swapin_ahead: 3",
    r"\[LMS\]\[0\]   swapin_groupby: 2",
    r"\[LMS\]\[0\] A histogram of distances was written to .*/\.lms/tmp\w+",
    rf"\[LMS\]\[0\] Added \d+ operations to the model \(\d+ swap-out operations \({GIB}\) and {BACK}\)",
    r"\[LMS\]\[0\] Editing model for LMS, took: \d+\.\d+ ms",
]


def test_the_lines_of_the_notebook_come_in_its_order(lines: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    lms = LMS(**NOTEBOOK)
    lms.autotune_plot = True
    lms.excl_output_by_scopes = {"loss", "accuracy", "dropout"}
    assert lms.run(models.deep(10, dropout=True))
    for pattern, line in zip(LINES, lines(), strict=True):
        assert re.fullmatch(pattern, line), line


def test_the_histogram_sums_to_the_edges_of_the_graph(lines: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    lms = LMS(**GIVEN)
    lms.autotune_plot = True
    lms.run(models.deep())
    file = Path(next(line for line in lines() if "histogram" in line).rpartition(" ")[2])
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    assert sum(int(count) for _, count in rows) == lms.report().n_edges


def test_without_the_plot_no_file_is_written(lines: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    LMS(**GIVEN).run(models.deep())
    assert not list(tmp_path.iterdir())


def test_what_was_added_is_returned_and_in_the_graph() -> None:
    graph = models.deep()
    added = LMS(**GIVEN).run(graph)
    assert {op.name for op in added} == {op.name for op in graph.get_operations() if op.name.startswith("lms/")}
    assert {op.type for op in added} == {"HpcckptSwapOut", "HpcckptSwapIn"}


def test_a_smaller_threshold_swaps_more() -> None:
    counts = [len(LMS(n, 0, 1).run(models.deep())) for n in (5, 30, 80)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_an_excluded_scope_has_no_swaps() -> None:
    lms, graph = LMS(**GIVEN), models.deep()
    lms.excl_output_by_scopes = {"layer1/"}
    added = lms.run(graph)
    sources = {op.inputs[0].op.name for op in added if op.type == "HpcckptSwapOut"}
    assert sources
    assert not any(name.startswith("layer1/") for name in sources)


def test_a_scope_that_is_not_there_is_refused() -> None:
    lms = LMS(**GIVEN)
    lms.incl_input_by_scopes = {"nowhere"}
    with pytest.raises(ValueError, match="nowhere"):
        lms.run(models.deep())


def test_a_second_run_leaves_the_graph_as_it_is(lines: Any) -> None:
    graph = models.deep()
    LMS(**GIVEN).run(graph)
    before = graph.as_graph_def()
    assert LMS(**GIVEN).run(graph) == set()
    assert graph.as_graph_def() == before
    assert lines()[-1] == (
        "[LMS][0] This model has already been updated with LMS swap operations. LMS will not re-process it."
    )


def test_without_a_graph_the_default_one_is_edited(lines: Any) -> None:
    with models.deep().as_default():
        assert LMS(**GIVEN).run()
    assert lines()[0] == "[LMS][0] No graph provided. LMS will use the default graph."


def test_without_any_graph_the_remedy_is_said_once(lines: Any) -> None:
    lms = LMS(**GIVEN)
    assert lms.run() == set() == lms.run()
    assert len(lines()) == 1
    assert "Eager execution mode is not supported with TensorFlow Large Model Support." in lines()[0]
    assert "give LMS to model.fit(callbacks=[lms])" in lms.report().notes[0]


def test_a_finalized_graph_is_refused() -> None:
    graph = models.deep()
    graph.finalize()
    with pytest.raises(CodeError, match="finalized"):
        LMS(**GIVEN).run(graph)


# -- the search


def test_the_search_needs_the_batch_size() -> None:
    with pytest.raises(ValueError, match="It seems you are feeding data via placeholders"):
        LMS().run(models.deep())


def test_a_small_model_needs_no_lms(lines: Any) -> None:
    lms, graph = LMS(), models.deep(3)
    lms.batch_size = 8
    before = graph.as_graph_def()
    assert lms.run(graph) == set()
    assert graph.as_graph_def() == before
    assert lines()[-1] == "[LMS][0] LMS is not necessary. Turned LMS off."
    assert lms.report().mode == "off"


def test_the_search_says_what_it_found(lines: Any) -> None:
    lms = LMS(verify=False)
    lms.batch_size, lms.autotune_gpu_mem = 4096, 3.0 / 1024
    assert lms.run(models.deep(10))
    said = "\n".join(lines())
    assert "Searching values for parameters: swapout_threshold, swapin_ahead, swapin_groupby and sync_mode." in said
    assert "[Simulator] Available memory for simulation: 0.0 GiB (memory ratio: 0.9)" in said
    assert "[Simulator] Found a parameter set: swapout_threshold " in said
    assert "LMS will use the latest parameter set found by Simulator for the best performance." in said


def test_the_ratio_comes_from_the_environment(lines: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TF_LMS_SIMULATOR_MEM_RATIO", "0.5")
    lms = LMS(verify=False)
    lms.batch_size, lms.autotune_gpu_mem = 8, 1
    lms.run(models.deep(2))
    assert "[LMS][0] [Simulator] Available memory for simulation: 0.5 GiB (memory ratio: 0.5)" in lines()


def test_with_ddl_the_ratio_is_smaller(lines: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DDL_OPTIONS", "-mode b:1")
    lms = LMS(verify=False)
    lms.batch_size, lms.autotune_gpu_mem = 8, 1
    lms.run(models.deep(2))
    assert any("(memory ratio: 0.8)" in line for line in lines())


def test_a_limit_of_host_memory_that_will_not_do_is_warned_of(lines: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TF_GPU_HOST_MEM_LIMIT_IN_MB", "0")
    lms = LMS(verify=False)
    lms.batch_size, lms.autotune_gpu_mem = 4096, 3.0 / 1024
    lms.run(models.deep(10))
    assert any(
        "increase the values of the TF_GPU_HOST_MEM_LIMIT_IN_MB environment variable" in line for line in lines()
    )


def test_a_while_loop_is_not_tuned_but_may_be_swapped_around(lines: Any) -> None:
    lms = LMS()
    lms.batch_size = 8
    with pytest.raises(ValueError, match="Auto-tuning does not work since the graph has a while-loop"):
        lms.run(models.looping())
    lms = LMS(**GIVEN)
    assert lms.run(models.looping())
    assert any("Please enable GPU-CPU memory swap for the loop by setting swap_memory=True" in line for line in lines())


# -- what is verified


class Step:
    """Replaces the trial step: takes so much the first time, so much the next."""

    def __init__(self, *peaks: int) -> None:
        self.peaks = list(peaks)

    def __call__(self, *_: Any) -> Dry:
        return Dry(Measured(self.peaks.pop(0) if len(self.peaks) > 1 else self.peaks[0]))


def tuned(monkeypatch: Any, *peaks: int, **more: Any) -> LMS:
    """Return an LMS whose simulation fits, and whose real steps take `peaks`."""
    monkeypatch.setattr(tf_session, "dry_step", Step(*peaks))
    lms = LMS(**more)
    lms.batch_size, lms.autotune_gpu_mem = 4096, 6.0 / 1024
    return lms


def test_not_necessary_is_only_said_of_a_step_that_was_run(lines: Any, monkeypatch: Any) -> None:
    lms = tuned(monkeypatch, 3 << 20)
    assert lms.run(models.deep(10)) == set()
    assert lines()[-2:] == [
        "[LMS][0] Verified: a step took 3.00 MiB, within the memory budget of 6.00 MiB",
        "[LMS][0] LMS is not necessary. Turned LMS off.",
    ]
    assert lms.report().is_verified


@pytest.mark.parametrize("first", [12 << 20, OUT_OF_MEMORY])
def test_a_step_that_takes_more_than_simulated_is_planned_anew(lines: Any, monkeypatch: Any, first: int) -> None:
    lms = tuned(monkeypatch, first, 4 << 20)
    assert lms.run(models.deep(10))
    report = lms.report()
    assert (report.mode, report.n_attempts, report.is_verified) == ("graph", 2, True)
    assert "LMS is not necessary. Turned LMS off." not in "\n".join(lines())


def test_a_budget_that_no_plan_keeps_is_warned_of_with_what_to_raise(lines: Any, monkeypatch: Any) -> None:
    lms = tuned(monkeypatch, 9 << 20)
    lms.run(models.deep(10))
    assert lms.report().is_verified is False
    assert any("lower the batch size" in line for line in lines())


def test_the_dry_step_touches_nothing_of_the_graph_and_is_real(lines: Any) -> None:
    seen = []

    def fed(rows: Any) -> Any:
        seen.append(rows.shape)
        return rows

    with tf.Graph().as_default() as graph:
        x = tf.numpy_function(fed, [v1.placeholder(tf.float32, [None, 2])], tf.float32)
        x.set_shape([None, 2])
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(x * v1.get_variable("w", [2])))
    lms = LMS()
    lms.batch_size, lms.autotune_gpu_mem = 8, 1
    before = graph.as_graph_def()
    lms.run(graph)
    assert graph.as_graph_def() == before
    assert seen == [(8, 2)]
    assert lms.report().is_verified


def test_a_graph_without_a_train_op_cannot_be_verified_and_that_is_said(lines: Any) -> None:
    with tf.Graph().as_default() as graph:
        tf.tanh(v1.placeholder(tf.float32, [4, 4]))
    lms = LMS()
    lms.run(graph)
    assert any("No step was run to verify this: the graph has no train op" in line for line in lines())


def notebooks_model() -> tf.Graph:
    """Return the graph of the notebook's model, with its placeholder of unknown rank for what dropout keeps."""

    def weight(*shape: int) -> Any:
        return v1.Variable(tf.random.truncated_normal(shape, stddev=0.1, seed=1))

    with tf.Graph().as_default() as graph:
        x, y = v1.placeholder(tf.float32, [None, 784]), v1.placeholder(tf.int64, [None])
        hidden, width = tf.reshape(x, [-1, 28, 28, 1]), 1
        for filters in (32, 64):
            hidden = tf.nn.relu(v1.nn.conv2d(hidden, weight(5, 5, width, filters), strides=[1] * 4, padding="SAME"))
            hidden, width = v1.nn.max_pool(hidden, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"), filters
        hidden = tf.nn.relu(tf.matmul(tf.reshape(hidden, [-1, 7 * 7 * 64]), weight(7 * 7 * 64, 64)))
        with v1.name_scope("dropout"):
            keep_prob = v1.placeholder(tf.float32)
            hidden = tf.nn.dropout(hidden, rate=1 - keep_prob, seed=1)
        logits = tf.matmul(hidden, weight(64, 10))
        v1.train.AdamOptimizer(1e-3).minimize(v1.losses.sparse_softmax_cross_entropy(labels=y, logits=logits))
    return graph


def test_auto_tuning_of_the_notebooks_model_is_verified_by_a_step(lines: Any) -> None:
    lms = LMS()
    lms.batch_size, lms.autotune_gpu_mem = 8, 1
    lms.run(notebooks_model())
    assert lms.report().is_verified
    fed = "[LMS][0] Placeholders without a known rank were fed to verify this: 'dropout/Placeholder' a scalar"
    assert lines().count(fed) == 1
    assert lines()[-1] == "[LMS][0] LMS is not necessary. Turned LMS off."


def test_placeholders_of_unknown_rank_are_fed_what_the_ops_that_take_them_need() -> None:
    def unknown(name: str, dtype: Any = tf.float32) -> Any:
        return v1.placeholder(dtype, name=name)

    with tf.Graph().as_default() as graph:
        images = tf.nn.conv2d(tf.abs(unknown("images")), tf.ones([3, 3, 2, 4]), 1, "VALID", "NHWC")
        rows = tf.matmul(unknown("rows"), v1.get_variable("w", [5, 3]))
        flat = tf.reshape(unknown("flat"), [-1, 3]) + tf.reduce_sum(images) + rows
        logits = tf.where(unknown("is_training", tf.bool), flat / unknown("divisor"), flat)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=unknown("labels", tf.int64), logits=logits)
        sums = tf.reduce_sum(unknown("summed") * v1.get_variable("scale", []), axis=1)
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(losses) + tf.reduce_mean(sums))
    feeds = feeds_of(graph, [graph.get_collection("train_op")[0].name], 8)
    assert feeds.assumed == {
        "images": (8, 1, 1, 2), "rows": (8, 5), "flat": (8, 3), "is_training": (), "divisor": (), "labels": (8,),
        "summed": (8, 1),
    }  # fmt: skip
    assert [feeds.arrays[f"{name}:0"].all() for name in ("is_training", "divisor", "rows")] == [True, True, False]


def test_a_step_that_cannot_be_fed_is_not_an_error() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, name="x")
        images = tf.nn.conv2d(x, v1.get_variable("flat", [1] * 4), 1, "SAME")
        volumes = tf.nn.conv3d(x, v1.get_variable("deep", [1] * 5), [1] * 5, "SAME")
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(images) + tf.reduce_sum(volumes))
    dry = trial_step.dry_step(graph, None, None, 8)  # type: ignore[arg-type]
    assert dry.why_not.endswith("placeholder 'x' has no known rank, and none from 0 to 5 is accepted")


# -- a budget


def test_a_budget_takes_the_cost_planner_and_is_kept(lines: Any) -> None:
    lms = LMS(memory_budget="1 GiB", min_bytes=1)
    lms.batch_size = 8
    lms.run(models.deep(4))
    assert lms.report().memory_budget == 1 << 30
    assert lms.report().is_verified


def test_a_budget_that_cannot_be_met_names_the_nearest() -> None:
    lms = LMS(memory_budget=1, min_bytes=1)
    lms.batch_size = 8
    with pytest.raises(ValueError, match=r"nearest budget that can be kept is \d+\.\d\d MiB: give that"):
        lms.run(models.deep(4))


# -- the hook, and what is written


def test_the_hook_edits_the_graph_of_a_monitored_session() -> None:
    graph, lms = models.deep(), LMS(**GIVEN)
    with graph.as_default(), v1.train.SingularMonitoredSession(hooks=[lms]) as session:
        x, y = models.rows(8)
        session.run("train", {"x:0": x, "y:0": y})
    assert lms.report().mode == "graph"


def test_the_graph_for_tensorboard_has_the_swaps(tmp_path: Path) -> None:
    lms = LMS(**GIVEN)
    lms.run(models.deep())
    place = lms.write_graph(tmp_path / "tb")
    event = next(e for path in place.iterdir() for e in v1.train.summary_iterator(str(path)) if e.HasField("graph_def"))
    definition = v1.GraphDef.FromString(event.graph_def)
    names = [node.name for node in definition.node]
    assert any(name.startswith("lms/swapin_") for name in names)
    assert any(name.startswith("lms/swapout_") for name in names)


def test_there_is_nothing_to_write_before_anything_was_planned(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="write_graph: nothing was planned yet"):
        LMS().write_graph(tmp_path)


def test_the_recommended_session_is_that_of_the_original() -> None:
    options = session_config().graph_options.rewrite_options
    assert options.memory_optimization == options.SCHEDULING_HEURISTICS
    assert LMS().session_config() == session_config()


def test_a_saver_sees_the_same_variables_with_and_without() -> None:
    def names(*, is_edited: bool) -> Any:
        graph = models.deep()
        if is_edited:
            LMS(**GIVEN).run(graph)
        with graph.as_default():
            return [(v.op.name, v.dtype, v.shape.as_list()) for v in v1.global_variables()], v1.train.Saver()._var_list

    plain, edited = names(is_edited=False), names(is_edited=True)
    assert plain[0] == edited[0]
    assert [v.op.name for v in plain[1] or []] == [v.op.name for v in edited[1] or []]


def test_a_fault_of_the_planner_leaves_the_graph_as_it_is(lines: Any, monkeypatch: Any) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise StateError("the order has 'b' before 'a'")

    monkeypatch.setattr(hpcckpt.lms.planner.cost_planner, "problem", fails)
    lms = LMS(memory_budget="1 KiB", min_bytes=1)  # which no step keeps
    lms.batch_size = 8
    assert not lms.run(models.deep(4))
    assert lms.report().mode == "none"
    assert any("could not plan this step" in line for line in lines())


@pytest.mark.parametrize(
    ("shape", "batch_size", "why"),
    [
        ([None, 64], None, "placeholder 'x' has the shape [?, 64]: set lms.batch_size"),
        ([None, None, 64], 8, "placeholder 'x' has the shape [?, ?, 64]: give all dimensions but the first"),
        ([None, 64], 8, ""),
        ([8, 64], None, ""),
    ],
)
def test_a_step_of_unknown_size_verifies_nothing(shape: list[int | None], batch_size: int | None, why: str) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, shape, name="x")
        weights = v1.get_variable("w", [64, 4])
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.tensordot(x, weights, 1)))
    dry = trial_step.dry_step(graph, None, None, batch_size)  # type: ignore[arg-type]
    assert dry.why_not[: len(why) or None] == why
