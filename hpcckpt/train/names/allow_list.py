"""The allow-list: what a name in a configuration may refer to, unless the user allows more.

A configuration may come from an untrusted source, and must not run code that came with it, nor anything on this machine
that is not part of a training. So a name is looked up in lists, not imported by its path:

- ``tf.keras``: what `hpcckpt.train.names.keras_resolver` lists;
- ``tf.nn``, ``tf.math``: functions, passed and not called; of ``tf.data`` the readers;
- ``hpcckpt.train``: datasets, batch processors, models, losses, and train loops;
- what the program itself exported (`export_config`), by bare names;
- roots that the user who starts the training allows: they are trusted. An object must be defined below its root: not
  everything that a module imports is its own.

No name with a leading underscore is ever looked up.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

from hpcckpt.train.config_errors import ConfigProblem, RefusedError, TrainConfigError, did_you_mean, nearest, shown
from hpcckpt.train.names import keras_resolver, package_resolver
from hpcckpt.train.names.aliases import expanded
from hpcckpt.train.names.export_config import exported

KERAS_IN_TENSORFLOW = ("initializers", "losses", "metrics", "optimizers")
PUBLIC = re.compile(r"[^\W\d_]\w*")
OPEN_IT = "export a function of your own (hpcckpt.train.export_config), or start with --allow {} if you trust this file"
FAMILY = ("tensorflow", "keras", "tf_keras")
ROOTS = ("tf.keras", "hpcckpt.train")
HANDED_OVER = ("math", "nn")
_ALLOW_IT = "if a package of yours exports it (@export_config), start with --allow PACKAGE; else write its dotted path"
_EXPORT_IT = "export it in a package that is allowed (@export_config), or write its dotted path"
READERS = ("FixedLengthRecordDataset", "Options", "TFRecordDataset", "TextLineDataset")


def canonical(name: str) -> tuple[str, ...]:
    """Return the parts of a path without aliases: ``tf.losses.X`` is ``keras.losses.X``."""
    parts = expanded(name).split(".")
    if parts[:2] == ["tensorflow", "keras"]:
        parts = parts[1:]
    elif parts[0] == "tensorflow" and parts[1:2] and parts[1] in KERAS_IN_TENSORFLOW:
        parts[0] = "keras"
    return tuple(parts)


def public_names(thing: Any) -> list[str]:
    """Return the public names of an object."""
    return [name for name in dir(thing) if not name.startswith("_")]


class _Named(Protocol):
    """What a configuration names, with its arguments: a `hpcckpt.train.config.factories.Factory`."""

    @property
    def name(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...
    @property
    def is_called(self) -> bool: ...
    def place_of(self, argument: str) -> str: ...


class Catalogue:
    """The objects that a configuration may name.

    Parameters
    ----------
    allow : iterable of str
        Roots beside those that are always allowed: a package, a module, or one object in it, by dotted path. It is
        trusted, and imported now, so that what it exports is known.

    Raises
    ------
    TrainConfigError
        If one of them cannot be imported.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self.allow = tuple(dict.fromkeys(allow))
        self._trusted = {parts: _imported(parts) for parts in _roots(self.allow)}
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
        if "." not in name:  # exported objects may be exported again
            return self._bare(name)
        if key not in self._found:
            self._found[key] = self._look_up(name, is_called=is_called)
        return self._found[key]

    def target_of(self, factory: _Named) -> Any:
        """Return what a factory names. Independent.

        Raises
        ------
        TrainConfigError
            If it names nothing that is allowed, or gives it an argument that is not.
        """
        try:
            target = self.find(factory.name, is_called=factory.is_called)
        except RefusedError as error:
            raise TrainConfigError.of([ConfigProblem(factory.place, error.text, error.remedy)]) from None
        wrong = keras_resolver.argument_problem(target, factory.kwargs)
        if wrong is not None:
            argument, text, remedy = wrong
            raise TrainConfigError.of([ConfigProblem(factory.place_of(argument), text, remedy)])
        return target

    # -- what names mean ---------------------------------------------------------------------------

    def _bare(self, name: str) -> Any:
        found = exported().get(name)
        if found is not None:
            return found
        other = nearest(name, exported())
        if other is None and PUBLIC.fullmatch(name):
            other = keras_resolver.elsewhere(name) or package_resolver.elsewhere(name)
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
                return _walk(module, root, parts)
        if parts[0] == "keras" and len(parts) > 1:
            return keras_resolver.find(parts[1:], is_called=is_called)
        if parts[0] == "tensorflow" and len(parts) > 1:
            return _of_tensorflow(parts[1:], is_called=is_called)
        if parts[:2] == ("hpcckpt", "train") and len(parts) > 2:
            return package_resolver.find(parts[2:])
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


# -- trusted roots: objects below them are trusted if they are defined there ------------------------


def _roots(allow: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the parts of the roots' names, the longest first.

    Raises
    ------
    TrainConfigError
        If one is no name.
    """
    for name in allow:
        if not all(PUBLIC.fullmatch(part) for part in name.split(".")):
            raise TrainConfigError.of(
                [
                    ConfigProblem(
                        f"--allow {shown(name)}", "is no dotted path of public names", "give a package: --allow mine"
                    )
                ]
            )
    return sorted({canonical(name) for name in allow}, key=lambda parts: (-len(parts), parts))


def _imported(parts: tuple[str, ...]) -> Any:
    """Import the package of a trusted root, and the modules on the way to it: they may export; return the package.

    Raises
    ------
    TrainConfigError
        If it cannot be imported.
    """
    try:
        if parts[0] in FAMILY:
            return _top(parts[0])
        top = importlib.import_module(parts[0])
        for n in range(2, len(parts) + 1):
            if not _is_imported(".".join(parts[:n])):
                break
        return top
    except Exception as error:
        name = ".".join(parts)
        text = f"cannot be imported: {type(error).__name__}: {error}"
        remedy = "install it"
        if isinstance(error, ModuleNotFoundError) and error.name == parts[0]:
            text, remedy = "there is no such module", "install it, or put its directory into PYTHONPATH"
        raise TrainConfigError.of([ConfigProblem(f"--allow {name}", text, remedy)]) from error


def _is_imported(name: str) -> bool:
    """Import a module; return False if there is no module of this name, but perhaps an object."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return False
        raise
    return True


def _top(name: str) -> Any:
    return keras_resolver.keras() if name == "keras" else importlib.import_module(name)


def _walk(top: Any, root: Sequence[str], parts: Sequence[str]) -> Any:
    """Return the object below a trusted root, if it is defined in the same package.

    Raises
    ------
    RefusedError
        If there is nothing, or it is defined elsewhere.
    """
    thing, done = top, [parts[0]]
    for part in parts[1:]:
        thing = _step(thing, part, done)
        done.append(part)
    home = thing.__name__ if isinstance(thing, ModuleType) else str(getattr(thing, "__module__", None) or "")
    path = ".".join(parts)
    if not _is_same_package(home, root[0]):
        raise RefusedError(f"{path} is not defined there but in {home or 'nothing'}", OPEN_IT.format(home or path))
    if isinstance(thing, ModuleType) or not callable(thing):
        raise RefusedError(f"{path} is no class or function", "name something in it" + _some_of(thing))
    return thing


def _step(thing: Any, part: str, done: Sequence[str]) -> Any:
    path = ".".join(done)
    found = getattr(thing, part, None)
    if found is None and isinstance(thing, ModuleType) and hasattr(thing, "__path__"):
        found = _submodule(thing.__name__, part)
    if found is None:
        raise RefusedError(f"there is no {part!r} in {path}", did_you_mean(part, public_names(thing), "there are"))
    if isinstance(found, ModuleType) and not _is_same_package(found.__name__, done[0]):
        raise RefusedError(f"{path}.{part} is the module {found.__name__}", OPEN_IT.format(found.__name__))
    return found


def _submodule(package: str, name: str) -> Any:
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name == f"{package}.{name}":
            return None
        raise RefusedError(f"{package}.{name} cannot be imported: {error}", "install what it needs") from error
    except Exception as error:
        text = f"{package}.{name} cannot be imported: {type(error).__name__}: {error}"
        raise RefusedError(text, "correct it") from error


def _is_same_package(module: str, root: str) -> bool:
    top = module.split(".", maxsplit=1)[0]
    return top in FAMILY if root in FAMILY else top == root


def _some_of(thing: Any) -> str:
    names = (
        [n for n in public_names(thing) if callable(getattr(thing, n, None))] if isinstance(thing, ModuleType) else []
    )
    return f": {', '.join(names[:10])}" if names else ""
