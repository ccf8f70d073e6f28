"""The pages of the documentation site: every public name is in the reference, and links lead to pages."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import warnings
from typing import Any

import pytest

from tests.support.paths import ROOT

pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def site() -> Any:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "dev" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def value_of(name: str) -> Any:
    """Return the value of a documented name; ``None`` if it needs a package that is not installed."""
    parts = name.split(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old names
        for n in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:n]))
            except ModuleNotFoundError:
                continue
            except ImportError:
                return None
            for part in parts[n:]:
                found = getattr(found, part, None)
            return found
    return None


LEFT_OUT = (
    "hpcckpt.discovery.", "hpcckpt.native.tf_ops.", "hpcckpt.train.cycles.", "hpcckpt.train.datasets.mnist.",
    "hpcckpt.train.problems.",
)  # fmt: skip
"""Old names; those that are for developers of hpcckpt, or are described where they are used."""


def test_the_reference_has_every_name_that_the_pages_use(site: Any) -> None:
    names = {
        f"{module}.{name}" for page in site.REFERENCE.values() for module in page for name in site.public_names(module)
    }
    assert len(names) > 150
    missing = []
    for name in json.loads((ROOT / "tests" / "unit" / "documented.json").read_text("utf-8"))["names"]:
        value = value_of(name)
        is_name = value is not None and not inspect.ismodule(value) and not name.rpartition(".")[2].startswith("__")
        is_there = name in names or name.rpartition(".")[0] in names
        if is_name and not is_there and not name.startswith(LEFT_OUT):
            missing.append(name)
    assert missing == []


def test_links_lead_to_pages_and_files_of_the_repository_get_one(site: Any) -> None:
    text = "[a](docs/cli.md#list) [b](LICENSE) [c](https://example.org/x) [d](bench/README.md) [e](docs/decisions)"
    changed, places = site.relinked(text, "index.md")
    assert changed == (
        "[a](cli.md#list) [b](source/LICENSE.md) [c](https://example.org/x) [d](source/bench/README.md) "
        "[e](decisions/index.md)"
    )
    assert places == ["LICENSE", "bench/README.md"]
    assert site.relinked("[a](../README.md) [b](../hpcckpt/errors.py) [c](../keras.md)", "decisions/0001.md")[0] == (
        "[a](../README.md) [b](../hpcckpt/errors.py) [c](../keras.md)"
    )
    assert site.relinked("[a](../README.md#more) [b](../hpcckpt/errors.py)", "keras.md")[0] == (
        "[a](index.md#more) [b](source/hpcckpt/errors.py.md)"
    )
    assert site.relinked("![a](images/lms-limits.svg)", "lms.md")[0] == "![a](images/lms-limits.svg)"


def test_every_page_is_in_the_side_bar_and_every_verb_in_the_commands(site: Any) -> None:
    named = {name for section in site.SECTIONS.values() for name in section}
    written = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert written <= named
    commands = site.commands_page()
    for verb in site.VERBS:
        assert f"## hpcckpt {verb.name}\n" in commands
    assert commands.count("-h, --help") > len(site.VERBS)
