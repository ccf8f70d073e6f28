"""Declarations that a callback, function or variable keeps nothing between calls that training depends on."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")
_MARK = "_hpcckpt_is_stateless"


def stateless(thing: T) -> T:
    """Declare that a callback's class, a callback, a function or a variable has no state. Independent.

    Without such a declaration a run with a callback of the program that has no ``state_dict``, or with Python in its
    training step (``tf.py_function``, ``tf.numpy_function``), is not called ``exact``: what such code counts or draws
    is not saved.  The declaration promises that nothing it keeps changes the training: a callback that
    prints, or that computes a value from the epoch; a variable that is set before each use.

    Parameters
    ----------
    thing : type, callback, callable or tf.Variable
        What has no state. Subclasses of a class are not included.

    Returns
    -------
    type, callback, callable or tf.Variable
        The same, so that this can be used as a decorator.
    """
    setattr(thing, _MARK, True)
    return thing


def is_stateless(thing: Any) -> bool:
    """Return True if an object, its own class or its function was declared to have no state. Independent."""
    owners = (thing, type(thing), getattr(thing, "__func__", None))
    return any(bool(getattr(owner, "__dict__", {}).get(_MARK)) for owner in owners)
