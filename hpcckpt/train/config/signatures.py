"""The parameters of a class or a function, found without calling it, and problems with its arguments.

A constructor that passes ``**kwargs`` on accepts the parameters of its base classes. If their list is open, an unknown
name is reported only if it resembles a known one, and only Keras or hpcckpt could accept it; all else is left to the
constructor.
"""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any

from hpcckpt.train.config.argument_types import type_problems
from hpcckpt.train.config_errors import ConfigProblem, did_you_mean, inside, shown
from hpcckpt.train.names.keras_resolver import HOMES

_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_PASSED_ON = (  # what Keras' own base classes take by **kwargs, old names too
    "activity_regularizer", "autocast", "batch_input_shape", "batch_size", "clipnorm", "clipvalue", "decay", "dtype",
    "dynamic", "enable_caching_device", "global_clipnorm", "implementation", "input_dim", "input_length",
    "input_shape", "name", "trainable", "vocabulary_size", "weights", "zero_output_for_mask",
)  # fmt: skip
_OURS = "hpcckpt"


@dataclass(frozen=True, slots=True)
class Takes:
    """What something takes.

    Attributes
    ----------
    parameters : mapping
        By name.
    required : tuple of str
        Without a default.
    is_open : bool
        Whether it may take others too.
    unnamed : tuple of str
        Required, and not to be given by name.
    """

    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    is_open: bool = True
    unnamed: tuple[str, ...] = ()


def takes(target: Any) -> Takes:
    """Return what a class or a function takes; all is open if it cannot be known."""
    chain = list(_chain(target))
    if not chain:
        return Takes()
    first = chain[0][1]
    own = [p for p in first.parameters.values() if p.kind in _NAMED]
    unnamed = [p for p in first.parameters.values() if p.kind is Parameter.POSITIONAL_ONLY]
    parameters, is_open = _united(chain)
    is_open = is_open or (_has_more(first) and _home(target) != _OURS)
    return Takes(
        parameters,
        tuple(p.name for p in own if p.default is Parameter.empty),
        is_open,
        tuple(p.name for p in unnamed if p.default is Parameter.empty),
    )


def _united(chain: typing.Sequence[tuple[Any, inspect.Signature]]) -> tuple[dict[str, Parameter], bool]:
    """Return what a chain of constructors takes that hand ``**kwargs`` on, and whether its end is open."""
    parameters: dict[str, Parameter] = {}
    for maker, signature in chain:
        parameters = {p.name: p for p in signature.parameters.values() if p.kind in _NAMED} | parameters
        if not _has_more(signature):
            return parameters, False
        if _home(maker) in HOMES and _home(chain[0][0]) not in HOMES:
            return {name: Parameter(name, Parameter.KEYWORD_ONLY) for name in _PASSED_ON} | parameters, True
    return parameters, True


def call_problems(target: Any, name: str, kwargs: Mapping[str, Any], place: str) -> Iterator[ConfigProblem]:
    """Yield what is wrong with the arguments of a call that a configuration asks for.

    Parameters
    ----------
    target : class or function
        What would be called.
    name : str
        What it is called in the configuration.
    kwargs : mapping
        The arguments.
    place : str
        Its place.
    """
    taken = takes(target)
    short = name.rpartition(".")[2]
    for argument in kwargs:
        if argument not in taken.parameters:
            remedy = _remedy(argument, taken, target)
            if remedy:
                yield ConfigProblem(inside(place, argument), f"{shown(short)} takes no such argument", remedy)
    missing = [each for each in taken.required if each not in kwargs]
    if missing:
        yield ConfigProblem(
            place, f"{shown(short)} needs {_listed(missing)}", f'write "{missing[0]}": … among its arguments'
        )
    if taken.unnamed:
        text = f"{shown(short)} takes {_listed(taken.unnamed)} by position only"
        yield ConfigProblem(
            place, text, "wrap it into a function of your own whose arguments have names, and export that"
        )
    yield from type_problems(target, kwargs, place)


def as_expected(target: Any, argument: str, value: Any) -> Any:
    """Return a list as a tuple where that is what is meant: a shape, or an argument whose default is a tuple."""
    if not isinstance(value, list):
        return value
    parameter = takes(target).parameters.get(argument)
    is_tuple = parameter is not None and isinstance(parameter.default, tuple)
    is_shape = argument.endswith("shape") and all(each is None or type(each) is int for each in value)
    return tuple(value) if is_tuple or is_shape else value


def _remedy(argument: str, taken: Takes, target: Any) -> str:
    """Return what to write in place of an argument that is not known; "" if it may be right all the same."""
    known = [each for each in taken.parameters if not each.startswith("_")]
    if argument == "lr" and "learning_rate" in known and ".legacy." not in f"{target.__module__}.":
        return "write 'learning_rate'"  # optimizers of Keras 2.15 drop it, and train at their default
    if not taken.is_open:
        return did_you_mean(argument, known, "it takes") if known else "it takes none"
    if argument in _PASSED_ON or _home(target) not in (*HOMES, _OURS):
        return ""
    found = difflib.get_close_matches(argument, known, n=1, cutoff=0.75)
    return f"did you mean {found[0]!r}?" if found else ""


def _home(target: Any) -> str:
    return str(getattr(target, "__module__", "")).split(".")[0]


def _chain(target: Any) -> Iterator[tuple[Any, inspect.Signature]]:
    """Yield what a function takes, or the constructors of a class and those above it, without ``self``."""
    if not inspect.isclass(target):
        found = _signature(target)
        if found is not None:
            yield target, found
        return
    for each in target.__mro__:
        made_by = each.__dict__.get("__init__")
        if made_by is None or each is object:
            continue
        if each.__module__.split(".")[0] == "tensorflow":
            return  # Keras' base classes hand nothing on to them
        found = _signature(made_by)
        if found is None:
            return
        yield each, found.replace(parameters=[*found.parameters.values()][1:])


def _signature(thing: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(thing)
    except (TypeError, ValueError):
        return None


def _has_more(signature: inspect.Signature) -> bool:
    return any(p.kind is Parameter.VAR_KEYWORD for p in signature.parameters.values())


def _listed(names: typing.Sequence[str]) -> str:
    return " and ".join(repr(name) for name in names)
