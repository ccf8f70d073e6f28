"""What docstrings promise exists: the exceptions they name, and a docstring for every public name."""

from __future__ import annotations

import ast
import builtins
import functools
import re
from pathlib import Path

import hpcckpt
from hpcckpt import errors

PACKAGE = Path(hpcckpt.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
PUBLIC = [path for path in MODULES if not path.name.startswith("_") or path.name == "__init__.py"]
_RAISES = re.compile(
    r"^\s*Raises\n\s*-{3,}\n(?P<body>.*?)(?=^\s*[A-Z]\w+(?: \w+)?\n\s*-{3,}\n|\Z)", re.MULTILINE | re.DOTALL
)


def documented(path: Path):
    """Yield every docstring of a module with the name it belongs to."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "name", path.stem), ast.get_docstring(node) or ""


def exceptions_named(docstring: str) -> list[str]:
    """Return the names in a docstring's "Raises" section."""
    found = _RAISES.search(docstring + "\n")
    if found is None:
        return []
    lines = [line for line in found["body"].splitlines() if line and not line.startswith(" ")]
    return [name.strip() for line in lines for name in line.split(",")]


@functools.cache
def classes_of_ours():
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in MODULES)
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def unknown_exceptions(path: Path) -> list[str]:
    """Return the names of exceptions in the docstrings of a module that are no exceptions."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    own = set(classes_of_ours())
    own |= {alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    own |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}  # click.UsageError
    return [
        f"{path.relative_to(PACKAGE)}: {name}: {exception}"
        for name, text in documented(path)
        for exception in exceptions_named(text)
        if not (hasattr(errors, exception) or hasattr(builtins, exception) or exception.rpartition(".")[2] in own)
    ]


def test_every_exception_a_docstring_names_exists():
    assert [each for path in MODULES for each in unknown_exceptions(path)] == []


def test_raises_sections_are_found():
    assert exceptions_named(errors.__doc__) == []
    names = exceptions_named(hpcckpt.Checkpointer.__doc__.replace("\n    ", "\n"))
    backend = ["BackendNotFoundError", "BackendConflictError", "BackendError"]
    assert names == ["OptionError", "ForkedError", "MpiError", *backend]


def is_public(node: ast.AST) -> bool:
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        return False
    is_typing = any(isinstance(decorator, ast.Name) and decorator.id == "overload" for decorator in node.decorator_list)
    return not is_typing and not node.name.startswith(("_", "test_"))  # tests to inherit say all in their names


def undocumented(path: Path) -> list[str]:
    """Return the public names of a module that have no docstring, and the module itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in tree.body if is_public(node)]
    nodes += [method for node in nodes if isinstance(node, ast.ClassDef) for method in node.body if is_public(method)]
    bare = [node.name for node in nodes if not ast.get_docstring(node)]
    bare += [] if ast.get_docstring(tree) or not tree.body else ["the module"]
    return [f"{path.relative_to(PACKAGE)}: {name}" for name in bare]


def test_every_public_name_is_documented():
    assert [each for path in PUBLIC for each in undocumented(path)] == []


COMMUNICATING = {
    "checkpointer/checkpointer.py",
    "restoring/restore.py",
    "saving/outcome.py",
    "saving/save.py",
    "saving/write.py",
}


def without_effect(name: str) -> list[str]:
    """Return the public methods of a module whose docstring does not say who calls them."""
    tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    functions = [f for c in classes for f in c.body if isinstance(f, ast.FunctionDef) and not f.name.startswith("_")]
    silent = []
    for function in functions:
        is_property = any(getattr(d, "id", "") == "property" for d in function.decorator_list)
        first = (ast.get_docstring(function) or "").splitlines()[0]
        if not is_property and not re.search(r"(Collective|Independent|Root only)[^.]*\.$", first):
            silent.append(f"{name}: {function.name}")
    return silent


def test_every_function_that_takes_a_communicator_says_who_calls_it():
    assert [each for name in sorted(COMMUNICATING) for each in without_effect(name)] == []
