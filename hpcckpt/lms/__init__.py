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

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcckpt.lms.figures import session_config, stats
    from hpcckpt.lms.large_model_support import LMS
    from hpcckpt.lms.report import Report

_HOME = {
    "LMS": "hpcckpt.lms.large_model_support",
    "Report": "hpcckpt.lms.report",
    "session_config": "hpcckpt.lms.figures",
    "stats": "hpcckpt.lms.figures",
}

__all__ = ["LMS", "Report", "session_config", "stats"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'hpcckpt.lms' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
