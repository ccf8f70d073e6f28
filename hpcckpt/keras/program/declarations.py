"""Declarations that a callback, function or variable keeps nothing between calls that training depends on."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")
_MARK = "_hpcckpt_is_stateless"


def stateless(thing: T) -> T:
    """Declare that a callback's class, a callback, a function or a variable has no state. Independent.

    A callback of the program without ``state_dict``, and Python code in the training step (``tf.py_function``,
    ``tf.numpy_function``), may have state that is not saved, such as counters or random numbers. A run with them is not
    called ``exact`` unless they are declared stateless. The declaration promises that nothing they keep changes the
    training. Examples are a callback that prints, or that computes a value from the epoch, and a variable that is set
    before each use.

    Parameters
    ----------
    thing : type, callback, callable or tf.Variable
        What has no state. Subclasses of a class are not included.

    Returns
    -------
    type, callback, callable or tf.Variable
        The argument itself, so that this can be used as a decorator.
    """
    setattr(thing, _MARK, True)
    return thing


def is_stateless(thing: Any) -> bool:
    """Return True if an object, its own class or its function was declared to have no state. Independent."""
    owners = (thing, type(thing), getattr(thing, "__func__", None))
    return any(bool(getattr(owner, "__dict__", {}).get(_MARK)) for owner in owners)
