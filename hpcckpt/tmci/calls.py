"""Calls of plugins by TensorFlow ops, which hand them the variables' own memory.

The same ops run at once, as part of a ``tf.function``, or in a Session.  A variable that is not in the host's memory is
handed over as a value, which TensorFlow copies there, or back.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hpcckpt.collective.communicator import launched_rank, launched_size
from hpcckpt.errors import BackendError, CorruptError, HpcckptError, NoSpaceError, StateError
from hpcckpt.native import abi, tf_ops
from hpcckpt.plugins import Instance, LoadedBackend
from hpcckpt.tmci.variables import Named

MAX_OPEN = 8
"""How many instances stay open that no graph refers to: the last ones used."""

_KINDS: dict[int, type[HpcckptError]] = {abi.NO_SPACE: NoSpaceError, abi.DAMAGED: CorruptError}
_DECORATION = re.compile(r"^\{\{[^}]*\}\} *| *\[Op:\w+\].*$")  # what TensorFlow puts around our own text
_lock = threading.RLock()
_open: OrderedDict[tuple[str, str], OpenPlugin] = OrderedDict()


def _become_child() -> None:
    """Make a new lock in a forked child: no thread there would release one that was held."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_become_child)


class OpenPlugin:
    """An instance of a plugin that the ops may call, until :meth:`close`.

    Parameters
    ----------
    backend : LoadedBackend
        What to make one of.
    config : str
        In the plugin's own form.

    Raises
    ------
    BackendError
        If the plugin cannot make one, with what it says; or the ops are not built, with what to do.
    """

    def __init__(self, backend: LoadedBackend, config: str) -> None:
        self.ops = tf_ops.load_ops()
        self.is_in_graph = False
        self._instance = _created(backend, config)
        self.token = self.ops.module.open(backend.address, self._instance.address)

    def close(self) -> None:
        """End the instance, after its last call."""
        self.ops.module.close(self.token)
        self._instance.close()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise a failed call's error as an `HpcckptError`."""
        import tensorflow as tf

        try:
            yield
        except tf.errors.OpError as error:
            code, text = self.ops.module.take_failure(self.token)
            if text and text in error.message:
                raise _KINDS.get(code, BackendError)(text) from None
            own = _DECORATION.sub("", error.message)
            is_state = isinstance(error, tf.errors.FailedPreconditionError | tf.errors.InvalidArgumentError)
            raise (StateError if is_state else BackendError)(own) from None


def opened(backend: LoadedBackend, config: str) -> OpenPlugin:
    """Return the instance of a plugin with this configuration, made if there is none yet. Independent."""
    key = (backend.name, config)
    with _lock:
        if key not in _open:
            _open[key] = OpenPlugin(backend, config)
            _close_at_exit()
        _open.move_to_end(key)
        idle = [old for old, plugin in _open.items() if not plugin.is_in_graph]
        for old in idle[:-MAX_OPEN]:
            _open.pop(old).close()
        return _open[key]


def _created(backend: LoadedBackend, config: str) -> Instance:
    try:
        return backend.create(config)
    except HpcckptError as error:
        raise type(error)(_with_rank(str(error))) from None


def _with_rank(text: str) -> str:
    """Say which rank it was, if there are several; the ops do so themselves."""
    return f"[rank {launched_rank()}] {text}" if (launched_size() or 1) > 1 else text


def close_all() -> None:
    """End all instances, so that their destructors run; graphs that refer to them fail from then on."""
    with _lock:
        while _open:
            _open.popitem()[1].close()


def _close_all_of(pid: int) -> None:
    if os.getpid() == pid:  # a forked child has copies of its parent's instances
        close_all()


@functools.cache
def _close_at_exit() -> None:
    """Have all instances ended with the program: called once there is one, for what it needs to end is gone later."""
    atexit.register(_close_all_of, os.getpid())


# -- the calls -------------------------------------------------------------------------------------


class _Split(NamedTuple):
    """Variables, as the ops take them: those whose memory is handed over, the others, and which is where."""

    resources: list[Any]
    others: list[Any]
    slots: list[int]


def save(plugin: OpenPlugin, variables: Sequence[Named]) -> Any:
    """Have a plugin save variables. Independent.

    Returns
    -------
    tf.Operation or None
        The op, in a graph that a Session runs; in a ``tf.function`` it is part of the function.

    Raises
    ------
    BackendError, NoSpaceError
        If the plugin fails, with its code and its text; in a graph that is a ``tf.errors.InternalError`` of its run.
    StateError
        If a variable has no value yet, or a dtype that no plugin can be given.
    """
    import tensorflow as tf

    split = _split(variables)
    values = [_ref(other) if _is_ref(other) else other.read_value() for other in split.others]
    with plugin.errors(), tf.device("CPU:0"):
        done = plugin.ops.raw.hpcckpt_plugin_save(
            variables=_handles(split), values=values, **_attributes(plugin, variables, split)
        )
    return done if _is_for_session() else None


def load(plugin: OpenPlugin, variables: Sequence[Named]) -> Any:
    """Have a plugin fill variables. Independent.

    Returns
    -------
    tf.Operation or None
        What does it, in a graph that a Session runs; in a ``tf.function`` it is part of the function.

    Raises
    ------
    BackendError, CorruptError
        If the plugin fails, with its code and its text; the values of the variables are undefined then.
    StateError
        If a variable has no value yet, or a dtype that no plugin can be given.
    """
    import tensorflow as tf

    split = _split(variables)
    attributes = _attributes(plugin, variables, split)
    with plugin.errors(), tf.device("CPU:0"):
        if any(map(_is_ref, split.others)):
            refs = [_ref(other) for other in split.others]
            return plugin.ops.raw.hpcckpt_plugin_load_refs(variables=_handles(split), refs=refs, **attributes)
        done = plugin.ops.raw.hpcckpt_plugin_load(
            variables=_handles(split),
            T=[other.dtype for other in split.others],
            shapes=[other.shape for other in split.others],
            **attributes,
        )
    if split.others:
        done = [other.assign(value) for other, value in zip(split.others, done, strict=True)]
    return tf.group(done) if _is_for_session() else None


def _is_for_session() -> bool:
    """Return True while a graph is built that is not a function's."""
    import tensorflow as tf

    return not (tf.executing_eagerly() or tf.inside_function())


def _split(variables: Sequence[Named]) -> _Split:
    split = _Split([], [], [])
    for _, variable, _ in variables:
        if _is_on_host(variable) and not _is_ref(variable):
            split.slots.append(len(split.resources))
            split.resources.append(variable)
        else:
            split.slots.append(-1 - len(split.others))
            split.others.append(variable)
    return split


def _handles(split: _Split) -> list[Any]:
    return [variable.handle for variable in split.resources]


def _attributes(plugin: OpenPlugin, variables: Sequence[Named], split: _Split) -> dict[str, Any]:
    import tensorflow as tf

    if not tf.executing_eagerly():
        plugin.is_in_graph = True
    return {
        "plugin": plugin.token,
        "names": [name for name, _, _ in variables],
        "slots": split.slots,
        "rank": launched_rank() or 0,
        "n_ranks": launched_size() or 1,
    }


def _is_ref(variable: Any) -> bool:
    """Return True for a variable of TensorFlow 1: not a resource but a reference to its buffer."""
    return not hasattr(variable, "handle")


def _ref(variable: Any) -> Any:
    return variable.op.outputs[0]


def _is_on_host(variable: Any) -> bool:
    """Return True if a variable is in the host's memory; in a graph it may not be placed yet."""
    import tensorflow as tf

    device = variable.device
    return "CPU" in device if device else not tf.config.list_physical_devices("GPU")
