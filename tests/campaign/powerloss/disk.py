"""A file system in memory: apply operations, or parts of them, and say what is there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.campaign.powerloss.trace import NAME_KINDS, PAGE, ROOT, Op, Trace

KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
LONG_AGO_S = 7 * 3600.0
"""How old files look after the power is back: older than whatever expires, so that what stays now stays for ever."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a crash left of an operation on bytes.

    Attributes
    ----------
    pages : frozenset of int, optional
        The pages of the file that reached storage; all if ``None``.
    filler : bytes
        What is in the pages that did not, where the file had not been before: zeros, or what was there of others.
    grows : bool
        Whether the file's new size reached storage though pages did not.
    spoils : bool
        Whether the filler also goes where something stood before: storage that destroys what it was writing.
    sector : int
        Bytes of each page that reached storage, from its beginning: below 4096 for pages torn inside.
    """

    pages: frozenset[int] | None = None
    filler: bytes = b""
    grows: bool = False
    spoils: bool = False
    sector: int = PAGE


WHOLE = Part()


class Content:
    """A file's bytes, as pages that many versions share."""

    def __init__(self, data: bytes = b"") -> None:
        self.nbytes = len(data)
        self.pages = [data[at : at + PAGE].ljust(PAGE, b"\0") for at in range(0, len(data), PAGE)]

    def resize(self, nbytes: int) -> None:
        n_pages = -(-nbytes // PAGE)
        if nbytes < self.nbytes and nbytes % PAGE:
            last = nbytes // PAGE
            self.pages[last] = self.pages[last][: nbytes % PAGE].ljust(PAGE, b"\0")
        del self.pages[n_pages:]
        self.pages += [bytes(PAGE)] * (n_pages - len(self.pages))
        self.nbytes = nbytes

    def put(self, op: Op, part: Part) -> None:
        """Write; where pages are not in `part`, what was there stays, or the filler comes."""
        first, last = op.offset // PAGE, (op.offset + op.nbytes - 1) // PAGE
        kept = [page for page in range(first, last + 1) if part.pages is None or page in part.pages]
        end = op.offset + op.nbytes
        if not part.grows:
            end = min(end, (kept[-1] + 1) * PAGE) if kept else 0
        n_before = len(self.pages)
        if end > self.nbytes:
            self.resize(end)
        for page in range(first if part.spoils else max(first, n_before), min(last + 1, len(self.pages))):
            if part.filler:
                self.pages[page] = (part.filler * (PAGE // len(part.filler) + 1))[:PAGE]
        for page in kept:
            self._put_page(op, page, part.sector)

    def _put_page(self, op: Op, page: int, sector: int) -> None:
        begin, end = max(op.offset, page * PAGE), min(op.offset + op.nbytes, (page + 1) * PAGE)
        end = min(end, page * PAGE + sector)
        if end <= begin:
            return
        new = op.data[begin - op.offset : end - op.offset]
        if len(new) < PAGE:
            old = self.pages[page]
            new = old[: begin - page * PAGE] + new + old[end - page * PAGE :]
        self.pages[page] = new

    def allocate(self, op: Op) -> None:
        """Preallocate, or make zeros of a range; as Linux does."""
        end = op.offset + op.nbytes
        if op.mode & (PUNCH_HOLE | ZERO_RANGE):
            for page in range(op.offset // PAGE, min(-(-end // PAGE), len(self.pages))):
                begin, stop = max(op.offset - page * PAGE, 0), min(end - page * PAGE, PAGE)
                old = self.pages[page]
                self.pages[page] = old[:begin] + bytes(stop - begin) + old[stop:]
        if not op.mode & KEEP_SIZE and end > self.nbytes:
            self.resize(end)

    def __bytes__(self) -> bytes:
        return b"".join(self.pages)[: self.nbytes]

    def digest(self) -> bytes:
        """Return what tells this content from every other."""
        return hashlib.blake2b(b"".join([self.nbytes.to_bytes(8), *self.pages]), digest_size=16).digest()


class Disk:
    """The tree that the beginning of a trace and some of its operations make."""

    def __init__(self, trace: Trace, kept: Mapping[int, Part]) -> None:
        self.entries = {node: dict(names) for node, names in trace.entries.items()}
        self._initial = trace.contents
        self._written: dict[int, list[tuple[Op, Part]]] = {}
        for op in trace.ops:
            if op.number in kept:
                self._apply(op, kept[op.number])

    def _apply(self, op: Op, part: Part) -> None:
        if op.kind in NAME_KINDS:
            self._apply_names(op)
        elif op.kind != "sync":
            self._written.setdefault(op.node, []).append((op, part))

    def _apply_names(self, op: Op) -> None:
        (first, name), (second, name2) = op.slots[0], op.slots[-1]
        here, there = self.entries.setdefault(first, {}), self.entries.setdefault(second, {})
        if op.kind in {"unlink", "rmdir"}:
            here.pop(name, None)
        elif op.kind == "rename":
            here.pop(name, None)
            there[name2] = op.node
        elif op.kind == "exchange":
            here[name], there[name2] = there[name2], op.node
        else:
            here[name] = op.node
            if op.kind == "mkdir":
                self.entries.setdefault(op.node, {})

    def walk(self, node: int = ROOT, where: str = "") -> Iterator[tuple[str, int]]:
        """Yield path and node of all that can be reached, parents first, in the order of the names."""
        for name, child in sorted(self.entries.get(node, {}).items()):
            yield f"{where}{name}", child
            if child in self.entries:
                yield from self.walk(child, f"{where}{name}/")

    def content(self, node: int) -> Content:
        """Return a file's bytes."""
        content = Content(self._initial.get(node, b""))
        for op, part in self._written.get(node, ()):
            if op.kind == "write":
                content.put(op, part)
            elif op.kind == "truncate":
                content.resize(op.nbytes)
            else:
                content.allocate(op)
        return content

    def versions(self, node: int) -> tuple[tuple[int, Part], ...]:
        """Return what made a file's bytes: equal if they are."""
        return tuple((op.number, part) for op, part in self._written.get(node, ()))

    def build(self, target: Path) -> None:
        """Make this tree in an empty directory, with its hard links; all of it looks old."""
        paths: dict[int, Path] = {}
        for name, node in self.walk():
            path = target / name
            if node in self.entries:
                path.mkdir()
            elif node in paths:
                os.link(paths[node], path)
            else:
                path.write_bytes(bytes(self.content(node)))
                paths[node] = path
                age(path)


def age(path: Path) -> None:
    """Make a file look old."""
    then = path.stat().st_mtime - LONG_AGO_S
    os.utime(path, (then, then))


class Prints:
    """Tells trees apart: by their names, their links, and their bytes."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[tuple[int, Part], ...]], bytes] = {}

    def of(self, disk: Disk) -> bytes:
        """Return what tells this tree from every other of the same trace."""
        first: dict[int, int] = {}
        text = hashlib.blake2b(digest_size=16)
        for number, (name, node) in enumerate(disk.walk()):
            text.update(f"{name}\0{first.setdefault(node, number)}\0".encode())
            if node not in disk.entries:
                text.update(self._of_file(disk, node))
        return text.digest()

    def _of_file(self, disk: Disk, node: int) -> bytes:
        key = (node, disk.versions(node))
        if key not in self._known:
            self._known[key] = disk.content(node).digest()
        return self._known[key]


def whole(ops: Iterable[Op]) -> dict[int, Part]:
    """Return the choice that keeps all operations as they were."""
    return {op.number: WHOLE for op in ops if op.kind not in {"mark", "sync"}}
