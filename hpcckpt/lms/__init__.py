"""Large Model Support: training steps whose tensors are swapped out while they are not needed. TFLMSv2-compatible.

Works with TensorFlow 2.15 (sessions, Estimators, Keras 2.15, `tf.function`) and 2.21 (sessions, Keras 3,
`tf.function`).  Importing this package loads none of them; names are loaded on first use.  Once both this package and
TensorFlow are imported, graphs that were saved after LMS can be loaded.

`LMS`
    The object that does it: a Keras callback, a hook of sessions, and ``run(graph)``.
`Report`
    What ``lms.report()`` returns.
`largest_tensors`
    Returns the largest tensors that exist at the peak of a graph, which is not run.
`plain_graph`
    Returns a copy of an edited graph without LMS, to be saved for other programs.
`stats`, `session_config`
    What was moved and waited for so far; the configuration that the original recommends for sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach, when_imported

if TYPE_CHECKING:
    from hpcckpt.lms.large_model_support import LMS
    from hpcckpt.lms.report.largest_tensors import largest_tensors
    from hpcckpt.lms.report.report import Report
    from hpcckpt.lms.runtime.process_stats import session_config, stats
    from hpcckpt.lms.runtime.saved_graphs import plain_graph

_HOME = {
    "LMS": "large_model_support",
    "Report": "report.report",
    "largest_tensors": "report.largest_tensors",
    "plain_graph": "runtime.saved_graphs",
    "session_config": "runtime.process_stats",
    "stats": "runtime.process_stats",
}

__all__ = ["LMS", "Report", "largest_tensors", "plain_graph", "session_config", "stats"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)


def _register_ops() -> None:
    from hpcckpt.lms.runtime.saved_graphs import register_ops

    register_ops()


when_imported("tensorflow", _register_ops)
