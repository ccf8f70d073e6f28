"""One walk over a state: the leaves that it has found, and what cannot be saved.

`hpcckpt.state.tree` begins a walk and has the visitors, one for each class of values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcckpt.core.tensors import name_problem
from hpcckpt.errors import Problem, ShardingError, StateError
from hpcckpt.format.manifest import shape_problem
from hpcckpt.state.leaves import DynamicPart, Finish, Leaf, ObjectLeaf, TensorLeaf


class TooDeepError(Exception):
    """Ends a walk: to continue beside a value that holds itself twice would take for ever."""


@dataclass(slots=True, eq=False)
class Walk:
    """What one walk over a state has found, and what of it cannot be saved.

    With `is_free` objects take whatever keys their ``state_dict`` has in the checkpoint.
    """

    visitors: Mapping[type[Any], Visitor]
    is_free: bool = False
    tensors: dict[str, TensorLeaf] = field(default_factory=dict)
    objects: dict[str, ObjectLeaf] = field(default_factory=dict)
    finishes: list[Finish | DynamicPart] = field(default_factory=list)
    lists: dict[str, ObjectLeaf] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _owners: dict[int, tuple[Any, list[str]]] = field(default_factory=dict)
    _state_dicts: dict[int, Any] = field(default_factory=dict)

    def visit(self, value: Any, name: str, container: Any, key: Any) -> None:
        """Take in the leaves of one value, which is in ``container[key]``."""
        try:
            self.visitors[value.__class__](self, value, name, container, key)
        except (StateError, ShardingError) as error:
            is_named = str(error).startswith((f"{name}:", f"{name}/"))
            self.problems.append(Problem("" if is_named else name, str(error)))
        except RecursionError:
            raise TooDeepError(name) from None

    def enter(self, owner: Any, name: str) -> None:
        """Note what restored values are put into: of one that has two names, only one value each can be restored."""
        self._owners.setdefault(id(owner), (owner, []))[1].append(name)

    @property
    def repeated(self) -> tuple[tuple[str, ...], ...]:
        """The names of each owner that has several."""
        return tuple(tuple(names) for _, names in self._owners.values() if len(names) > 1)

    def state_dict_of(self, owner: Any) -> Any:
        """Return what ``state_dict`` returned; the same for each name of one object, which may change with time."""
        if id(owner) not in self._state_dicts:
            self._state_dicts[id(owner)] = owner.state_dict()
        return self._state_dicts[id(owner)]

    def add(self, leaf: Leaf) -> None:
        """Take in a leaf, or add the problem with its name."""
        if isinstance(leaf, TensorLeaf):
            self.add_tensor(leaf)
        elif isinstance(leaf, ObjectLeaf):
            if self._may_be_called(leaf.name):
                self.objects[leaf.name] = leaf
        else:
            self.finishes.append(leaf)

    def add_tensor(self, leaf: TensorLeaf) -> None:
        """Take in the leaf of a tensor, or add the problem with its name or shape."""
        spec = leaf.declaration.spec
        problem = _shape_problem(spec.dtype, spec.shape)
        if problem is not None:
            self.problems.append(Problem(repr(spec.name), problem))
        elif self._may_be_called(spec.name, leaf.source):
            self.tensors[spec.name] = leaf

    def _may_be_called(self, name: str, source: Any = None) -> bool:
        problem = name_problem(name)
        if problem is None and (name in self.tensors or name in self.objects):
            problem = "appears twice"
            if source is not None and name in self.tensors and self.tensors[name].source is source:
                problem += ", for one variable: give only one of both (a model includes its optimizer)"
        if problem is not None:
            self.problems.append(Problem(repr(name), problem))
        return problem is None


@functools.lru_cache(maxsize=1 << 16)  # a state has the same shapes at every save
def _shape_problem(dtype: str, shape: tuple[int, ...]) -> str | None:
    """Return what readers of a checkpoint would refuse of a tensor, or None. Pure."""
    return shape_problem(dtype, list(shape))


Visitor = Callable[[Walk, Any, str, Any, Any], None]
"""Takes in a value: walk, value, its name, the container that it is in, and its key there."""
