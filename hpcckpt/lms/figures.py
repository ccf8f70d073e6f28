"""Figures of the whole process, and the session that the original recommends."""

from __future__ import annotations

import time
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcckpt.lms import limits
from hpcckpt.lms.edited import edited
from hpcckpt.lms.graph import Graph

if TYPE_CHECKING:
    from hpcckpt.lms.options import Outcome


def stats() -> dict[str, Any]:
    """Return what was moved and waited for so far in this process, and what TensorFlow says of its GPUs' memory.

    Returns
    -------
    dict
        The counters of the engine, empty if it is not loaded, and ``gpus``: by GPU, the bytes now and at the peak.
    """
    import tensorflow as tf

    from hpcckpt.lms import engine

    found: dict[str, Any] = asdict(engine.stats()) if engine.is_loaded() else {}
    names = [gpu.name.rpartition("physical_device:")[2] for gpu in limits.gpus()]
    return found | {"gpus": {name: dict(tf.config.experimental.get_memory_info(name)) for name in names}}


def n_swapped() -> int:
    """Return how many times a tensor was swapped out so far in this process."""
    from hpcckpt.lms import engine

    return sum(op.count for op in engine.stats().outs.values()) if engine.is_loaded() else 0


def session_config() -> Any:
    """Return a ``ConfigProto`` with TensorFlow's own memory optimizer at SCHEDULING_HEURISTICS, as advised."""
    import tensorflow as tf
    from tensorflow.core.protobuf import rewriter_config_pb2

    config = tf.compat.v1.ConfigProto()
    heuristics = rewriter_config_pb2.RewriterConfig.SCHEDULING_HEURISTICS
    config.graph_options.rewrite_options.memory_optimization = heuristics
    return config


def write_graph(graph: Any, outcome: Outcome, logdir: str | PathLike[str]) -> Path:
    """Write a graph for TensorBoard: the `tf.Graph` that was edited, or what the native pass made of a function."""
    import tensorflow as tf

    assert outcome.scene is not None
    assert outcome.made is not None
    made = _definition(edited(outcome.scene.graph, outcome.made.plan)) if graph is None else graph.as_graph_def()
    event = tf.compat.v1.Event(wall_time=time.time(), graph_def=made.SerializeToString())
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
