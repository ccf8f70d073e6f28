"""Graphs that were saved after LMS has edited them: how they run elsewhere, and how a plain graph is saved.

A MetaGraph or SavedModel of an edited graph contains the operations of LMS. TensorFlow knows them in a process that has
imported `hpcckpt.lms`, before or after TensorFlow.
"""

from __future__ import annotations

import os
from typing import Any

from hpcckpt.errors import BackendError
from hpcckpt.lms.messages import log
from hpcckpt.lms.planner.edited_graph import RELEASE, SWAP_IN, SWAP_OUT
from hpcckpt.lms.runtime import native_engine
from hpcckpt.lms.storage_tiers import TierConfig


def register_ops() -> None:
    """Have TensorFlow know the operations of saved graphs, and where their tensors go. Independent.

    The directory is made use of when the first tensor leaves: ``HPCCKPT_LMS_DIR``, or the one for temporary files. The
    library is built if there is none, except with ``HPCCKPT_NO_NATIVE=1``; if it cannot be, that is logged.
    """
    if os.environ.get("HPCCKPT_NO_NATIVE", "0") not in ("", "0"):
        return
    try:
        native_engine.set_fallback(TierConfig())
    except BackendError as error:
        log.warning("graphs that were saved after LMS cannot be loaded in this process: %s", error)


def plain_graph(graph: Any) -> Any:
    """Return a copy of a graph without LMS. Independent.

    The copy runs where hpcckpt is not installed. It has the names, variables and collections of the graph; variables
    get their values from a checkpoint of the graph. Recomputed operations stay, because they are ordinary operations.

    Parameters
    ----------
    graph : tf.Graph
        A graph that `LMS.run` has edited, or that was loaded from the file of an edited graph.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    with graph.as_default():
        meta = v1.train.export_meta_graph()
    remove_swaps(meta.graph_def)
    meta.meta_info_def.ClearField("stripped_op_list")
    plain = tf.Graph()
    with plain.as_default():
        v1.train.import_meta_graph(meta)
    return plain


def remove_swaps(graph_def: Any) -> None:
    """Remove the operations of LMS from a GraphDef, in place: consumers take the tensors that were swapped. Pure."""
    nodes = {node.name: node for node in graph_def.node}
    tensors = {name: nodes[_name(node.input[0])].input[0] for name, node in nodes.items() if node.op == SWAP_IN}
    removed = {name for name, node in nodes.items() if node.op in (RELEASE, SWAP_IN, SWAP_OUT)}
    kept = [node for node in graph_def.node if node.name not in removed]
    for node in kept:
        left = [each for each in node.input if not (each.startswith("^") and _name(each) in removed)]
        inputs = [tensors.get(_name(each), each) for each in left]
        del node.input[:]
        node.input.extend(inputs)
    del graph_def.node[:]
    graph_def.node.extend(kept)


def _name(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]
