"""Read what a plugin says of itself, trusting nothing, and refuse it with the remedy.

a. the first 24 bytes, which mean the same in every version: magic, platform, version
b. the rest of the table, as far as its size says
c. the table of each backend: its size, name and functions

Addresses are looked up, never followed blindly: a table that is forged or cut short is an error, not a crash.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from hpcckpt.core import files
from hpcckpt.errors import PluginError
from hpcckpt.native import abi

MAX_BACKENDS = 256
MAX_STRUCT_BYTES = 4096
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_HEAD_BYTES = 24
REBUILD = "build it again with the headers of this hpcckpt (python -m hpcckpt --include-dir)"
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class BackendRecord:
    """One backend of a plugin: its name, its features, the address of its table, and those of its functions."""

    name: str
    features: int
    address: int
    create: int
    save: int
    load: int
    destroy: int


# -- memory --------------------------------------------------------------------------------------


def peek(address: int, nbytes: int) -> bytes | None:
    """Return bytes of this process's memory, or ``None`` if they are not there."""
    if not _PAGE <= address < 1 << 63:
        return None
    try:
        fd = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # no /proc, or a process that may not be looked into: the plugin is taken at its word
        return ctypes.string_at(address, nbytes)
    try:
        found = files.read_at(fd, nbytes, address)
    except (OSError, OverflowError):
        return None
    finally:
        os.close(fd)
    return found if len(found) == nbytes else None


def peek_text(address: int, max_bytes: int) -> bytes | None:
    """Return a zero-terminated string without its end, or ``None`` if there is none of at most `max_bytes`."""
    found = b""
    while len(found) <= max_bytes:
        upto_page_end = _PAGE - (address + len(found)) % _PAGE
        piece = peek(address + len(found), min(upto_page_end, max_bytes + 1 - len(found)))
        if not piece:
            return None
        found += piece
        if b"\0" in piece:
            return found.partition(b"\0")[0]
    return None


def is_code(address: int) -> bool:
    """Return True if a function can be at an address."""
    try:
        maps = Path("/proc/self/maps").read_bytes()
    except OSError:
        return address >= _PAGE
    for line in maps.splitlines():
        span, permissions = line.split(maxsplit=2)[:2]
        start, _, stop = span.partition(b"-")
        if int(start, 16) <= address < int(stop, 16):
            return b"x" in permissions
    return False


# -- tables --------------------------------------------------------------------------------------


def read_plugin(origin: str, address: int) -> list[BackendRecord]:
    """Return the backends of the plugin whose table is at an address.

    Parameters
    ----------
    origin : str
        The file, for errors.
    address : int
        What its ``hpcckpt_plugin_abi`` returned.

    Raises
    ------
    PluginError
        If it is too old, too new, for another platform, or damaged; says what to do.
    """
    head = peek(address, _HEAD_BYTES)
    if head is None:
        raise damaged(origin, f"{abi.SYMBOL}() returned {address:#x}, where no table is")
    _check_head(origin, head)
    table = _read_struct(origin, "its table", address, abi.PluginTable)
    if table.n_backends == 0:
        raise PluginError(
            f"plugin {origin} registers no backend: add HPCCKPT_REGISTER_BACKEND(name, Class) and build it again"
        )
    if table.n_backends > MAX_BACKENDS:
        raise damaged(origin, f"it says that it has {table.n_backends} backends, and 1 to {MAX_BACKENDS} can be")
    addresses = peek(table.backends, 8 * table.n_backends)
    if addresses is None:
        raise damaged(origin, f"its list of backends is said to be at {table.backends:#x}, where none is")
    return [_read_backend(origin, each) for each in struct.unpack(f"={table.n_backends}Q", addresses)]


def _check_head(origin: str, head: bytes) -> None:
    _, platform, magic, major, minor = struct.unpack("=IIQII", head)
    if magic == int.from_bytes(abi.MAGIC.to_bytes(8, "little"), "big"):
        raise wrong_platform(origin, "another byte order")
    if magic != abi.MAGIC:
        raise damaged(origin, f"its table does not begin as one of hpcckpt does (magic {magic:#x})")
    if platform != abi.this_platform():
        raise wrong_platform(origin, abi.platform_name(platform))
    if major < abi.MAJOR:
        raise PluginError(f"plugin {origin} is too old: plugin ABI {major}, need {abi.MAJOR}; {REBUILD}")
    if (major, minor) > (abi.MAJOR, abi.MINOR):
        raise PluginError(
            f"plugin {origin} is too new: plugin ABI {major}.{minor}, and this hpcckpt has {abi.MAJOR}.{abi.MINOR}; "
            f"upgrade it (pip install -U hpcckpt), or {REBUILD.replace('build it', 'build the plugin')}"
        )


def _read_struct(origin: str, what: str, address: int, kind: type[ctypes.Structure]) -> ctypes.Structure:
    """Return a copy of a struct that says it is at least as long as version 1.0 has it."""
    size = peek(address, 4)
    if size is None:
        raise damaged(origin, f"{what} is said to be at {address:#x}, where none is")
    nbytes, least = int.from_bytes(size, sys.byteorder), ctypes.sizeof(kind)
    if not least <= nbytes <= MAX_STRUCT_BYTES:
        raise damaged(origin, f"{what} says that it has {nbytes} bytes, and at least {least} are needed")
    content = peek(address, least)
    if content is None:
        raise damaged(origin, f"{what} ends before its {nbytes} bytes do")
    return kind.from_buffer_copy(content)


def _read_backend(origin: str, address: int) -> BackendRecord:
    table = _read_struct(origin, "the table of a backend", address, abi.BackendTable)
    raw = peek_text(table.name, 64)
    name = "" if raw is None else raw.decode("ascii", errors="replace")
    if not NAME.fullmatch(name):
        said = "no readable name" if raw is None else f"the name {raw!r}"
        raise damaged(origin, f"a backend has {said}; a name is a C identifier of at most 64 characters")
    functions = {each: int(getattr(table, each)) for each in ("create", "save", "load", "destroy")}
    for function, where in functions.items():
        if not is_code(where):
            raise damaged(origin, f"the function {function!r} of backend {name!r} is at {where:#x}, where none is")
    return BackendRecord(name, table.features, address, **functions)


def damaged(origin: str, reason: str) -> PluginError:
    """Return the error for a file whose content cannot be a plugin's."""
    return PluginError(f"plugin {origin} is damaged: {reason}; {REBUILD}")


def wrong_platform(origin: str, theirs: str) -> PluginError:
    """Return the error for a file that is made for another machine."""
    ours = abi.platform_name(abi.this_platform())
    return PluginError(f"plugin {origin} is for the wrong platform: {theirs}; build it for this one, {ours}")
