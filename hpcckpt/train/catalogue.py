"""What a name in a configuration may mean: the allow-list. It is on unless somebody opens more.

A configuration may come from anybody, and must not run code that came with it, nor anything on this machine that is no
part of a training.  So a name is looked up in lists, not walked to:

- ``tf.keras``: what `hpcckpt.train.keras_open` lists;
- ``tf.nn``, ``tf.math``: functions, handed over and not called; of ``tf.data`` the readers;
- ``hpcckpt.train``: datasets, models, losses, and train loops;
- what the program itself exported (`export_config`), by bare names;
- roots that whoever starts the training allows: they are trusted.  What stands there must be defined there too: not
  everything that a module imports is its own.

No name with a leading underscore is ever looked up.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hpcckpt.train import keras_names, our_names, trusted
from hpcckpt.train.aliases import OPEN_IT, PUBLIC, canonical, public_names
from hpcckpt.train.exporting import exported
from hpcckpt.train.problems import ConfigError, Problem, did_you_mean, nearest, shown
from hpcckpt.train.refusing import RefusedError

if TYPE_CHECKING:
    from hpcckpt.train.factories import Factory

ROOTS = ("tf.keras", "hpcckpt.train")
HANDED_OVER = ("math", "nn")
_ALLOW_IT = "if a package of yours exports it (@export_config), start with --allow PACKAGE; else write its dotted path"
_EXPORT_IT = "export it in a package that is allowed (@export_config), or write its dotted path"
READERS = ("FixedLengthRecordDataset", "Options", "TFRecordDataset", "TextLineDataset")


class Catalogue:
    """The things that a configuration may name.

    Parameters
    ----------
    allow : iterable of str
        Roots beside those that are always allowed: a package, a module, or one thing in it, by dotted path. What stands
        there is trusted, and imported now, so that what it exports is known.

    Raises
    ------
    ConfigError
        If one of them cannot be imported.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self.allow = tuple(dict.fromkeys(allow))
        self._trusted = {parts: trusted.imported(parts) for parts in trusted.roots(self.allow)}
        self._found: dict[tuple[str, bool], Any] = {}

    def find(self, name: str, *, is_called: bool = True) -> Any:
        """Return the class or function of a name. Independent.

        Parameters
        ----------
        name : str
            A dotted path, or the bare name of something exported.
        is_called : bool
            Whether it will be called by what the configuration says, or only be handed over.

        Raises
        ------
        RefusedError
            If there is none, or it is not allowed.
        """
        key = (name, is_called)
        if "." not in name:  # what is exported may be exported anew
            return self._bare(name)
        if key not in self._found:
            self._found[key] = self._look_up(name, is_called=is_called)
        return self._found[key]

    def target_of(self, factory: Factory) -> Any:
        """Return what a factory names. Independent.

        Raises
        ------
        ConfigError
            If it names nothing that is allowed, or gives it an argument that is not.
        """
        try:
            target = self.find(factory.name, is_called=factory.is_called)
        except RefusedError as error:
            raise ConfigError.of([Problem(factory.place, error.text, error.remedy)]) from None
        wrong = keras_names.argument_problem(target, factory.kwargs)
        if wrong is not None:
            argument, text, remedy = wrong
            raise ConfigError.of([Problem(factory.place_of(argument), text, remedy)])
        return target

    # -- what names mean ---------------------------------------------------------------------------

    def _bare(self, name: str) -> Any:
        found = exported().get(name)
        if found is not None:
            return found
        other = nearest(name, exported())
        if other is None and PUBLIC.fullmatch(name):
            other = keras_names.elsewhere(name) or our_names.elsewhere(name)
        remedy = f"did you mean {other!r}?" if other else _EXPORT_IT if self.allow else _ALLOW_IT
        raise RefusedError(f"nothing of the name {shown(name)!r} is exported", remedy)

    def _look_up(self, name: str, *, is_called: bool) -> Any:
        for part in name.split("."):
            if not PUBLIC.fullmatch(part):
                text = f"{shown(part)!r} is no public name" if part else f"{shown(name)!r} has an empty part"
                raise RefusedError(text, "a dotted path is made of public names: tf.keras.layers.Dense")
        parts = canonical(name)
        for root, module in self._trusted.items():
            if parts[: len(root)] == root:
                return trusted.walk(module, root, parts)
        if parts[0] == "keras" and len(parts) > 1:
            return keras_names.find(parts[1:], is_called=is_called)
        if parts[0] == "tensorflow" and len(parts) > 1:
            return _of_tensorflow(parts[1:], is_called=is_called)
        if parts[:2] == ("hpcckpt", "train") and len(parts) > 2:
            return our_names.find(parts[2:])
        raise _unknown_root(name, self.allow)


def _of_tensorflow(parts: Sequence[str], *, is_called: bool) -> Any:
    """Return a function of TensorFlow's that only computes, to be handed over, or a reader of ``tf.data``."""
    import tensorflow as tf

    path = ".".join(["tf", *parts])
    home = getattr(tf, parts[0], None)
    if parts[0] not in (*HANDED_OVER, "data"):
        known = ("keras", "data", *HANDED_OVER)
        if home is None:
            raise RefusedError(f"there is no {parts[0]!r} in tf", did_you_mean(parts[0], known, "open there are"))
        raise RefusedError(f"{path} is not open to configurations: it is no part of a model", OPEN_IT.format(path))
    if len(parts) != 2:
        raise RefusedError(f"{path} is not open to configurations", f"name something in tf.{parts[0]} itself")
    name = parts[1]
    thing = getattr(home, name, None)
    if thing is None:
        raise RefusedError(
            f"there is no {name!r} in tf.{parts[0]}", did_you_mean(name, public_names(home), "there are")
        )
    is_own = str(getattr(thing, "__module__", "")).split(".")[0] == "tensorflow"
    if parts[0] == "data" and name in READERS and is_own:
        return thing
    if parts[0] in HANDED_OVER and inspect.isroutine(thing) and is_own:
        if is_called:
            raise RefusedError(f"{path} is a function that is called with data", f'hand it over: {{"@": "{path}"}}')
        return thing
    raise RefusedError(f"{path} is not open to configurations", OPEN_IT.format(path))


def _unknown_root(name: str, allow: Sequence[str]) -> RefusedError:
    head = name.partition(".")[0]
    known = ("tf", "keras", "ktf", "hpcckpt", "tensorflow")
    if head in known:
        return RefusedError(f"{name} is not open to configurations", f"open there are {' and '.join(ROOTS)}")
    other = nearest(head, known)
    if other is not None:
        return RefusedError(f"{head!r} is no root that configurations may name", f"did you mean {other!r}?")
    roots = ", ".join([*ROOTS, *allow])
    text = f"{head!r} is no root that configurations may name; these are {roots}"
    is_pythons = head in sys.stdlib_module_names
    return RefusedError(text, "export a function of your own: @export_config" if is_pythons else OPEN_IT.format(head))
