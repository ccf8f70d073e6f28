"""Names and commands that the documents of a commit use: find them, and check that they still work.

    documented.py make f07e35e 94abd9d > tests/unit/documented.json   # all that works in the trees of these commits
    documented.py check tests/unit/documented.json                    # print what fails here; then the exit status is 1

A name is imported, and its attributes are read. A command is parsed by the parsers of this tree, and not run. Options
are those of all commands. What needs a package that is not installed is left out.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import io
import json
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

SOURCES = re.compile(
    r"(README\.md|bench/README\.md|(docs|examples|notebooks|docker|scripts/(slurm|pbs|theta))/.*"
    r"|hpcckpt/.*\.md|hpcckpt/native/templates/.*)"
)
NAME = re.compile(r"(?<![\w./-])hpcckpt(?:\.[A-Za-z_]\w*)+")
IMPORT = re.compile(r"^[\s>.]*(from hpcckpt[\w.]* import (?:\([^)]*\)|[^\n(]+)|import hpcckpt[^\n#`]*)", re.MULTILINE)
COMMAND = re.compile(r"(?<![\w./-])(?:python3? -m hpcckpt(?:\.[\w.]+)?|hpcckpt)(?![\w./-])[^\n`]*")
PROSE = re.compile(r"`([^`\n]+)`")
END = {"|", ">", ">>", "<", "&&", "||", ";", "&", ")", "\\"}
SKIPPED = {"…", "..."}


class NotInstalledError(Exception):
    """A name needs a package that is not installed."""


# -- what a text uses ------------------------------------------------------------------------------


def names_in_code(code: str) -> Iterator[str]:
    """Yield what a program imports from hpcckpt, and the attributes that it reads of what it imported."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "hpcckpt":
                    yield alias.name
                    aliases[alias.asname or "hpcckpt"] = alias.name if alias.asname else "hpcckpt"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hpcckpt":
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            if first in aliases and re.fullmatch(r"[\w.]+", rest):
                yield f"{aliases[first]}.{rest}"


def code_blocks(file: str, text: str) -> Iterator[str]:
    """Yield the Python code of a file: all of it, or its blocks, or its cells."""
    if file.endswith(".ipynb"):
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] == "code":
                yield "\n".join(line for line in "".join(cell["source"]).splitlines() if line[:1] not in "!%")
    elif file.endswith(".md"):
        aliases = "import hpcckpt as hc\nimport hpcckpt\n"  # a page imports once, and has many blocks
        for block in re.findall(r"^ *```python\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
            yield aliases + re.sub(r"^(>>> |\.\.\. )", "", block, flags=re.MULTILINE)
    else:
        yield text


def commands_in(file: str, text: str) -> Iterator[str]:
    """Yield the command lines of a file: those in code, and those that prose quotes."""
    if file.endswith(".ipynb"):
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    text = re.sub(r" *\\\n[ #]*", " ", text)
    for line in text.splitlines():
        quoted = PROSE.findall(line)
        for part in quoted or [line]:
            for match in COMMAND.finditer(part):
                yield from commands_of(match[0])


def commands_of(text: str) -> Iterator[str]:
    """Yield a command up to the end of it, and the commands that are among its arguments."""
    lexer = shlex.shlex(re.sub(r"\$\{\w+:-(\w+)\}", r"\1", text), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if word in END or word[0] in "#)>|;&<":
                break
            words.append(word)
    except ValueError:  # a quotation that ends on another line
        return
    words = [word for word in words if word not in SKIPPED and not re.match(r"\$\{.*@", word)]
    for at, word in enumerate(words):
        if word == "hpcckpt" or (word == "python" and words[at + 1 : at + 2] == ["-m"]):
            yield shlex.join(words[at:])


def public_texts(documented: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the names in ``__all__`` of the packages that documents name, and their docstrings."""
    package = importlib.import_module("hpcckpt")
    paths = [each.name for each in pkgutil.iter_modules(package.__path__, "hpcckpt.") if each.ispkg]
    tops = {".".join(name.split(".")[:2]) for name in documented}
    for path in ["hpcckpt", *(path for path in paths if path in tops)]:
        module = importlib.import_module(path)
        yield path, module.__doc__ or ""
        for name in getattr(module, "__all__", ()):
            found = getattr(module, name)
            methods = vars(found).values() if isinstance(found, type) else ()
            docstrings = [getattr(each, "__doc__", None) or "" for each in (found, *methods)]
            yield f"{path}.{name}", "\n".join([f"{path}.{name}", *docstrings])


def candidates(texts: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return all that may be a name or a command, and where it was found first."""
    names: dict[str, str] = {}
    commands: dict[str, str] = {}
    for file, text in texts.items():
        for block in code_blocks(file, text):
            names |= {name: file for name in names_in_code(block) if name not in names}
        for statement in IMPORT.findall(text):
            names |= {name: file for name in names_in_code(statement.strip()) if name not in names}
        names |= {name: file for name in NAME.findall(text) if name not in names}
        commands |= {command: file for command in commands_in(file, text) if command not in commands}
    return {"names": names, "commands": commands}


# -- whether it works ------------------------------------------------------------------------------


def load(name: str) -> Any:
    """Import as much of a dotted name as is a module, and return its attribute.

    Raises
    ------
    NotInstalledError
        If it needs another package.
    """
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        path = ".".join(parts[:n])
        try:
            found = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("hpcckpt"):
                raise NotInstalledError(f"{name} needs {error.name}") from error
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def parse(command: str) -> None:
    """Have the parser of a command parse it, without running it.

    Raises
    ------
    Exception
        If there is no such command or option.
    """
    import click

    from hpcckpt.cli.app import tool

    words = shlex.split(command)
    if words[0] == "hpcckpt" or words[2] in {"hpcckpt", "hpcckpt.train"}:
        args = words[1:] if words[0] == "hpcckpt" else words[3:]
        args = ["train", *args] if words[2:3] == ["hpcckpt.train"] and words[0] != "hpcckpt" else args
        with (
            mock.patch.object(click.Command, "invoke", return_value=None),
            mock.patch("sys.stdout", io.StringIO()),
            contextlib.suppress(click.MissingParameter, click.BadOptionUsage),  # a page names it without arguments
        ):
            click.Group.main(tool, args, "hpcckpt", standalone_mode=False)
    elif words[2] != "hpcckpt.jobs.binding":  # it has no options; its command is checked as one more
        parse_args = argparse.ArgumentParser.parse_args

        def stop(parser: argparse.ArgumentParser, *_: Any) -> None:
            parse_args(parser, words[3:])
            raise StopIteration

        with mock.patch.object(argparse.ArgumentParser, "parse_args", stop):
            try:
                runpy.run_module(words[2], run_name="__main__", alter_sys=True)
            except StopIteration:
                return
        raise ValueError("it has no parser")
    else:
        load(words[2])


def options() -> dict[str, list[str]]:
    """Return the options of every command of the command line, as its ``--help`` has them."""
    import click

    from hpcckpt.cli.app import tool

    found: dict[str, list[str]] = {}

    def visit(name: str, command: click.Command) -> None:
        words = [word for param in command.params if isinstance(param, click.Option) for word in param.opts]
        found[name] = sorted(words + [word for param in command.params for word in param.secondary_opts])
        context = click.Context(command)
        for verb in command.list_commands(context) if isinstance(command, click.Group) else ():
            below = command.get_command(context, verb)
            assert below is not None
            visit(f"{name} {verb}", below)

    visit("hpcckpt", tool)
    return found


def failures(wanted: dict[str, Any]) -> dict[str, str]:
    """Return what does not work, and why; what needs a package that is not installed is left out."""
    found: dict[str, str] = {}
    for kind, use in (("names", load), ("commands", parse)):
        for what in wanted[kind]:
            try:
                use(what)
            except NotInstalledError:
                continue
            except (Exception, SystemExit) as error:  # noqa: BLE001 - reported, all of them
                if isinstance(error, ModuleNotFoundError) and not (error.name or "hpcckpt").startswith("hpcckpt"):
                    continue
                found[what] = f"{type(error).__name__}: {error}"
    now = options()
    for command, words in wanted["options"].items():
        for gone in sorted(set(words.split()) - set(now.get(command, ()))):
            found[f"{command} {gone}"] = "there is no such option"
    return found


# -- the fixture -----------------------------------------------------------------------------------


def make(commits: Sequence[str]) -> dict[str, Any]:
    """Return the fixture of some commits: the names, commands and options that work in their own trees."""
    made: dict[str, Any] = {"commits": commits, "names": {}, "commands": {}, "options": {}}
    for commit in commits:
        archive = subprocess.run(["git", "archive", commit], check=True, capture_output=True).stdout
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(folder, filter="data")
            command = [sys.executable, __file__, "used", folder]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=folder)
        found = json.loads(done.stdout.splitlines()[-1])
        for kind in ("names", "commands"):
            made[kind] = {what: f"{file} {commit}" for what, file in found[kind].items()} | made[kind]
        for verb, words in found["options"].items():
            made["options"][verb] = " ".join(sorted({*made["options"].get(verb, "").split(), *words}))
    return made


def used(tree: Path) -> dict[str, Any]:
    """Return the names and commands that the documents of a tree use and that work in it; print the others."""
    files = {str(path.relative_to(tree)): path for path in sorted(tree.rglob("*")) if path.is_file()}
    texts = {file: path.read_text("utf-8") for file, path in files.items() if SOURCES.fullmatch(file)}
    texts |= {f"docstring of {name}": text for name, text in public_texts(candidates(texts)["names"])}
    found = candidates(texts)
    broken = failures({**found, "options": {}})
    for what, why in broken.items():
        print(f"left out, it does not work there either: {what}: {why}", file=sys.stderr)
    kept = {kind: {what: rows[what] for what in sorted(rows) if what not in broken} for kind, rows in found.items()}
    return kept | {"options": options()}


def main() -> int:
    """Make a fixture, or check one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("make", help="print the fixture of commits").add_argument("commit", nargs="+")
    verbs.add_parser("check", help="print what does not work").add_argument("fixture", type=Path)
    verbs.add_parser("used", help="print what the documents of a tree use").add_argument("tree", type=Path)
    args = parser.parse_args()
    if args.verb == "make":
        print(json.dumps(make(args.commit), indent=1, ensure_ascii=False, sort_keys=True))
        return 0
    if args.verb == "used":
        sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
        sys.path.insert(0, str(args.tree))
        print(json.dumps(used(args.tree)))
        return 0
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = failures(json.loads(args.fixture.read_text("utf-8")))
    print("".join(f"{what}: {why}\n" for what, why in found.items()), end="")
    texts = {str(each.message) for each in warned if issubclass(each.category, DeprecationWarning)}
    print("".join(f"warning: {text}\n" for text in sorted(texts) if text.startswith("hpcckpt")), end="")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
