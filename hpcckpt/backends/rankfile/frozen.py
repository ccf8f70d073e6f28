"""Files of tensors that did not change: linked from the newest committed step, or written to be linked by the next."""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from hpcckpt.backends.base import Payload
from hpcckpt.backends.rankfile import format as codec
from hpcckpt.core import files
from hpcckpt.core.plan import FileRecord
from hpcckpt.format import layout

MIN_BYTES = 1 << 20
"""Less than this is not worth a separate file."""

_NUMBER = re.compile(r"\.frozen-([0-9]+)\.")


def frozen_path(rank: int, linked: Sequence[FileRecord]) -> str:
    """Return a path in the step directory that no linked file has."""
    numbers = [int(found[1]) for record in linked if (found := _NUMBER.search(record.path))]
    return f"{layout.DATA}/rank-{rank:05d}.frozen-{1 + max(numbers, default=0)}.safetensors"


def link_unchanged(payloads: Sequence[Payload], base: Path, path: Path) -> list[FileRecord]:
    """Link each file of the step `base` whose tensors are all unchanged into `path`. Independent."""
    members: dict[FileRecord, list[Payload]] = defaultdict(list)
    for payload in payloads:
        if payload.linkable is not None:
            members[payload.linkable.file].append(payload)
    return [record for record, found in members.items() if _link(record, found, base, path)]


def _link(record: FileRecord, payloads: Sequence[Payload], base: Path, path: Path) -> bool:
    """Link a file, unless one of its tensors changed, or the file system cannot: then they are written again."""
    in_file = payloads[0].linkable
    if in_file is None or in_file.n_in_file != len(payloads):
        return False
    with contextlib.suppress(OSError):
        files.link(base / record.path, path / record.path)
        if not _is_same_file(path / record.path, record):
            files.unlink(path / record.path)  # of another save, which has replaced that step meanwhile
            return False
        for payload in payloads:
            if payload.linkable is not None:
                payload.written(payload.linkable.crcs, record, len(payloads))
        return True
    return False


def _is_same_file(path: Path, record: FileRecord) -> bool:
    """Return True if a file has the size and the header that were recorded."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return (
            os.fstat(fd).st_size == record.nbytes
            and codec.sealed_crc(files.read_at(fd, codec.PAGE_BYTES, 0)) == record.header_crc
        )
    except ValueError:
        return False
    finally:
        os.close(fd)


def worth_a_file(payloads: Sequence[Payload]) -> list[Payload]:
    """Return the unchanged payloads that are not linked, if they are large enough for a file of their own."""
    unchanged = [payload for payload in payloads if payload.is_unchanged and payload.record is None]
    return unchanged if sum(payload.item.nbytes for payload in unchanged) >= MIN_BYTES else []
