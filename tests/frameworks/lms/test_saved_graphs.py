"""Graphs that are saved after LMS has edited them run and train elsewhere, and a plain graph can be saved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.errors import BackendError
from hpcckpt.lms import LMS
from hpcckpt.lms.runtime import native_engine, saved_graphs
from hpcckpt.native import tf_ops
from tests.support.lms import models
from tests.support.programs import environment

v1 = tf.compat.v1
ROWS = 4096  # 256 KiB in each layer: tensors that leave memory
ORDERS = ("import hpcckpt.lms, tensorflow", "import tensorflow, hpcckpt.lms")


def edited() -> tf.Graph:
    graph = models.deep(6)
    assert LMS(5, 2, 3, min_bytes=1).run(graph)
    return graph


def swaps(graph: tf.Graph) -> list[str]:
    return [op.name for op in graph.get_operations() if op.type.startswith("Hpcckpt")]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An edited graph as ``meta``, and as a SavedModel in ``model``."""
    path, graph = tmp_path_factory.mktemp("saved"), edited()
    x, y, loss = (graph.get_tensor_by_name(f"{name}:0") for name in ("x", "y", "loss/mean"))
    with graph.as_default(), v1.Session() as session:
        v1.train.export_meta_graph(os.fspath(path / "meta"))
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, os.fspath(path / "model"), {"x": x, "y": y}, {"loss": loss})
    return path


def printed_by(program: str, saved: Path, **variables: str) -> list[str]:
    env = environment(TF_CPP_MIN_LOG_LEVEL="2", **variables)
    command = [sys.executable, "-W", "ignore", "-c", program, os.fspath(saved)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


LOAD_META_GRAPH = """
import sys, tensorflow as tf
from tests.support.lms import models
with tf.Graph().as_default() as graph:
    tf.compat.v1.train.import_meta_graph(sys.argv[1] + "/meta")
print(models.train(graph, batch=4096))
"""

LOAD_SAVED_MODEL = """
import sys, tensorflow as tf
from tests.support.lms import models
x, y = models.rows(4096)
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    tf.compat.v1.saved_model.load(session, ["serve"], sys.argv[1] + "/model")
    losses = [session.run(["loss/mean:0", "train"], {"x:0": x, "y:0": y})[0] for _ in range(3)]
print(losses[0].tobytes().hex(), losses[2] < losses[0])
serving = tf.saved_model.load(sys.argv[1] + "/model").signatures["serving_default"]
print(serving(x=tf.constant(x), y=tf.constant(y))["loss"].numpy().tobytes().hex())
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", ORDERS)
def test_a_meta_graph_trains_in_a_process_that_imports_lms(first: str, saved: Path, tmp_path: Path) -> None:
    shown = "from hpcckpt.lms.runtime import native_engine\nprint(native_engine.stats().bytes_out > 0)"
    program = f"{first}\n{LOAD_META_GRAPH}\n{shown}"
    expected = models.train(models.deep(6), batch=ROWS)
    assert printed_by(program, saved, HPCCKPT_LMS_DIR=os.fspath(tmp_path)) == [expected, "True"]


@pytest.mark.slow
def test_a_saved_model_predicts_and_trains_in_a_process_that_imports_lms(saved: Path) -> None:
    x, y = models.rows(ROWS)
    with v1.Session(graph=models.deep(6)) as session, session.graph.as_default():
        session.run(v1.global_variables_initializer())
        loss = session.run("loss/mean:0", {"x:0": x, "y:0": y}).tobytes().hex()
    assert printed_by(f"import hpcckpt.lms\n{LOAD_SAVED_MODEL}", saved) == [loss, "True", loss]


@pytest.mark.slow
def test_a_plain_graph_trains_in_a_process_without_hpcckpt(tmp_path: Path) -> None:
    graph = edited()
    with hc.lms.plain_graph(graph).as_default():
        v1.train.export_meta_graph(os.fspath(tmp_path / "meta"))
    program = f"{LOAD_META_GRAPH}\nprint('hpcckpt' in sys.modules)"
    assert printed_by(program, tmp_path) == [models.train(models.deep(6), batch=ROWS), "False"]


def test_a_plain_graph_trains_as_the_edited_one_to_the_bit() -> None:
    graph = edited()
    plain = hc.lms.plain_graph(graph)
    assert swaps(graph)
    assert not swaps(plain)
    assert {op.name for op in graph.get_operations()} - {op.name for op in plain.get_operations()} == set(swaps(graph))
    assert models.train(plain) == models.train(graph)


def test_a_plain_graph_of_the_cost_planner_trains() -> None:
    graph = models.deep(6, batch=ROWS)
    lms = LMS(planner="cost", min_bytes=1)
    lms.batch_size = ROWS
    assert lms.run(graph)
    plain = hc.lms.plain_graph(graph)
    assert not swaps(plain)
    assert models.train(plain, batch=ROWS)  # not compared: ordering edges change what oneDNN fuses


def test_a_plain_graph_takes_the_values_of_a_checkpoint(tmp_path: Path) -> None:
    graph = edited()
    with v1.Session(graph=graph) as session, graph.as_default():
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, os.fspath(tmp_path / "model"))
        expected = session.run(v1.global_variables())
    with hc.lms.plain_graph(graph).as_default(), v1.Session() as session:
        v1.train.Saver().restore(session, path)
        assert models.digest(session.run(v1.global_variables())) == models.digest(expected)


def test_without_a_compiler_importing_lms_is_no_error_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def fail(config: Any) -> None:
        raise BackendError("no C++ compiler; run: apt-get install g++")

    monkeypatch.setattr(native_engine, "set_fallback", fail)
    saved_graphs.register_ops()
    (text,) = caplog.messages
    assert text.endswith("cannot be loaded in this process: no C++ compiler; run: apt-get install g++")


def test_where_nothing_native_is_wanted_importing_lms_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCCKPT_NO_NATIVE", "1")
    monkeypatch.setattr(tf_ops, "find_or_build", lambda library: pytest.fail("built"))
    saved_graphs.register_ops()
