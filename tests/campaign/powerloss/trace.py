"""The trace of a job: which operations changed the file system, in which order, and what was there before."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = 0
PAGE = 4096
_RECORD = struct.Struct("<2I5Q2IQ")
_KINDS = (
    "", "create", "mkdir", "link", "unlink", "rmdir", "rename", "exchange", "write", "truncate", "allocate", "sync",
    "mark", "unknown",
)  # fmt: skip
DATA_KINDS = frozenset({"write", "truncate", "allocate"})
NAME_KINDS = frozenset({"create", "mkdir", "link", "unlink", "rmdir", "rename", "exchange"})

Slot = tuple[int, str]
"""A name in a directory: what an operation on names changes."""


class UnknownOperationError(AssertionError):
    """The job did something to the file system that the model does not know."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation that took place.

    Attributes
    ----------
    kind : str
        One of the names in `DATA_KINDS` and `NAME_KINDS`, ``sync`` or ``mark``.
    node : int
        The file or directory it is about; of an exchange, the one that had the first name.
    slots : tuple of Slot
        The names it changes: one, or of a rename or an exchange two.
    """

    number: int
    kind: str
    node: int = -1
    slots: tuple[Slot, ...] = ()
    offset: int = 0
    nbytes: int = 0
    mode: int = 0
    data: bytes = b""
    text: str = ""


@dataclass(slots=True)
class Trace:
    """A job's operations, and the tree they began with, all of which was durable.

    Attributes
    ----------
    entries : dict
        Directory -> name -> node, at the beginning; `ROOT` is the directory that was watched.
    contents : dict
        File -> bytes, at the beginning.
    ops : list of Op
        In the order in which they took place.
    """

    entries: dict[int, dict[str, int]]
    contents: dict[int, bytes]
    ops: list[Op] = field(default_factory=list)


class _Found(NamedTuple):
    """A tree on disk: nodes by inode number."""

    root: int
    entries: dict[int, dict[str, int]]
    contents: dict[int, bytes]


def look_at(root: Path) -> _Found:
    """Read a tree: directories, hard links and bytes, by inode number."""
    found = _Found(root.stat().st_ino, {}, {})
    for where, directories, files in os.walk(root):
        entries = found.entries[os.stat(where).st_ino] = {}
        for name in directories + files:
            path = os.path.join(where, name)
            entries[name] = os.lstat(path).st_ino
            if name in files:
                found.contents.setdefault(entries[name], Path(path).read_bytes())
    return found


def build_trace(before: _Found, log: bytes) -> Trace:
    """Put a log and the tree that was there before together; inode numbers become new nodes.

    Raises
    ------
    UnknownOperationError
        If the log has an operation that the model does not know.
    """
    return _Builder(before).build(log)


class _Builder:
    """Follows inode numbers, which the file system gives out again, through a log."""

    def __init__(self, before: _Found) -> None:
        self._n_nodes = 0
        self._nodes: dict[int, int] = {}
        self._new(before.root)
        for inode in [*before.entries, *before.contents]:
            if inode not in self._nodes:
                self._new(inode)
        entries = {
            self._nodes[inode]: {name: self._nodes[child] for name, child in names.items()}
            for inode, names in before.entries.items()
        }
        self._trace = Trace(entries, {self._nodes[inode]: data for inode, data in before.contents.items()})

    def _new(self, inode: int) -> int:
        self._nodes[inode] = self._n_nodes
        self._n_nodes += 1
        return self._nodes[inode]

    def build(self, log: bytes) -> Trace:
        at = 0
        while at < len(log):
            kind, mode, inode, parent, parent2, offset, nbytes, len1, len2, n_data = _RECORD.unpack_from(log, at)
            at += _RECORD.size
            name, name2 = log[at : at + len1].decode(), log[at + len1 : at + len1 + len2].decode()
            data = log[at + len1 + len2 : at + len1 + len2 + n_data]
            at += len1 + len2 + n_data
            slots = ((parent, name), (parent2, name2)) if kind in {6, 7} else ((parent, name),)
            self._add(_KINDS[kind], inode, slots, (offset, nbytes, mode, data))
        return self._trace

    def _add(self, kind: str, inode: int, slots: tuple[Slot, ...], rest: tuple[int, int, int, bytes]) -> None:
        number = len(self._trace.ops)
        if kind == "unknown":
            raise UnknownOperationError(f"operation {number}: {slots[0][1]}")
        if kind == "mark":
            self._trace.ops.append(Op(number, kind, text=slots[0][1]))
        elif kind in NAME_KINDS:
            self._add_names(number, kind, inode, slots)
        elif inode in self._nodes:
            offset, nbytes, mode, data = rest
            self._trace.ops.append(Op(number, kind, self._nodes[inode], (), offset, nbytes, mode, data))

    def _add_names(self, number: int, kind: str, inode: int, slots: tuple[Slot, ...]) -> None:
        inside = [parent in self._nodes for parent, _ in slots]
        if kind in {"create", "mkdir"}:
            self._nodes.pop(inode, None)  # whatever had this number is gone
            if inside[0]:
                self._new(inode)
        if not any(inside):
            return
        if not all(inside) or inode not in self._nodes:
            raise UnknownOperationError(f"operation {number}: {kind} {slots} from or to another tree")
        own = tuple((self._nodes[parent], name) for parent, name in slots)
        self._trace.ops.append(Op(number, kind, self._nodes[inode], own))
