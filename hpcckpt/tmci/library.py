"""Where the library of TensorFlow ops is, for build systems that ask as TMCI's do; plugins need not link to it."""

from __future__ import annotations

import os

from hpcckpt.native import tf_ops

__all__ = ["get_library", "get_library_dir"]


def get_library() -> str:
    """Return the name of the library of TensorFlow ops: a file in `get_library_dir`, as for ``ld -l:NAME``.

    Raises
    ------
    BackendError
        If it is not built for the installed TensorFlow; with what to do.
    """
    return tf_ops.load_ops().path.name


def get_library_dir() -> str:
    """Return the directory of the library of TensorFlow ops.

    Raises
    ------
    BackendError
        If it is not built for the installed TensorFlow; with what to do.
    """
    return os.fspath(tf_ops.load_ops().path.parent)
