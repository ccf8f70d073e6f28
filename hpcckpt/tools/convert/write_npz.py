"""A checkpoint as ``.npz``: a zip of ``.npy`` files, which ``numpy.load`` reads without pickle.

The note is the comment of the zip archive.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.results import Progress
from hpcckpt.format.note import encode, note_of
from hpcckpt.restoring.reader import StepReader
from hpcckpt.restoring.segments import StoredArray, pieces
from hpcckpt.state.tree import as_bytes

MAX_COMMENT_BYTES = 65535


def write_npz(path: Path, reader: StepReader, wanted: Sequence[StoredArray], progress: Progress | None = None) -> None:
    """Write arrays, one at a time and piece by piece. Independent.

    bfloat16 and float8, which ``.npy`` does not know, become float32: every value stays as it is.
    """
    note = note_of(reader.manifest, wanted, [source for source in wanted if is_widened(source)])
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED, allowZip64=True) as archive:
        archive.comment = encode(note, MAX_COMMENT_BYTES).encode()
        for source in wanted:
            dtype = npy_dtype(source)
            header = {"descr": dtype.str, "fortran_order": False, "shape": source.shape}
            with archive.open(f"{source.name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
                for piece in pieces(reader, source):
                    file.write(as_bytes(np.ascontiguousarray(piece.astype(dtype, copy=False))).data)
            if progress:
                progress(source.nbytes)


def is_widened(source: StoredArray) -> bool:
    """Return True if an array becomes float32."""
    return source.spec.dtype.startswith(("bfloat16", "float8"))


def npy_dtype(source: StoredArray) -> np.dtype[np.generic]:
    """Return the dtype that an array has for NumPy without ml_dtypes. Pure."""
    return np.dtype(np.float32) if is_widened(source) else numpy_dtype(source.spec.dtype)
