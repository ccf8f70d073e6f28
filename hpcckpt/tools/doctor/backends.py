"""The storage backends: whether each can be loaded."""

from __future__ import annotations

from collections.abc import Iterator

from hpcckpt.backends.registry import known_backends
from hpcckpt.tools.doctor.finding import Finding


def findings() -> Iterator[Finding]:
    """Yield one finding for the backends that work, and one for each that does not. Independent."""
    found = known_backends()
    yield Finding("backends", "ok", ", ".join(info.name for info in found if not info.problem))
    for info in found:
        if info.problem:
            yield Finding("backends", "problem", info.problem, f"reinstall or remove {info.origin}")
