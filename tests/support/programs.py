"""The environment of programs that tests start: they find the package `tests`, wherever they are."""

from __future__ import annotations

import os

from tests.support.paths import ROOT


def python_path(first: str | None = None) -> str:
    """Return a PYTHONPATH with the root of the project at its end, after `first` or what is inherited."""
    before = os.environ.get("PYTHONPATH", "") if first is None else first
    return os.pathsep.join([*(part for part in before.split(os.pathsep) if part and part != str(ROOT)), str(ROOT)])


def environment(**variables: str) -> dict[str, str]:
    """Return the environment with `variables`; a PYTHONPATH among them replaces the one that is inherited."""
    return {**os.environ, **variables, "PYTHONPATH": python_path(variables.get("PYTHONPATH"))}
