"""Files of `hdf5` that are damaged, or made up on purpose: found or refused, in bounded memory, following nothing."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors, native
from hpcckpt.backends.hdf5 import reading
from hpcckpt.backends.hdf5.table import TRAILER_BYTES, decode, read_trailer, seal
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import discovery
from tests.support.fuzz.cases import seal_manifest
from tests.support.fuzz.readers import bounded
from tests.support.paths import TESTS

GOLDEN = TESTS / "format" / "hdf5-golden-1"
CASES = ("direct", "per-rank", "mpio", "mpio-gzip")
STEP = layout.step_dirname(42)
N_FLIPS = 80
Table = dict[str, Any]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def step(case: str, tmp_path: Path) -> Path:
    """Return a copy of a golden step."""
    return Path(shutil.copytree(GOLDEN / case / STEP, tmp_path / STEP))


# -- damage ----------------------------------------------------------------------------------------


def contents(step: Path) -> dict[str, bytes] | None:
    """Return all values of a step, or ``None`` if it is refused."""
    try:
        return {name: array.tobytes() for name, array in hc.load(step).items()}
    except (errors.CorruptError, errors.FormatVersionError):
        return None


def test_a_bit_that_flips_anywhere_is_noticed_or_means_nothing(step: Path) -> None:
    expected = contents(step)
    assert expected
    n_noticed = 0
    files = discovery.read_manifest(step).files
    for record in files:
        file = step / record.path
        for at in range(0, record.nbytes, max(1, record.nbytes * len(files) // N_FLIPS)):
            with flipped(file, at):
                found = contents(step)
                n_noticed += found is None
                assert found in (None, expected), f"byte {at} of {record.path}"
                assert (found is None) == bool(damage(step))
    assert n_noticed > N_FLIPS // 3


def damage(step: Path) -> list[Any]:
    """Return what verifying a step finds."""
    try:
        return list(open_step(step).verify())
    except (errors.CorruptError, errors.FormatVersionError) as error:
        return [error]


class flipped:  # noqa: N801 - reads as what it does
    """Flip a bit of a byte for the length of a block."""

    def __init__(self, file: Path, at: int) -> None:
        self.file, self.at = file, at

    def _flip(self) -> None:
        with self.file.open("r+b") as file:
            file.seek(self.at)
            (byte,) = file.read(1)
            file.seek(self.at)
            file.write(bytes([byte ^ 0x04]))

    def __enter__(self) -> None:
        self._flip()

    def __exit__(self, *_: object) -> None:
        self._flip()


def test_a_file_that_ends_anywhere_is_refused(step: Path) -> None:
    file = step / "data" / "checkpoint.h5"
    content = file.read_bytes()
    for length in (0, 1, 8, 59, 60, 100, 2048, len(content) // 2, len(content) - 61, len(content) - 1):
        file.write_bytes(content[:length])
        assert contents(step) is None
        resealed(step, file, None)
        with pytest.raises(errors.CorruptError, match=r"checkpoint\.h5"):
            hc.load(step)
    file.write_bytes(content + b"\0")
    assert contents(step) is None


def test_a_file_of_another_save_is_refused(step: Path, case: str, tmp_path: Path) -> None:
    other = GOLDEN / ("mpio" if case != "mpio" else "direct") / STEP / "data" / "checkpoint.h5"
    shutil.copy(other, step / "data" / "checkpoint.h5")
    content = other.read_bytes()
    trailer = read_trailer(content[-TRAILER_BYTES:], len(content), "")
    resealed(step, step / "data" / "checkpoint.h5", trailer.crc)
    with pytest.raises(errors.CorruptError, match="belongs to save"):
        hc.load(step)


# -- made up ---------------------------------------------------------------------------------------


def resealed(step: Path, file: Path, crc: int | None) -> None:
    """Let the manifest name a file as it is now."""
    path = step / layout.MANIFEST
    document = json.loads(path.read_bytes())
    (record,) = (record for record in document["files"] if step / record["path"] == file)
    record["bytes"] = file.stat().st_size
    if crc is not None:
        record["header_crc32c"] = f"{crc:08x}"
    text = json.dumps({"crc32c": "00000000", **{k: v for k, v in document.items() if k != "crc32c"}}, indent=1)
    path.write_bytes(seal_manifest(text.encode()))


def forge(step: Path, change: Callable[[Table], Any], file: Path | None = None) -> None:
    """Change the table of a file, and let every checksum fit."""
    file = file or max((step / "data").iterdir(), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    trailer = read_trailer(content[-TRAILER_BYTES:], len(content), "")
    document = json.loads(content[trailer.at : trailer.at + trailer.nbytes])
    text = change(document)
    sealed = seal(text if isinstance(text, bytes) else json.dumps(document).encode(), trailer.at)
    file.write_bytes(content[: trailer.at] + sealed.text)
    resealed(step, file, sealed.crc)


def largest(document: Table) -> dict[str, Any]:
    """Return the entry of the most bytes."""
    return max(document["entries"], key=lambda entry: len(entry["crc32c"]) * 10**9 + entry["span"][1])


HUGE = 1 << 59
LIES: dict[str, Callable[[Table], Any]] = {
    "an offset behind the end": lambda table: largest(table).update(at=1 << 40),
    "an offset below 0": lambda table: largest(table).update(at=-2),
    "an offset that is a float": lambda table: largest(table).update(at=1e3),
    "chunks that there are not": lambda table: (table.update(chunked=[]), largest(table).update(at=-1))[1],
    "a huge shape": lambda table: largest(table).update(global_shape=[HUGE], shape=[HUGE], offset=[0], span=[0, HUGE]),
    "a shape beyond any": lambda table: largest(table).update(shape=[10**30]),
    "a box that leaves its tensor": lambda table: largest(table).update(offset=[10**6] * 2),
    "a span that leaves its box": lambda table: largest(table).update(span=[0, 10**9]),
    "a span that ends before it begins": lambda table: largest(table).update(span=[9, 3]),
    "another dtype": lambda table: largest(table).update(dtype="<U99999999"),
    "a dtype that there is not": lambda table: largest(table).update(dtype="object"),
    "another kind": lambda table: largest(table).update(kind="own"),
    "a name that climbs": lambda table: largest(table).update(tensor="../../etc/passwd"),
    "a rank that there is not": lambda table: largest(table).update(rank=3),
    "too many checksums": lambda table: largest(table).update(crc32c="00000000" * 10**5),
    "checksums of something else": lambda table: largest(table).update(crc32c="00000000"),
    "an entry twice": lambda table: table["entries"].append(table["entries"][-1]),
    "no entries": lambda table: table.update(entries=[]),
    "entries that are no list": lambda table: table.update(entries={"0": 1}),
    "entries that are no objects": lambda table: table.update(entries=[[]] * 1000),
    "a newer format": lambda table: table.update(format=2),
    "a structure that is not": lambda table: table.update(structure=None),
    "a structure behind the end": lambda table: table["structure"].update(spans=[f"{0:016x}-{HUGE:016x}"]),
    "a structure of the same bytes again": lambda table: table["structure"].update(spans=[f"{0:016x}-{4096:016x}"] * 9),
    "another structure": lambda table: table["structure"].update(crc32c="00000000"),
    "JSON without end": lambda table: b'{"entries":' + b"[" * 100_000,
    "no JSON": lambda table: b"\xff" * 50,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_table_that_lies_is_refused_in_bounded_memory(step: Path, lie: str) -> None:
    forge(step, LIES[lie])
    nbytes = sum(path.stat().st_size for path in step.rglob("*") if path.is_file())
    with bounded(nbytes), pytest.raises(errors.HpcckptError):
        hc.load(step)
    with bounded(nbytes):
        try:
            is_sound = open_step(step).verify() == []
        except errors.HpcckptError:
            is_sound = False
    assert not is_sound


CHUNK_LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a chunk behind the end": lambda chunks: chunks["places"][0].__setitem__(0, 1 << 40),
    "a chunk of no size": lambda chunks: chunks["places"][0].__setitem__(1, 0),
    "chunks that share bytes": lambda chunks: chunks["places"].__setitem__(1, chunks["places"][0]),
    "too few chunks": lambda chunks: chunks["places"].pop(),
    "a chunk that is huge": lambda chunks: chunks.update(chunk=[1 << 20, 1 << 20]),
    "a chunk of no elements": lambda chunks: chunks.update(chunk=[0, 70]),
    "a chunk of other axes": lambda chunks: chunks.update(chunk=[300]),
    "a filter that there is not": lambda chunks: chunks.update(filters=["lzf"]),
    "filters the other way round": lambda chunks: chunks.update(filters=["deflate", "shuffle"]),
    "no filter": lambda chunks: chunks.update(filters=[]),
    "a mask that leaves out filters": lambda chunks: chunks["places"][0].__setitem__(2, 3),
    "a huge tensor": lambda chunks: chunks.update(global_shape=[HUGE, 70]),
}


@pytest.mark.parametrize("lie", CHUNK_LIES)
def test_chunks_that_lie_are_refused_in_bounded_memory(tmp_path: Path, lie: str) -> None:
    step = Path(shutil.copytree(GOLDEN / "mpio-gzip" / STEP, tmp_path / STEP))
    forge(step, lambda table: CHUNK_LIES[lie](table["chunked"][0]) and None)
    with bounded(1 << 20), pytest.raises(errors.CorruptError):
        hc.load(step)


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Path, str]:
    """Return a copy of a step with chunks, and the name of a tensor that is in some."""
    step = Path(shutil.copytree(GOLDEN / "mpio-gzip" / STEP, tmp_path / STEP))
    names: list[str] = []
    forge(step, lambda table: names.append(table["chunked"][0]["tensor"]))
    return step, names[0]


def test_a_table_is_read_once_however_often_its_chunks_are(
    packed: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, name = packed
    read: list[str] = []
    monkeypatch.setattr(reading, "decode", lambda *given: (read.append(name), decode(*given))[1])
    reader = open_step(step)
    for _ in range(3):
        reader.load(name)
    assert len(read) == len(reader.manifest.files) == 1


def test_a_table_that_has_changed_is_read_again(packed: tuple[Path, str]) -> None:
    step, name = packed
    reader = open_step(step)
    reader.load(name)
    file = step / "data" / "checkpoint.h5"
    content = file.read_bytes()
    trailer = read_trailer(content[-TRAILER_BYTES:], len(content), "")
    os.utime(file, ns=(0, 0))
    with flipped(file, trailer.at), pytest.raises(errors.CorruptError, match="its table is damaged"):
        reader.load(name)


@pytest.mark.parametrize("filters", [["deflate"], ["shuffle"], []], ids=["packed", "shuffled", "plain"])
def test_chunks_that_say_they_hold_more_than_they_can_are_refused_in_bounded_memory(
    tmp_path: Path, filters: list[str]
) -> None:
    """Sixteen gibibytes, in chunks of eight bytes each; nothing else in the table is wrong."""
    step, side, n_chunks = tmp_path / STEP, 1 << 28, 64
    shape = [n_chunks * side]
    entry = {"rank": 0, "at": -1, "tensor": "w", "kind": "replicated", "dtype": "uint8", "global_shape": shape,
             "offset": [0], "shape": shape, "span": [0, *shape], "crc32c": "00000000" * 16}  # fmt: skip
    places = [[8 * number, 8, 0] for number in range(n_chunks)]
    chunks = {"tensor": "w", "dtype": "uint8", "global_shape": shape, "chunk": [side], "filters": filters}
    (step / "data").mkdir(parents=True)
    published(step, bytes(4096), entry, 0, 1 << 30, chunked=[{**chunks, "places": places}])
    with bounded(1 << 20), pytest.raises(errors.CorruptError, match="a chunk cannot hold 268435456 bytes"):
        hc.load(step)


def test_a_chunk_that_inflates_to_a_gibibyte_takes_the_memory_of_a_chunk(tmp_path: Path) -> None:
    """HDF5 itself takes the gibibyte: its filter inflates all that there is."""
    step, side = tmp_path / STEP, 1 << 20
    deflate = zlib.compressobj(9)
    packed = b"".join(deflate.compress(bytes(side)) for _ in range(1024)) + deflate.flush()
    crc = native.crc32c(bytes(side))
    entry = {"rank": 0, "at": -1, "tensor": "w", "kind": "replicated", "dtype": "uint8", "global_shape": [side],
             "offset": [0], "shape": [side], "span": [0, side], "crc32c": f"{crc:08x}"}  # fmt: skip
    chunks = {"tensor": "w", "dtype": "uint8", "global_shape": [side], "chunk": [side], "filters": ["deflate"]}
    (step / "data").mkdir(parents=True)
    published(step, packed, entry, 0, chunked=[{**chunks, "places": [[0, len(packed), 0]]}])
    with bounded(1 << 22):
        assert not hc.load(step)["w"].any()


@pytest.mark.parametrize("line", [(1 << 63, 10), (0, 1 << 40), (100, 100)])
def test_a_last_line_that_lies_is_refused_in_bounded_memory(step: Path, line: tuple[int, int]) -> None:
    file = step / "data" / "checkpoint.h5"
    content = file.read_bytes()
    file.write_bytes(content[:-TRAILER_BYTES] + b"\nhpcckpt-table-1 %016x %016x %08x\n" % (*line, 7))
    resealed(step, file, 7)
    with bounded(len(content)), pytest.raises(errors.CorruptError, match="its table cannot be"):
        hc.load(step)


# -- HDF5 that leads elsewhere ---------------------------------------------------------------------


def evil(file: Path, secret: Path) -> int:
    """Write an HDF5 file whose names lead in circles, and to another file; return where the bytes of ``data`` are."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(file, "w") as made:
        made["loop"] = made["/"]
        made["soft"] = h5py.SoftLink("/soft")
        made["outside"] = h5py.ExternalLink(str(secret), "/secret")
        virtual = h5py.VirtualLayout((4,), "u1")
        virtual[:] = h5py.VirtualSource(str(secret), "/secret", (4,))
        made.create_virtual_dataset("virtual", virtual)
        made.create_dataset("raw", (4,), "u1", external=[(str(secret), 0, 4)])
        made.create_dataset("data", data=np.arange(4, dtype=np.uint8))
        return int(made["data"].id.get_offset())


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the paths of all files that are opened."""
    paths: list[str] = []
    really_open = os.open

    def spy(path: Any, *args: Any, **given: Any) -> int:
        paths.append(os.fspath(path))
        return really_open(path, *args, **given)

    monkeypatch.setattr(os, "open", spy)
    return paths


@pytest.mark.parametrize("name", ["loop", "soft", "outside", "virtual", "raw"])
def test_nothing_in_the_file_is_followed(tmp_path: Path, name: str, opened: list[str]) -> None:
    secret, file = tmp_path / "secret.h5", tmp_path / STEP / "data" / "checkpoint.h5"
    with pytest.importorskip("h5py").File(secret, "w") as made:
        made["secret"] = np.full(4, 99, np.uint8)
    made_up(tmp_path / STEP, name, lambda: evil(file, secret))
    opened.clear()
    assert hc.load(tmp_path / STEP)[name].tolist() == [0, 1, 2, 3]  # what the table says, and nothing else
    assert open_step(tmp_path / STEP).verify() == []
    assert [path for path in opened if "secret" in path] == []


def made_up(step: Path, name: str, write: Callable[[], int]) -> None:
    """Write a step of one tensor whose HDF5 file somebody else made, with a table and checksums that fit."""
    file = step / "data" / "checkpoint.h5"
    file.parent.mkdir(parents=True)
    at = write()
    crc = native.crc32c(bytes(range(4)))
    entry = {"rank": 0, "at": at, "tensor": name, "kind": "replicated", "dtype": "uint8", "global_shape": [4],
             "offset": [0], "shape": [4], "span": [0, 4], "crc32c": f"{crc:08x}"}  # fmt: skip
    published(step, file.read_bytes(), entry, at)


def published(step: Path, content: bytes, entry: Table, at: int, block_bytes: int = 1 << 20, **more: Any) -> None:
    """Write a step of one entry, with a table and a manifest whose checksums fit."""
    save_id = "0123456789abcdef" * 2
    table = {"format": 1, "save_id": save_id, "step": 42, "ranks": 1, "block_bytes": block_bytes, "driver": "direct",
             "structure": {"crc32c": f"{native.crc32c(content[:at]):08x}", "spans": [f"{0:016x}-{at:016x}"]},
             "entries": [entry], **more}  # fmt: skip
    file = step / "data" / "checkpoint.h5"
    sealed = seal(json.dumps(table).encode(), len(content))
    file.write_bytes(content + sealed.text)
    document = json.loads((GOLDEN / "direct" / STEP / layout.MANIFEST).read_bytes())
    about = {"name": entry["tensor"], "dtype": entry["dtype"], "shape": entry["global_shape"], "kind": entry["kind"]}
    document |= {"save_id": save_id, "run_id": save_id, "ranks": 1, "tensors": [about], "crc32c": None}
    document["block_bytes"] = block_bytes
    (step / layout.MANIFEST).write_text(json.dumps(document), encoding="utf-8")
    resealed(step, file, sealed.crc)
