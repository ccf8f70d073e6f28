"""The header of a data file: what goes in comes out, and whatever is changed is called corrupt, at no cost."""

from __future__ import annotations

import json
import struct
import tracemalloc

import pytest
from hypothesis import assume, given, strategies as st

from hpcckpt.backends.entries import decode_columns, decode_item, encode_entry, entry_names, entry_problem
from hpcckpt.backends.rankfile.format import (
    MAX_HEADER_BYTES,
    PAGE_BYTES,
    decode_header,
    encode_header,
    fill_in,
    header_length,
    sealed_crc,
)
from hpcckpt.core.plan import FileRecord, SaveJob, WriteItem, block_count
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.errors import CorruptError
from hpcckpt.format.manifest import Manifest
from hpcckpt.native import crc32c

pytestmark = pytest.mark.one_case

JOB = SaveJob("a" * 32, 7, 3, 64)
names = st.text("abc/xyz@[]:,~0123456789", min_size=1, max_size=12).filter(
    lambda name: all(part not in {"", ".", ".."} for part in name.split("/"))
)


@st.composite
def items_lists(draw):
    """Draw the entries of one file: whole tensors, boxes, spans, per-rank entries of other shapes."""
    items = []
    for name in draw(st.lists(names, max_size=6, unique=True)):
        dtype = draw(st.sampled_from(["float32", "bfloat16", "bool", "<U3", "|V7", "complex128"]))
        kind = draw(st.sampled_from(["replicated", "sharded", "per-rank", "root"]))
        shape = draw(st.lists(st.integers(0, 6), max_size=3).map(tuple))
        offset = tuple(draw(st.integers(0, n)) for n in shape) if kind == "sharded" else (0,) * len(shape)
        box = Extent(
            offset,
            tuple(draw(st.integers(0, n - o)) if kind == "sharded" else n for n, o in zip(shape, offset, strict=True)),
        )
        start, stop = 0, box.n_elements
        if kind in {"replicated", "sharded"}:
            start, stop = sorted((draw(st.integers(0, stop)), draw(st.integers(0, stop))))
        items.append(WriteItem(TensorSpec(name, dtype, shape, kind), box, start, stop))
    return items


def crcs_of(items):
    return [
        [(number * 7919 + block) & 0xFFFFFFFF for block in range(block_count(item.nbytes, JOB.block_bytes))]
        for number, item in enumerate(items)
    ]


def sealed_file(items, rank=1):
    """Return a sealed header, and the record and manifest that belong to it."""
    sealed = fill_in(encode_header(JOB, rank, items), crcs_of(items), crc32c)
    return sealed, record_of(sealed, items), manifest()


def record_of(sealed, items):
    return FileRecord("data/rank-00001.safetensors", len(sealed) + sum(i.nbytes for i in items), sealed_crc(sealed))


def manifest():
    return Manifest(JOB.save_id, JOB.save_id, None, 7, 3, "now", "rankfile", JOB.block_bytes, (), ())


def decode(sealed, record, held):
    return decode_header(sealed[8:], record.nbytes, record, held, crc32c)


@given(items_lists())
def test_entries_come_back_as_they_were(items):
    sealed, record, held = sealed_file(items)
    entries = decode(sealed, record, held)
    assert [entry.item for entry in entries] == items
    assert [list(entry.crcs) for entry in entries] == crcs_of(items)
    assert {entry.rank for entry in entries} <= {1}
    position = len(sealed)
    for entry in entries:
        assert entry.offset == position
        position += entry.nbytes
    assert position == record.nbytes


@given(items_lists(), st.data())
def test_entries_checked_at_once_are_those_that_are_good_one_by_one(items, data):
    entries = [encode_entry(item, crcs) for item, crcs in zip(items, crcs_of(items), strict=True)]
    if entries and data.draw(st.booleans()):
        broken = data.draw(st.sampled_from(entries))
        key = data.draw(st.sampled_from(sorted(broken)))
        junk = st.sampled_from([None, True, -1, 0, 1, 1 << 60, 1 << 70, 0.5, "", "x", "00000000"])
        broken[key] = data.draw(junk | st.lists(junk, max_size=3) | st.just({}))
        if data.draw(st.booleans()):
            del broken[key]
    columns = decode_columns(entries)
    problems = [entry_problem(entry) for entry in entries]
    if columns is None:
        return
    assert problems == [None] * len(entries)
    assert columns.items == [decode_item(entry) for entry in entries]
    assert columns.nbytes.tolist() == [item.nbytes for item in columns.items]


@given(items_lists().filter(len))
def test_good_entries_are_checked_at_once(items):
    assert decode_columns([encode_entry(item, crcs) for item, crcs in zip(items, crcs_of(items), strict=True)])


@given(items_lists())
def test_the_length_does_not_depend_on_checksums(items):
    without = encode_header(JOB, 1, items)
    assert len(without) == len(fill_in(without, crcs_of(items), crc32c))
    assert len(without) % PAGE_BYTES == 0
    assert struct.unpack("<Q", without[:8])[0] == len(without) - 8


@pytest.mark.parametrize("name", ["crc32c", '"crc32c":"', r"\"crc32c\":\"", r'\\"crc32c\\":\\"', '","crc32c":"00'])
def test_names_that_look_like_the_place_of_a_checksum_do_not_move_it(name):
    items = [WriteItem(TensorSpec(each, "int8", (100,)), Extent.whole((100,)), 0, 100) for each in (name, "z")]
    sealed, record, held = sealed_file(items)
    entries = decode(sealed, record, held)
    assert [(entry.item, list(entry.crcs)) for entry in entries] == list(zip(items, crcs_of(items), strict=True))


@given(items_lists())
def test_a_whole_tensor_has_its_own_name_and_no_two_entries_share_one(items):
    found = entry_names(items)
    assert len(set(found)) == len(items)
    for item, name in zip(items, found, strict=True):
        is_whole = item.extent == Extent.whole(item.spec.shape) and (item.start, item.stop) == (
            0,
            item.extent.n_elements,
        )
        assert not is_whole or name == item.spec.name


@given(items_lists(), st.data())
def test_any_changed_byte_is_called_corrupt(items, data):
    sealed, record, held = sealed_file(items)
    damaged = bytearray(sealed)
    where = data.draw(st.integers(8, len(sealed) - 1))
    damaged[where] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptError):
        decode(bytes(damaged), record, held)


@given(items_lists(), st.data())
def test_a_header_cut_short_is_called_corrupt(items, data):
    sealed, record, held = sealed_file(items)
    with pytest.raises(CorruptError):
        decode(sealed[: data.draw(st.integers(8, len(sealed) - 1))], record, held)


def reseal(header):
    """Return a header of any content with checksums that fit."""
    zeroed = header[:42] + b"00000000" + header[50:]
    good = zeroed[:42] + b"%08x" % crc32c(zeroed) + zeroed[50:]
    return struct.pack("<Q", len(good)) + good


any_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(items_lists().filter(bool), st.data())
def test_a_lie_with_checksums_that_fit_is_called_corrupt_or_is_harmless(items, data):
    """Replace any value of the header: an error of hpcckpt, or entries that lie inside the file."""
    sealed, _, held = sealed_file(items)
    table = json.loads(sealed[8:])
    document = json.loads(table["__metadata__"]["hpcckpt"])
    name = data.draw(st.sampled_from(sorted(document["entries"])))
    where = data.draw(st.sampled_from([document, document["entries"], document["entries"][name], table, table[name]]))
    key = data.draw(st.sampled_from(sorted(where)))
    assume(key != "__metadata__")
    where[key] = data.draw(any_json)
    table["__metadata__"]["hpcckpt"] = json.dumps(document)
    lie = reseal(json.dumps(table, separators=(",", ":")).encode())
    record = record_of(lie, items)
    try:
        entries = decode(lie, record, held)
    except CorruptError:
        return
    for entry in entries:
        assert 0 <= entry.offset <= entry.offset + entry.nbytes <= record.nbytes
        assert 0 <= entry.item.start <= entry.item.stop <= entry.item.extent.n_elements
        assert entry.item.spec.kind == "per-rank" or entry.item.extent.fits(entry.item.spec.shape)
        assert len(entry.crcs) == block_count(entry.nbytes, held.block_bytes)
        assert 0 <= entry.rank < held.n_ranks


@given(st.binary(max_size=200))
def test_any_other_bytes_are_called_corrupt(junk):
    record = FileRecord("data/x", len(junk) + 8, 0)
    with pytest.raises(CorruptError):
        decode_header(junk, record.nbytes, record, manifest(), crc32c)
    sealed = reseal(b'{"__metadata__":{"hpcckpt.header_crc32c":"00000000"' + junk)
    record = FileRecord("data/x", len(sealed), sealed_crc(sealed))
    with pytest.raises(CorruptError):
        decode_header(sealed[8:], record.nbytes, record, manifest(), crc32c)


@given(st.binary(max_size=12), st.integers(0, 2**40))
def test_a_length_is_bounded_by_the_file_and_by_reason(word, file_bytes):
    try:
        length = header_length(word[:8], file_bytes, "x")
    except CorruptError:
        return
    assert 2 <= length <= min(MAX_HEADER_BYTES, file_bytes - 8)


@pytest.mark.parametrize("length", [0, 1, 2**63, 2**64 - 1, MAX_HEADER_BYTES + 1])
def test_a_length_that_cannot_be_is_called_corrupt(length):
    with pytest.raises(CorruptError, match="header length"):
        header_length(struct.pack("<Q", length), 2**62, "x")


HUGE = {
    "a huge shape": {"global_shape": [2**59], "shape": [2**59], "span": [0, 2**59]},
    "a huge span": {"span": [0, 2**62]},
    "a huge dtype": {"dtype": "|V99999999"},
    "a dtype beyond NumPy": {"dtype": "<U999999999"},
    "huge offsets": {"offset": [2**62]},
    "a million axes": {"global_shape": [1] * 10**5, "shape": [1] * 10**5, "offset": [0] * 10**5},
}


@pytest.mark.parametrize("lie", HUGE)
def test_huge_claims_are_refused_without_allocating(lie):
    item = WriteItem(TensorSpec("x", "int8", (8,)), Extent.whole((8,)), 0, 8)
    sealed, _, held = sealed_file([item])
    table = json.loads(sealed[8:])
    document = json.loads(table["__metadata__"]["hpcckpt"])
    document["entries"]["x"].update(HUGE[lie])
    table["__metadata__"]["hpcckpt"] = json.dumps(document)
    sealed = reseal(json.dumps(table, separators=(",", ":")).encode())
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError):
            decode(sealed, record_of(sealed, [item]), held)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_header_nested_a_million_deep_is_called_corrupt():
    sealed = reseal(b'{"__metadata__":{"hpcckpt.header_crc32c":"00000000"},"x":' + b"[" * 10**6 + b"]" * 10**6 + b"}")
    record = FileRecord("data/x", len(sealed), sealed_crc(sealed))
    with pytest.raises(CorruptError, match="cannot be read"):
        decode(sealed, record, manifest())


def test_a_file_of_another_save_is_named_with_both():
    sealed, record, _ = sealed_file([])
    other = Manifest("b" * 32, "b" * 32, None, 7, 3, "now", "rankfile", 64, (), ())
    with pytest.raises(CorruptError, match=r"belongs to save 'a+', not 'b+'"):
        decode(sealed, record, other)


def test_a_rank_that_the_save_had_not_is_called_corrupt():
    sealed, record, held = sealed_file([], rank=3)
    with pytest.raises(CorruptError, match="3 is not a rank"):
        decode(sealed, record, held)
