"""Weights that Keras downloads: what downloads them; and where it cannot, which file, where it belongs, what to do."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

_FAILED = re.compile(r"URL fetch failure on (?P<url>\S+): \S+ -- (?P<reason>.*)", re.DOTALL)
"""What Keras' ``get_file`` says, 2.15 and 3."""


def may_download(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Return True if a network of ``keras.applications`` with these arguments takes weights from the cache. Pure."""
    return "applications" in name.split(".") and kwargs.get("weights", "imagenet") is not None


def download_problem(error: Exception) -> tuple[str, str] | None:
    """Return text and remedy if Keras could not download weights; ``None`` for all other errors. Independent."""
    found = _FAILED.search(str(error))
    if found is None:
        return None
    url, reason = found["url"], " ".join(found["reason"].split())
    file, folder = os.path.basename(urlsplit(url).path), models_folder()
    text = f"{file} is not in {folder}, or not whole, and Keras cannot download it ({reason})"
    return (
        text,
        f'fetch {url} where there is a network and copy it to {folder}, or write "weights": null to train from zero',
    )


def models_folder() -> str:
    """Return the folder in which Keras keeps weights: ``~/.keras/models``, as a rule."""
    import keras

    home = os.path.join(os.path.expanduser("~"), ".keras")
    if not keras.__version__.startswith("2"):
        home = os.environ.get("KERAS_HOME", home)
    if not os.access(home, os.W_OK):  # as Keras itself
        home = os.path.join("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir(), ".keras")
    return os.path.join(home, "models")
