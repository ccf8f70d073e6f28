"""Commands that messages suggest, as a shell takes them."""

from __future__ import annotations

import os
import shlex


def command_line(verb: str, *words: str | os.PathLike[str] | int) -> str:
    """Return ``hpcckpt VERB WORDS`` with the words quoted where a shell needs it."""
    return shlex.join(["hpcckpt", verb, *(str(word) if isinstance(word, int) else os.fspath(word) for word in words)])
