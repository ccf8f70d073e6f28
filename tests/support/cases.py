"""A table of cases in one test: each row is a subtest, which is reported by its values if it fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet

DIRECTORIES = ("run_dir", "tmp_path")
"""Fixtures of which each row gets a directory that no other row has."""


def cases(
    names: str | Sequence[str], rows: Iterable[Any], *, ids: Callable[[Any], str] | Sequence[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test once with each row, as `pytest.mark.parametrize` does, but as one test.

    For tables of values that prove one promise.  What a row changes is seen by the next one, except files in
    `DIRECTORIES`; a test that cannot bear this, or whose rows have marks, is parametrized.

    Parameters
    ----------
    names : str or sequence of str
        Of the arguments.
    rows : iterable
        Their values: one value, or as many as there are names; or a `pytest.param`.
    ids : callable or sequence of str, optional
        What a row is called if it fails: by default its values.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [_values(row, len(arguments)) for row in rows]
    assert table, f"no cases of {names}"
    assert {len(row) for row in table} == {len(arguments)}, f"not {len(arguments)} values in each row"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in arguments]
        assert len(left) == len(signature.parameters) - len(arguments), f"{test.__name__} does not take {names}"
        takes_subtests = "subtests" in signature.parameters
        added = [] if takes_subtests else [inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY)]

        def run(*instance: Any, **fixtures: Any) -> None:
            subtests: pytest.Subtests = fixtures["subtests"] if takes_subtests else fixtures.pop("subtests")
            for number, row in enumerate(table):
                named = dict(zip(arguments, row, strict=True))
                label = {"msg": ids(row[0]) if callable(ids) else ids[number]} if ids else named
                with subtests.test(**label):
                    test(*instance, **_own_directories(fixtures, number), **named)

        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run.__module__ = test.__module__
        run.__signature__ = signature.replace(parameters=[*left, *added])  # type: ignore[attr-defined]
        run.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
        return run

    return decorate


def _values(row: Any, n_values: int) -> tuple[Any, ...]:
    if isinstance(row, ParameterSet):
        assert not row.marks, "a row with marks needs a separate test"
        return tuple(row.values)
    return (row,) if n_values == 1 else tuple(row)


def _own_directories(fixtures: dict[str, Any], number: int) -> dict[str, Any]:
    changed = dict(fixtures)
    for name in DIRECTORIES:
        if name in fixtures:
            changed[name] = fixtures[name].parent / f"{fixtures[name].name}-{number}"
    if "tmp_path" in changed:
        changed["tmp_path"].mkdir()
    return changed
