"""The names of roots: what is short for what, and what a public name is."""

from __future__ import annotations

import re
from typing import Any

ALIASES = {"tf": "tensorflow", "ktf": "hpcckpt.train"}
KERAS_IN_TENSORFLOW = ("initializers", "losses", "metrics", "optimizers")
PUBLIC = re.compile(r"[^\W\d_]\w*")
OPEN_IT = "export a function of your own (hpcckpt.train.export_config), or start with --allow {} if you trust this file"


def canonical(name: str) -> tuple[str, ...]:
    """Return the parts of a path without aliases: ``tf.losses.X`` is ``keras.losses.X``."""
    head, *rest = name.split(".")
    parts = [*ALIASES.get(head, head).split("."), *rest]
    if head == "ktf" and rest[:1] == ["train"]:
        del parts[1]
    if parts[:2] == ["tensorflow", "keras"]:
        parts = parts[1:]
    elif parts[0] == "tensorflow" and parts[1:2] and parts[1] in KERAS_IN_TENSORFLOW:
        parts[0] = "keras"
    return tuple(parts)


def public_names(thing: Any) -> list[str]:
    """Return the names that something has, without those that are its own affair."""
    return [name for name in dir(thing) if not name.startswith("_")]
