"""Call the functions of a plugin's backend: from values of Python to the structs of the ABI, and errors back.

Python's lock is released during every call.  A plugin that did not say ``concurrent`` has one thread in it at a time.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcckpt.core.tensors import itemsize
from hpcckpt.errors import BackendError, ClosedError, CorruptError, HpcckptError, NoSpaceError
from hpcckpt.native import abi
from hpcckpt.native.handshake import BackendRecord


@dataclass(frozen=True, slots=True, eq=False)
class PluginTensor:
    """A tensor, or the part of one, as a plugin gets it.

    Attributes
    ----------
    name, dtype, kind : str
        Its name, dtype token, and how ranks share it.
    shape : tuple of int
        Shape of the box.
    address, nbytes : int
        Address and size of its bytes: the tensor's own memory.
    global_shape, offset : tuple of int, optional
        Shape of the whole tensor, and where the box begins in it; by default the box is the whole tensor.
    first_element, n_elements : int
        Which elements of the box, in C order; by default all.
    owner : object
        The object that keeps the memory alive.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int
    nbytes: int
    global_shape: tuple[int, ...] | None = None
    offset: tuple[int, ...] | None = None
    first_element: int = 0
    n_elements: int | None = None
    kind: str = "replicated"
    owner: object = None


@dataclass(frozen=True, slots=True)
class PluginContext:
    """The save or restore that a call belongs to; see ``hpcckpt_context``.

    Attributes
    ----------
    directory, save_id : str
        The directory of its files, and its identity; empty if there is none.
    step : int
        Its step; -1 if there is none.
    rank, n_ranks : int
        The rank whose entries the tensors are, and the number of ranks.
    """

    directory: str = ""
    save_id: str = ""
    step: int = -1
    rank: int = 0
    n_ranks: int = 1


@dataclass(frozen=True, slots=True)
class LoadedBackend:
    """A backend of a loaded plugin.

    Attributes
    ----------
    name, origin : str
        Its name, and the file it came from.
    features : frozenset of str
        Any of ``stores``, ``concurrent``, ``durable``, ``partial``.
    address : int
        Address of its ``hpcckpt_backend_table``, for native code that calls the backend; valid until the process ends.
    record : BackendRecord
        The table's content.
    """

    name: str
    origin: str
    features: frozenset[str]
    address: int
    record: BackendRecord

    @classmethod
    def of(cls, record: BackendRecord, origin: str) -> LoadedBackend:
        """Return the backend that a plugin's table describes."""
        features = frozenset(name for name, bit in abi.FEATURES.items() if record.features & bit)
        return cls(record.name, origin, features, record.address, record)

    def create(self, config: str = "") -> Instance:
        """Make an instance.

        Parameters
        ----------
        config : str
            Configuration, in the plugin's own format.

        Raises
        ------
        BackendError
            If the plugin cannot make one, with its error text.
        """
        return Instance(self, config)


class Instance:
    """An instance of a plugin's backend, until :meth:`close`; also a context manager.

    Parameters
    ----------
    backend : LoadedBackend
        The backend.
    config : str
        Configuration, in the plugin's own format.
    """

    def __init__(self, backend: LoadedBackend, config: str = "") -> None:
        self.backend = backend
        self.config = config
        self._gate = _Gate(is_wide="concurrent" in backend.features)
        made = ctypes.c_void_p()
        create = abi.Create(backend.record.create)
        text = _c_string("config", config)
        self._call("Create", lambda error: create(text, ctypes.byref(made), error, abi.ERROR_BYTES))
        if not made.value:
            raise BackendError(f"{backend.name}.Create returned success, and no instance ({backend.origin})")
        self.address: int = made.value
        """What ``save`` and ``load`` of the table take as their first argument."""
        self._finish = weakref.finalize(self, _destroy, abi.Destroy(backend.record.destroy), self.address, os.getpid())
        self._finish.atexit = False  # a call may still be in it; what the process held is gone with it anyway
        self._save, self._load = abi.Call(backend.record.save), abi.Call(backend.record.load)

    def save(self, context: PluginContext, tensors: Sequence[PluginTensor]) -> None:
        """Store tensors.

        Raises
        ------
        BackendError
            If the plugin reports an error, with its code and its text.
        NoSpaceError
            If the plugin reports that its storage is full.
        """
        self._run("Save", self._save, context, tensors)

    def load(self, context: PluginContext, tensors: Sequence[PluginTensor]) -> None:
        """Fill tensors with what was stored.

        Raises
        ------
        CorruptError
            If the plugin reports that what was stored is damaged or missing.
        BackendError
            If the plugin reports another error, with its code and its text.
        """
        self._run("Load", self._load, context, tensors)

    def close(self) -> None:
        """End the instance after calls in progress have returned; a second call does nothing."""
        self._gate.close()
        self._finish()

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self, verb: str, function: Callable[..., int], context: PluginContext, tensors: Sequence[PluginTensor]
    ) -> None:
        """Call one of the two functions; `tensors` is held, and with it the memory, until it has returned."""
        packed = _Packed(context, tensors)
        lock = self._gate.lock()
        try:
            with lock:
                self._gate.check(self.backend.name)
                self._call(
                    verb, lambda error: function(self.address, ctypes.byref(packed.context), error, abi.ERROR_BYTES)
                )
        finally:
            self._gate.forget(lock)

    def _call(self, verb: str, call: Callable[[ctypes.Array[ctypes.c_char]], int]) -> None:
        error = ctypes.create_string_buffer(abi.ERROR_BYTES + 1)  # the last byte stays zero, whatever a plugin writes
        code = call(error)
        if code:
            text = error.value.decode("utf-8", errors="backslashreplace").strip()
            kind: type[HpcckptError] = {abi.NO_SPACE: NoSpaceError, abi.DAMAGED: CorruptError}.get(code, BackendError)
            raise kind(f"{self.backend.name}.{verb} failed (code {code}): {text or 'it gave no reason'}")


def _destroy(destroy: Callable[[int], None], address: int, pid: int) -> None:
    """Have a plugin end an instance, in the process that made it: a forked child has a copy only."""
    if os.getpid() == pid:
        destroy(address)


class _Gate:
    """Lets one thread at a time into an instance, or any number, and none once it is closed.

    A thread inside holds a lock: the only one, or its own.  Only locks are used, held by ``with``: an exception from a
    signal handler (Ctrl-C) within a `threading.Condition`, or other code in Python, may leave it locked for ever.
    """

    def __init__(self, *, is_wide: bool) -> None:
        self._only = None if is_wide else threading.Lock()
        self._locks = set() if self._only is None else {self._only}
        self._is_closed = False

    def lock(self) -> threading.Lock:
        """Return the lock to hold inside."""
        if self._only is not None:
            return self._only
        own = threading.Lock()
        self._locks.add(own)
        return own

    def check(self, name: str) -> None:
        """Raise if the gate was closed before the caller got its lock."""
        if self._is_closed:
            raise ClosedError(f"this instance of plugin backend {name!r} is closed")

    def forget(self, lock: threading.Lock) -> None:
        """Remove a lock that is not held any more."""
        if self._only is None:
            self._locks.discard(lock)

    def close(self) -> None:
        """Admit no more threads, and wait for those inside."""
        self._is_closed = True
        for lock in tuple(self._locks):
            with lock:
                pass


class _Packed:
    """A context and its tensors as structs, together with all that they point to."""

    def __init__(self, context: PluginContext, tensors: Sequence[PluginTensor]) -> None:
        n_numbers = sum(3 * len(tensor.shape) for tensor in tensors)
        self._numbers = (ctypes.c_int64 * max(n_numbers, 1))()
        self._n_used = 0
        self._tensors = (abi.Tensor * max(len(tensors), 1))()
        self._pointers = (ctypes.c_void_p * max(len(tensors), 1))()
        first, stride = ctypes.addressof(self._tensors), ctypes.sizeof(abi.Tensor)
        for number, tensor in enumerate(tensors):
            self._pack(self._tensors[number], tensor)
            self._pointers[number] = first + number * stride
        self.context = abi.Context(
            struct_size=ctypes.sizeof(abi.Context),
            directory=_c_string("directory", context.directory),
            save_id=_c_string("save_id", context.save_id),
            step=context.step,
            rank=context.rank,
            n_ranks=context.n_ranks,
            n_tensors=len(tensors),
            tensors=ctypes.addressof(self._pointers),
        )

    def _pack(self, into: abi.Tensor, tensor: PluginTensor) -> None:
        shape = tensor.shape
        global_shape = shape if tensor.global_shape is None else tensor.global_shape
        offset = (0,) * len(shape) if tensor.offset is None else tensor.offset
        if not len(shape) == len(global_shape) == len(offset):
            raise ValueError(f"tensor {tensor.name!r}: {shape}, {global_shape} and {offset} differ in their axes")
        element_bytes = itemsize(tensor.dtype)
        into.struct_size = ctypes.sizeof(abi.Tensor)
        into.dtype = abi.DTYPES.get(tensor.dtype, 0)
        into.name = _c_string("name", tensor.name)
        into.dtype_name = tensor.dtype.encode()
        into.itemsize = element_bytes
        into.ndim = len(shape)
        into.kind = abi.KINDS[tensor.kind]
        into.global_shape = self._keep(global_shape)
        into.offset = self._keep(offset)
        into.shape = self._keep(shape)
        into.first_element = tensor.first_element
        into.n_elements = tensor.nbytes // max(element_bytes, 1) if tensor.n_elements is None else tensor.n_elements
        into.data = tensor.address if tensor.nbytes else None
        into.nbytes = tensor.nbytes

    def _keep(self, numbers: tuple[int, ...]) -> int:
        """Put numbers into the common list; return their address."""
        start = self._n_used
        self._numbers[start : start + len(numbers)] = list(numbers)
        self._n_used += len(numbers)
        return ctypes.addressof(self._numbers) + 8 * start


def _c_string(what: str, text: str) -> bytes:
    """Return text as C has it.

    Raises
    ------
    ValueError
        If it holds a zero, where C would see its end.
    """
    if "\0" in text:
        raise ValueError(f"{what}: {text!r} holds a zero character, which a C string cannot")
    return text.encode("utf-8", errors="surrogateescape")
