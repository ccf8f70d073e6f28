"""A checkpoint as one ``.safetensors`` file, whatever files and ranks it was saved with.

The note is in the metadata of its header.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcckpt.core.results import Progress
from hpcckpt.core.tensors import SAFETENSORS_CODES, itemsize
from hpcckpt.errors import OptionError
from hpcckpt.format.note import encode, note_of
from hpcckpt.restoring.reader import StepReader
from hpcckpt.restoring.segments import StoredArray, pieces
from hpcckpt.state.tree import as_bytes

CODES = {**SAFETENSORS_CODES, "complex64": "C64", "float8_e8m0fnu": "F8_E8M0"}
NOTE_KEY = "hpcckpt.format.note"
MAX_HEADER_BYTES = 100_000_000
"""Readers refuse longer ones."""
_ALIGNMENT = 8


def write_safetensors(
    path: Path, reader: StepReader, wanted: Sequence[StoredArray], progress: Progress | None = None
) -> None:
    """Write arrays, one at a time and piece by piece. Independent.

    Raises
    ------
    OptionError
        If an array has a dtype that safetensors does not know; names all of them. If the header would be too long.
    """
    refuse_unknown(wanted)
    manifest = reader.manifest
    metadata = {"format": "np", "hpcckpt.step": str(manifest.step), "hpcckpt.save_id": manifest.save_id}
    metadata[NOTE_KEY] = encode(note_of(manifest, wanted))
    with path.open("xb") as file:
        file.write(encode_header(wanted, metadata))
        for source in aligned(wanted):
            for piece in pieces(reader, source):
                file.write(as_bytes(piece).data)
            if progress:
                progress(source.nbytes)


def refuse_unknown(wanted: Sequence[StoredArray]) -> None:
    """Raise if an array has a dtype that safetensors does not know."""
    unknown = [f"{source.name} ({source.spec.dtype})" for source in wanted if source.spec.dtype not in CODES]
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise OptionError(
            f"safetensors has no dtype for {', '.join(unknown[:5])}{more}; use --to npz, or leave them out with --only"
        )


def aligned(wanted: Iterable[StoredArray]) -> list[StoredArray]:
    """Return arrays in the order of their data in a file, in which each is aligned. Pure."""
    return sorted(wanted, key=lambda source: (-itemsize(source.spec.dtype), source.name))


def encode_header(wanted: Sequence[StoredArray], metadata: Mapping[str, str]) -> bytes:
    """Return length word and header of a file: entries in this order, data in that of `aligned`. Pure.

    Raises
    ------
    OptionError
        If readers would refuse a header of this size.
    """
    offsets: dict[str, list[int]] = {}
    position = 0
    for source in aligned(wanted):
        offsets[source.name] = [position, position + source.nbytes]
        position += source.nbytes
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    for source in wanted:
        entry = {"dtype": CODES[source.spec.dtype], "shape": source.shape, "data_offsets": offsets[source.name]}
        header[source.name] = entry
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise OptionError(
            f"the header of this safetensors file would have {len(text)} bytes, {sum(map(len, metadata.values()))} of "
            f"them values that are not tensors, and readers take at most {MAX_HEADER_BYTES}: write fewer of them, or "
            "a checkpoint directory or .npz instead"
        )
    return struct.pack("<Q", len(text)) + text
