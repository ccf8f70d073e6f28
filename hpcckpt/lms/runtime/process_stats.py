"""Figures of the whole process, and the session that the original recommends."""

from __future__ import annotations

import time
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.planner import memory_limits
from hpcckpt.lms.planner.edited_graph import edited

if TYPE_CHECKING:
    from hpcckpt.lms.runtime.options import LmsOutcome


def stats() -> dict[str, Any]:
    """Return counters of swaps and waits in this process, and GPU memory.

    Returns
    -------
    dict
        The counters of the swap engine, none if it is not loaded; and ``gpus``: for each GPU the bytes that TensorFlow
        uses now and used at the peak.
    """
    import tensorflow as tf

    from hpcckpt.lms.runtime import native_engine

    found: dict[str, Any] = asdict(native_engine.stats()) if native_engine.is_loaded() else {}
    names = [gpu.name.rpartition("physical_device:")[2] for gpu in memory_limits.gpus()]
    return found | {"gpus": {name: dict(tf.config.experimental.get_memory_info(name)) for name in names}}


def n_swapped() -> int:
    """Return how many times a tensor was swapped out so far in this process."""
    from hpcckpt.lms.runtime import native_engine

    return sum(op.count for op in native_engine.stats().outs.values()) if native_engine.is_loaded() else 0


def session_config() -> Any:
    """Return the ``ConfigProto`` that TFLMSv2 recommends.

    It sets TensorFlow's own memory optimizer to SCHEDULING_HEURISTICS.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf import rewriter_config_pb2

    config = tf.compat.v1.ConfigProto()
    heuristics = rewriter_config_pb2.RewriterConfig.SCHEDULING_HEURISTICS
    config.graph_options.rewrite_options.memory_optimization = heuristics
    return config


def write_graph(graph: Any, outcome: LmsOutcome, logdir: str | PathLike[str]) -> Path:
    """Write a graph for TensorBoard: the `tf.Graph` that was edited, or what the native pass made of a function."""
    import tensorflow as tf

    assert outcome.context is not None
    assert outcome.result is not None
    result = _definition(edited(outcome.context.graph, outcome.result.plan)) if graph is None else graph.as_graph_def()
    event = tf.compat.v1.Event(wall_time=time.time(), graph_def=result.SerializeToString())
    with tf.Graph().as_default():  # the writer refuses to work where TensorFlow executes eagerly
        writer = tf.compat.v1.summary.FileWriter(str(logdir))
        writer.add_event(event)
        writer.close()
    return Path(logdir)


def _definition(graph: Graph) -> Any:
    """Return names, types and edges of a graph as a GraphDef: to be looked at, not to be run."""
    import tensorflow as tf

    definition = tf.compat.v1.GraphDef()
    for op in graph.ops.values():
        node = definition.node.add(name=op.name, op=op.type, device=op.device)
        node.input.extend([str(use) if use.number else use.op for use in op.inputs])
        node.input.extend(f"^{name}" for name in op.controls)
    return definition
