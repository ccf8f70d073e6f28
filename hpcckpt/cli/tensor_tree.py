"""The tensors of a checkpoint as a tree of their names, with the sum of each branch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcckpt.cli.text import count_text, shape_text
from hpcckpt.core.tensors import TensorSpec
from hpcckpt.core.units import nbytes_text

WIDTH = 80
MOST_LEVELS = 10
"""How many parts of a name are branches; the rest is one, so that there is room for what is beside it."""
_SIZE_WIDTH = len("1023.99 MiB")
_GAP = "  "


@dataclass(slots=True)
class Branch:
    """A part of the names: the tensor of this very name, if there is one, and what is below it."""

    name: str
    spec: TensorSpec | None = None
    branches: dict[str, Branch] = field(default_factory=dict)

    def specs(self) -> Iterator[TensorSpec]:
        """Yield all tensors of the branch."""
        if self.spec is not None:
            yield self.spec
        for branch in self.branches.values():
            yield from branch.specs()

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors of the branch."""
        return sum(spec.nbytes for spec in self.specs())

    @property
    def n_tensors(self) -> int:
        """How many tensors there are in the branch."""
        return sum(1 for _ in self.specs())


def tree_of(specs: Sequence[TensorSpec], name: str) -> Branch:
    """Return the tree of tensors whose names are divided by ``/``; `name` is that of the whole."""
    root = Branch(name)
    for spec in specs:
        branch = root
        for part in spec.name.split("/", MOST_LEVELS - 1):
            branch = branch.branches.setdefault(part, Branch(part))
        branch.spec = spec
    return root


def as_json(branch: Branch) -> dict[str, Any]:
    """Return a branch as JSON: its sums, its tensor if there is one of its name, and its branches."""
    found: dict[str, Any] = {"name": branch.name, "n_tensors": branch.n_tensors, "nbytes": branch.nbytes}
    if branch.spec is not None:
        found |= {key: getattr(branch.spec, key) for key in ("dtype", "shape", "kind")}
    if branch.branches:
        found["branches"] = [as_json(each) for each in branch.branches.values()]
    return found


def tree_lines(root: Branch) -> list[str]:
    """Return the lines of a tree, none of them wider than 80 columns."""
    rows = [(name, *_cells(branch)) for name, branch in _rows(root)]
    most = WIDTH - 2 * len(_GAP) - _SIZE_WIDTH
    kind_width = min(max(len(kind) for _, kind, _ in rows), most // 2)
    name_width = min(max(len(name) for name, _, _ in rows), most - kind_width)
    return [line for row in rows for line in _row_lines(*row, name_width, kind_width)]


def _rows(branch: Branch, before: str = "", below: str = "") -> Iterator[tuple[str, Branch]]:
    """Yield each branch and its name, after the lines that connect it; `below` is the start of the lines below it."""
    yield before + branch.name, branch
    for number, each in enumerate(branch.branches.values(), 1):
        is_last = number == len(branch.branches)
        yield from _rows(each, below + ("└── " if is_last else "├── "), below + ("    " if is_last else "│   "))


def _cells(branch: Branch) -> tuple[str, str]:
    """Return what a branch is, and its size."""
    if branch.spec is not None and not branch.branches:
        each = " per rank" if branch.spec.kind == "per-rank" else ""
        return f"{branch.spec.dtype} {shape_text(branch.spec.shape)}{each}", nbytes_text(branch.nbytes)
    return count_text(branch.n_tensors, "tensor"), nbytes_text(branch.nbytes)


def _row_lines(name: str, kind: str, size: str, name_width: int, kind_width: int) -> Iterator[str]:
    """Yield the line of a row; a name or a shape that is too long has separate lines before it."""
    while len(name) > WIDTH:
        yield name[:WIDTH]
        name = _continued(name, WIDTH)
    if len(name) > name_width:
        yield name
        name = ""
    while len(kind) > kind_width:
        cut = kind.rfind(" ", 0, kind_width) + 1 or kind_width
        yield f"{name.ljust(name_width)}{_GAP}{kind[:cut]}".rstrip()
        name, kind = "", kind[cut:]
    yield f"{name.ljust(name_width)}{_GAP}{kind.ljust(kind_width)}{_GAP}{size.rjust(_SIZE_WIDTH)}"


def _continued(name: str, cut: int) -> str:
    """Return the rest of a name that is continued on another line, as far to the right as it began."""
    indent = len(name) - len(name.lstrip("│├└─ "))
    return " " * min(indent, WIDTH // 2) + name[cut:]
