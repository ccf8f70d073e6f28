"""Keeping back what frameworks say of files that are only being converted."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

_LOGGERS = ("absl", "tensorflow")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep back what Keras and TensorFlow say while they read or write a file that they call legacy."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
