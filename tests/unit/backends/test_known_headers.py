"""Headers that this process wrote or read are not parsed again, and only as long as the file has the same bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt
from hpcckpt import Checkpointer
from hpcckpt.backends.rankfile import backend, format as codec
from hpcckpt.backends.rankfile.known import MAX_BYTES, Key, KnownHeaders
from hpcckpt.core.plan import FileRecord
from hpcckpt.errors import CorruptError

pytestmark = pytest.mark.one_case


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Begin with nothing known; return the paths of the files whose headers are parsed."""
    seen: list[str] = []
    decode = codec.decode_header

    def spy(header: bytes, nbytes: int, record: FileRecord, *more: Any) -> Any:
        seen.append(record.path)
        return decode(header, nbytes, record, *more)

    monkeypatch.setattr(codec, "decode_header", spy)
    monkeypatch.setattr(backend, "_known", KnownHeaders())
    return seen


def state() -> dict[str, Any]:
    return {
        "a": np.arange(1000.0),
        "b": np.arange(7, dtype=np.int8),
        "empty": np.zeros((0, 3)),
        "c": np.float32(2),
    }


def test_a_step_that_this_process_wrote_is_restored_without_parsing_its_header(
    tmp_path: Path, parsed: list[str]
) -> None:
    own = state()
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, own).result()
        own["a"][:] = 0
        checkpointer.restore(own)
        checkpointer.restore(own)
    assert parsed == []
    assert (own["a"] == state()["a"]).all()


def test_a_step_that_this_process_read_is_read_again_without_parsing_its_header(
    tmp_path: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state())
    monkeypatch.setattr(backend, "_known", KnownHeaders())
    first, again = hpcckpt.load(tmp_path), hpcckpt.load(tmp_path)
    assert len(parsed) == 1
    assert all((first[name] == again[name]).all() for name in state())


def test_what_is_known_of_a_header_is_what_parsing_it_gives(
    tmp_path: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state())
    known = hpcckpt.restoring.reader.open_step(tmp_path).index
    monkeypatch.setattr(backend, "_known", KnownHeaders())
    assert hpcckpt.restoring.reader.open_step(tmp_path).index == known
    assert len(parsed) == 1


def test_a_known_header_whose_file_was_damaged_is_refused(tmp_path: Path, parsed: list[str]) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state())
    hpcckpt.load(tmp_path)
    (file,) = tmp_path.glob("step-*/data/*")
    fd = os.open(file, os.O_RDWR)
    os.pwrite(fd, bytes([os.pread(fd, 1, 300)[0] ^ 1]), 300)
    os.close(fd)
    with pytest.raises(CorruptError, match="the header is damaged"):
        hpcckpt.restoring.reader.open_step(*tmp_path.glob("step-*"))


def test_recycled_files_are_known_by_their_new_header(tmp_path: Path, parsed: list[str]) -> None:
    own = state()
    with Checkpointer(tmp_path, max_to_keep=1) as checkpointer:
        for step in range(1, 6):
            own["a"][:] = step
            checkpointer.save(step, own).result()
            own["a"][:] = 0
            assert checkpointer.restore(own).step == step
            assert (own["a"] == step).all()


def test_headers_are_kept_up_to_a_limit() -> None:
    known, header = KnownHeaders(), bytes(MAX_BYTES // 3)
    keys = [Key(FileRecord(f"data/{number}", 0, 0), "", 1, 1) for number in range(5)]
    for key in keys:
        known.keep(key, memoryview(header), list)
    assert [known.find(key, header) is not None for key in keys] == [False, False, True, True, True]
    assert known.find(keys[4], header[:-1] + b"x") is None
