"""A plugin made of Python functions: it remembers what it is called with, keeps what it is given, and fails as told.

Its table has the layout of ``plugin.h``, so the ops and the ctypes side call it like any other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hpcckpt.native import abi
from hpcckpt.native.handshake import BackendRecord
from hpcckpt.native.instances import LoadedBackend


class Seen(NamedTuple):
    """One tensor, as the plugin saw it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int
    nbytes: int


class Spy:
    """A plugin; `fails` is a code and a text that its functions answer with, also the first one if it `is_broken`."""

    def __init__(self, name: str, features: int = 0) -> None:
        self.name = name
        self.fails: tuple[int, bytes] | None = None
        self.is_broken = False
        self.calls: list[tuple[str, list[Seen]]] = []
        self.configs: list[str] = []
        self.ranks: list[tuple[int, int]] = []
        self.stored: dict[str, bytes] = {}
        self.n_alive = 0
        self.during: Callable[[], Any] = lambda: None
        self._functions = (
            abi.Create(self._create), abi.Call(self._save), abi.Call(self._load), abi.Destroy(self._destroy),
        )  # fmt: skip
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]
        self._name = ctypes.create_string_buffer(name.encode())
        self._table = abi.BackendTable()
        self._table.struct_size = ctypes.sizeof(abi.BackendTable)
        self._table.features = features
        self._table.name = ctypes.addressof(self._name)
        for field, address in zip(("create", "save", "load", "destroy"), addresses, strict=True):
            setattr(self._table, field, address)
        record = BackendRecord(name, features, ctypes.addressof(self._table), *addresses)  # type: ignore[arg-type]
        self.backend = LoadedBackend.of(record, "spy.py")

    @property
    def names(self) -> list[str]:
        """Names of the last call."""
        return [seen.name for seen in self.calls[-1][1]]

    @property
    def addresses(self) -> list[int]:
        """Addresses of the last call."""
        return [seen.address for seen in self.calls[-1][1]]

    def _create(self, config: bytes, instance: Any, error: Any, error_bytes: int) -> int:
        self.configs.append(config.decode())
        if self.is_broken:
            return self._fail(error)
        self.n_alive += 1
        instance[0] = 4242
        return 0

    def _destroy(self, _self: int) -> None:
        self.n_alive -= 1

    def _save(self, _self: int, context: Any, error: Any, error_bytes: int) -> int:
        return self._call("save", context, error)

    def _load(self, _self: int, context: Any, error: Any, error_bytes: int) -> int:
        return self._call("load", context, error)

    def _call(self, what: str, context: Any, error: Any) -> int:
        given = context.contents
        self.ranks.append((given.rank, given.n_ranks))
        seen = list(_tensors(given))
        self.calls.append((what, seen))
        self.during()
        if self.fails:
            return self._fail(error)
        for tensor in seen:
            if what == "save":
                self.stored[tensor.name] = ctypes.string_at(tensor.address, tensor.nbytes)
            elif tensor.name in self.stored:
                ctypes.memmove(tensor.address, self.stored[tensor.name], tensor.nbytes)
        return 0

    def _fail(self, error: Any) -> int:
        assert self.fails
        code, text = self.fails
        ctypes.memmove(error, text + b"\0", len(text) + 1)
        return code


def _tensors(context: Any) -> Iterator[Seen]:
    pointers = ctypes.cast(context.tensors, ctypes.POINTER(ctypes.POINTER(abi.Tensor)))
    for number in range(context.n_tensors):
        tensor = pointers[number].contents
        shape = ctypes.cast(tensor.shape, ctypes.POINTER(ctypes.c_int64))[: tensor.ndim]
        yield Seen(tensor.name.decode(), tensor.dtype_name.decode(), tuple(shape), tensor.data or 0, tensor.nbytes)
