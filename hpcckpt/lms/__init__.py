"""Large Model Support: training steps whose tensors leave memory while nobody needs them. TFLMSv2-compatible.

Works with TensorFlow 2.15 (sessions, Estimators, Keras 2.15, `tf.function`) and 2.21 (sessions, Keras 3,
`tf.function`).  Importing this package loads none of them; names are loaded on first use.

`LMS`
    The object that does it: a Keras callback, a hook of sessions, and ``run(graph)``.
`Report`
    What ``lms.report()`` returns.
`stats`, `session_config`
    What was moved and waited for so far; the configuration that the original recommends for sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.lms.figures import session_config, stats
    from hpcckpt.lms.large_model_support import LMS
    from hpcckpt.lms.report import Report

_HOME = {
    "LMS": "large_model_support",
    "Report": "report",
    "session_config": "figures",
    "stats": "figures",
}

__all__ = ["LMS", "Report", "session_config", "stats"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
