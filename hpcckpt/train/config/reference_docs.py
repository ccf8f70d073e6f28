"""The tables of the configuration reference, made of the schema and the allow-list.

``python -m hpcckpt.train.config.reference_docs docs/train-config.md`` writes them into the page, between the marks that
name them; with ``--check`` it only checks that the page is up to date. It loads no framework.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcckpt.train.config import schema
from hpcckpt.train.names import allow_list, keras_resolver, package_resolver

_MARKED = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> Mapping[str, Callable[[], str]]:
    """Return what makes each table, by its name in the page."""
    return {
        "cycle": lambda: _keys(schema.CycleKeys),
        "checkpoint": lambda: _keys(schema.CheckpointKeys),
        "lms": lambda: _keys(schema.LmsKeys),
        "open": _open,
        "closed": _closed,
    }


def filled(page: str) -> str:
    """Return a page with all its tables generated again.

    Raises
    ------
    KeyError
        If it has the marks of a table that there is not.
    """
    return _MARKED.sub(lambda mark: f"{mark[1]}\n{tables()[mark[2]]()}\n{mark[3]}", page)


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check a page; return an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("page", type=Path)
    parser.add_argument("--check", action="store_true", help="only check that the page is up to date")
    asked = parser.parse_args(argv)
    page = asked.page.read_text(encoding="utf-8")
    made = filled(page)
    if made == page:
        return 0
    if asked.check:
        sys.stderr.write(
            f"{asked.page} is not up to date: python -m hpcckpt.train.config.reference_docs {asked.page}\n"
        )
        return 1
    asked.page.write_text(made, encoding="utf-8")
    return 0


# -- tables ----------------------------------------------------------------------------------------


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _keys(keys: type[schema.Keys]) -> str:
    rows = [
        (f"`{name}`", _code(field.description or ""), _code(schema.accepts(keys, name)), _default(keys, name))
        for name, field in keys.model_fields.items()
    ]
    return _table(("key", "what it is", "what it takes", "default"), rows)


def _default(keys: type[schema.Keys], name: str) -> str:
    if keys is schema.CycleKeys:
        if name not in schema.DEFAULTS:
            return "must be given in the first cycle"
        value: Any = schema.DEFAULTS[name]
    else:
        value = keys.model_fields[name].default
    return f"`{json.dumps(value)}`"


def _code(text: str) -> str:
    """Return a text with literals set as code."""
    text = text.replace(schema.FACTORY, "a factory")
    return re.sub(r"(\"[^\"]+\"|\bnull\b|\btrue\b|\bfalse\b)", r"`\1`", text)


def _open() -> str:
    rows = [(f"`{_path(space)}`", _rules_text(rules)) for space, rules in keras_resolver.NAMESPACES.items()]
    rows += [(f"`tf.{name}`", 'functions, handed over: `{"@": …}`') for name in allow_list.HANDED_OVER]
    rows += [("`tf.data`", _names(allow_list.READERS))]
    rows += [(f"`ktf.{package}`", _PACKAGES[package]) for package in package_resolver.PACKAGES]
    rows += [("`ktf.train`", _names(package_resolver.LOOPS))]
    return _table(("namespace", "open in it"), rows)


_PACKAGES = {
    "batches": "all that is published there",
    "datasets": "the functions `from_…` of each data set",
    "losses": "all that is published there",
    "models": "all that is published there, in `networks` and `components` too",
}


def _path(space: str) -> str:
    return f"tf.keras.{space}" if space else "tf.keras"


def _rules_text(rules: keras_resolver.Namespace) -> str:
    parts = []
    if rules.bases:
        kinds = list(dict.fromkeys(path.rpartition(".")[2] for path in rules.bases))
        parts.append(f"classes made of {_names(kinds)}")
    if rules.names:
        parts.append(_names(rules.names))
    if rules.builds_models:
        parts.append("functions that build a model, also in the modules below")
    if rules.hands_over:
        parts.append('functions, handed over: `{"@": …}`')
    return "; ".join(parts)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _closed() -> str:
    rows = [(f"`{name}`", reason, _shell(remedy)) for name, (reason, remedy) in sorted(keras_resolver.CARRIERS.items())]
    rows += [
        (f"`{_path(name)}`", reason, _shell(remedy)) for name, (reason, remedy) in sorted(keras_resolver.CLOSED.items())
    ]
    return _table(("what", "why not", "instead"), rows)


def _shell(text: str) -> str:
    return re.sub(r"((?:tf|hpcckpt)\.[\w.]*\w)", r"`\1`", text)


if __name__ == "__main__":
    sys.exit(main())
