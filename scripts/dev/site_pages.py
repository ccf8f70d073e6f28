"""Write the pages of the documentation site that Sphinx reads:  site_pages.py DIRECTORY  (`make docs` calls it).

* the pages of ``docs``, and ``README.md``, ``CHANGELOG.md`` and ``CONTRIBUTING.md``
* the reference: every public name of the modules in `REFERENCE`, from the docstrings, and the help of every command
* a page for each file outside of ``docs`` to which a page links, so that links work on the site as in the repository
"""

from __future__ import annotations

import importlib
import inspect
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hpcckpt.cli.app import tool
from hpcckpt.cli.lazy import load_own
from hpcckpt.cli.verbs import VERBS

ROOT = Path(__file__).parents[2]
SECTIONS: dict[str, tuple[str, ...]] = {
    "Get started": (
        "reasons", "numpy", "start-keras", "start-horovod", "start-tensorflow", "start-torch", "start-train",
        "start-lms", "start-operating", "start-plugins",
    ),
    "Guides": (
        "keras", "horovod", "tensorflow", "torch", "train", "train-parts", "lms", "operating", "preemption", "tiers",
        "hdf5", "convert", "slow-training", "slurm", "pbs", "theta", "jobscript", "containers", "plugins", "tmci",
        "doctor",
    ),
    "Reference": ("cli", "reference/commands", "train-config", "reference/python", "backends", "format", "support"),
    "Development": (
        "contributing", "architecture", "glossary", "features", "benchmarks", "peers", "releasing", "decisions/index",
        "changes",
    ),
}  # fmt: skip
"""The side bar: captions -> pages."""
REFERENCE: dict[str, tuple[str, ...]] = {
    "hpcckpt": ("hpcckpt",),
    "hpcckpt.keras": ("hpcckpt.keras",),
    "hpcckpt.horovod": ("hpcckpt.horovod",),
    "hpcckpt.tensorflow": ("hpcckpt.tensorflow",),
    "hpcckpt.torch": ("hpcckpt.torch",),
    "hpcckpt.tmci": ("hpcckpt.tmci", "hpcckpt.tmci.plugins"),
    "hpcckpt.lms": ("hpcckpt.lms", "hpcckpt.lms.verification"),
    "hpcckpt.preemption": ("hpcckpt.preemption",),
    "hpcckpt.train": ("hpcckpt.train", "hpcckpt.train.datasets", "hpcckpt.train.models", "hpcckpt.train.losses"),
    "hpcckpt.interval": ("hpcckpt.interval",),
    "hpcckpt.errors": ("hpcckpt.errors",),
    "hpcckpt.plugins": ("hpcckpt.plugins",),
    "hpcckpt.backends": ("hpcckpt.backends.base", "hpcckpt.plan", "hpcckpt.tensors", "hpcckpt.native"),
    "hpcckpt.testing": ("hpcckpt.testing.backends", "hpcckpt.testing.ranks"),
    "hpcckpt.jobs": ("hpcckpt.jobs.binding", "hpcckpt.jobs.schedulers"),
}
"""Pages of the reference -> the modules whose public names they have."""
FIXED = {"README.md": "index.md", "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md", ".": "index.md"}
HOMES = dict.fromkeys(FIXED.values(), "")
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
LANGUAGES = {".py": "python", ".sh": "bash", ".cpp": "cpp", ".hpp": "cpp", ".c": "c", ".h": "c", ".yaml": "yaml"}
MAX_SHOWN = 60_000


# -- the reference ---------------------------------------------------------------------------------


def public_names(module: str) -> list[str]:
    """Return the public classes, functions and values of a module: ``__all__``, or else what is defined there."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == found.__name__ and callable(value)
    ]
    return [name for name in names if not name.startswith("__") and not inspect.ismodule(getattr(found, name))]


def reference_page(page: str) -> str:
    """Return a page of the reference, which autodoc fills."""
    text = [f"# {page}\n"]
    for module in REFERENCE[page]:
        text += [] if module == page else [f"## {module}\n"]
        text += [_documented(module, name) for name in public_names(module)]
    return "\n".join(text)


def _documented(module: str, name: str) -> str:
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        members = "" if issubclass(value, BaseException) else "\n   :members:"
        directive = f".. autoclass:: {module}.{name}{members}"
    else:
        directive = f".. {'autofunction' if callable(value) else 'autodata'}:: {module}.{name}"
    return f"```{{eval-rst}}\n{directive}\n```\n"


def python_page() -> str:
    """Return the page that lists the pages of the reference."""
    return _toctree("Python", sorted(REFERENCE))


def _toctree(title: str, pages: list[str]) -> str:
    return "\n".join([f"# {title}\n", "```{toctree}", ":maxdepth: 1", *pages, "```\n"])


def commands_page() -> str:
    """Return the help of every command, as the program prints it."""

    def blocks(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
        width = 100
        settings = {**command.context_settings, "terminal_width": width, "max_content_width": width}
        with click.Context(command, parent, name, **settings) as context:
            yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
            below = (
                {verb.name: load_own(verb) for verb in VERBS} if command is tool else getattr(command, "commands", {})
            )
            for each, inner in below.items():
                yield from blocks(inner, each, context)

    text = ["# Commands and options\n", "What `--help` prints. [The command line](../cli.md) has examples.\n"]
    text += blocks(tool, "hpcckpt", None)
    return "\n".join(text)


# -- links to the repository -----------------------------------------------------------------------


def place_of(target: str, page: str) -> str:
    """Return where a link of a page leads, from the root of the repository. Pure."""
    home = HOMES.get(page, posixpath.dirname(_place_of_page(page)))
    return posixpath.normpath(posixpath.join(home, target))


def _place_of_page(page: str) -> str:
    return page.removeprefix("source/") if page.startswith("source/") else f"docs/{page}"


def page_of(place: str) -> str:
    """Return the page of a place of the repository, from the root of the site. Pure."""
    if place in FIXED:
        return FIXED[place]
    if place.startswith("docs/"):
        return place.removeprefix("docs/") + ("" if place.endswith(".md") else "/index.md")
    return f"source/{place}" if place.endswith(".md") else f"source/{place}.md"


def relinked(text: str, page: str) -> tuple[str, list[str]]:
    """Return the text of a page with the links of the site, and the places outside of docs that it links to."""
    places = []

    def changed(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        place = place_of(target, page)
        if "://" in target or not (ROOT / place).exists():
            return found[0]
        where = page_of(place)
        if where.startswith("source/"):
            places.append(place)
        return posixpath.relpath(where, posixpath.dirname(page) or ".") + anchor

    return LINK.sub(changed, text), places


def source_page(place: str) -> str:
    """Return the page that shows a file, or lists a folder."""
    path = ROOT / place
    if path.is_dir():
        names = sorted(each.name + "/" * each.is_dir() for each in path.iterdir() if each.name[0] not in "._")
        return f"---\norphan: true\n---\n# {place}\n\n" + "\n".join(f"- `{name}`" for name in names)
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return f"---\norphan: true\n---\n{text}"
    shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}\n[...]"
    language = LANGUAGES.get(path.suffix, "text")
    return f"---\norphan: true\n---\n# {place}\n\n````{language}\n{shown.rstrip()}\n````\n"


# -- the pages -------------------------------------------------------------------------------------


def home_page(text: str) -> str:
    """Return README with the side bar."""
    bars = [
        "\n".join(["```{toctree}", f":caption: {caption}", ":hidden:", *pages, "```\n"])
        for caption, pages in SECTIONS.items()
    ]
    return "\n".join([text, *bars])


def pages() -> dict[str, str]:
    """Return the text of every page of the site."""
    docs = ROOT / "docs"
    found = {str(path.relative_to(docs)): path.read_text("utf-8") for path in sorted(docs.rglob("*.md"))}
    decisions = sorted(Path(page).stem for page in found if page.startswith("decisions/"))
    found |= {page: (ROOT / place).read_text("utf-8") for place, page in FIXED.items() if place != "."}
    waiting = list(found)
    while waiting:
        page = waiting.pop()
        found[page], places = relinked(found[page], page)
        for place in places:
            if page_of(place) not in found:
                found[page_of(place)] = source_page(place)
                waiting.append(page_of(place))
    found["index.md"] = home_page(found["index.md"])
    found["decisions/index.md"] = _toctree("Decisions", decisions)
    found["reference/python.md"] = python_page()
    found["reference/commands.md"] = commands_page()
    return found | {f"reference/{page}.md": reference_page(page) for page in REFERENCE}


def main() -> None:
    """Write them; a page that has not changed keeps its time."""
    directory = Path(sys.argv[1])
    made = pages()
    for page, text in made.items():
        path = directory / page
        if not path.exists() or path.read_text("utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    for path in directory.rglob("*.md"):
        if str(path.relative_to(directory)) not in made:
            path.unlink()
    for name in ("images", "_static"):
        if (ROOT / "docs" / name).exists():
            shutil.copytree(ROOT / "docs" / name, directory / name, dirs_exist_ok=True)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
