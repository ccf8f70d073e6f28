"""The manifest: what goes in comes out, and nothing else is believed."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from hpcckpt.core.plan import FileRecord
from hpcckpt.core.tensors import KINDS, TensorSpec
from hpcckpt.errors import FormatVersionError, HpcckptError, ManifestError, StateError
from hpcckpt.format import manifest as manifests_on_disk
from hpcckpt.format.manifest import MAX_DEPTH, Manifest, decode, encode, validate
from hpcckpt.native import crc32c

pytestmark = pytest.mark.one_case

identities = st.text("0123456789abcdef", min_size=8, max_size=64)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$float", "$$float", "$$$float", "$"]), st.just("nan") | inner, max_size=2)
    ),
    max_leaves=12,
)
tensors = st.builds(
    TensorSpec,
    st.text("abc/xyz_0", min_size=1, max_size=30).filter(lambda name: all(name.split("/"))),
    st.sampled_from(["float32", "bfloat16", "<U5", "bool"]),
    st.lists(st.integers(0, 1000), max_size=4).map(tuple),
    st.sampled_from(KINDS),
)
manifests = st.builds(
    Manifest,
    save_id=identities,
    run_id=identities,
    parent=st.none() | identities,
    step=st.integers(0, 10**18),
    n_ranks=st.integers(1, 100000),
    created=texts,
    backend=st.just("rankfile"),
    block_bytes=st.integers(1, 1 << 30),
    tensors=st.lists(tensors, max_size=5, unique_by=lambda spec: spec.name).map(tuple),
    files=st.integers(0, 4).map(lambda n: tuple(FileRecord(f"data/rank-{i}", i, i) for i in range(n))),
    metrics=st.dictionaries(texts, st.floats(), max_size=4),
    objects=st.fixed_dictionaries({"state": st.dictionaries(texts, json_values, max_size=3)}),
)


def same(a, b):
    """Compare JSON values, NaN being equal to itself, and a list to a tuple."""
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@given(manifests)
def test_a_manifest_comes_back_as_it_was(manifest):
    found = decode(encode(manifest, crc32c), crc32c, "m")
    plain = [name for name in Manifest.__slots__ if name not in {"metrics", "objects"}]
    assert all(getattr(found, name) == getattr(manifest, name) for name in plain)
    assert same(dict(manifest.metrics), dict(found.metrics))
    assert same(dict(manifest.objects), dict(found.objects))


@given(manifests, st.data())
def test_any_changed_byte_is_refused(manifest, data):
    text = bytearray(encode(manifest, crc32c))
    where = data.draw(st.integers(0, len(text) - 1))
    text[where] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ManifestError):
        decode(bytes(text), crc32c, "m")


@given(manifests, st.data())
def test_a_manifest_that_is_cut_short_is_refused(manifest, data):
    text = encode(manifest, crc32c)
    with pytest.raises(ManifestError):
        decode(text[: data.draw(st.integers(0, len(text) - 1))], crc32c, "m")


def manifest_with(**changes):
    tensor = TensorSpec("t", "int8", (2,))
    return replace(Manifest("a" * 8, "b" * 8, None, 1, 1, "now", "rankfile", 1024, (tensor,), ()), **changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"objects": {"state": {"small": 1, "log": "x" * 2000}, "user": {"n": 2}}}, "'log' of the state"),
        ({"objects": {"state": {"small": 1}, "user": {"n": "x" * 2000}}}, "'n' of objects"),
        ({"tensors": tuple(TensorSpec(f"t{n}", "int8", (2,)) for n in range(50))}, "tensors"),
    ],
)
def test_a_manifest_beyond_what_readers_take_is_not_written_and_says_why(monkeypatch, changes, named):
    monkeypatch.setattr(manifests_on_disk, "MAX_MANIFEST_BYTES", 2000)
    with pytest.raises(StateError, match=named):
        encode(manifest_with(**changes), crc32c)


def test_a_manifest_that_readers_would_refuse_is_not_written():
    deep = 0
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(StateError, match=f"objects: nested deeper than {MAX_DEPTH}"):
        encode(manifest_with(objects={"state": {"deep": deep}, "user": {}}), crc32c)


@given(st.dictionaries(st.sampled_from([*Manifest.__slots__, "format", "ranks"]), json_values))
def test_validation_never_raises_and_finds_what_is_missing(document):
    problems = validate(document)
    assert {"save_id", "files"} - set(document) <= {problem.loc for problem in problems}


@given(json_values)
def test_sealed_nonsense_is_a_typed_error(value):
    text = b'{\n "crc32c": "00000000",\n "x": ' + json.dumps(value).encode() + b"}"
    sealed = text[:14] + b"%08x" % crc32c(text) + text[22:]
    with pytest.raises(HpcckptError):
        decode(sealed, crc32c, "m")


def sealed(**changes):
    document = json.loads(encode(manifest_with(), crc32c)) | changes
    text = json.dumps(document, indent=1).encode()
    zeroed = text[:14] + b"00000000" + text[22:]
    return zeroed[:14] + b"%08x" % crc32c(zeroed) + zeroed[22:]


@pytest.mark.parametrize("path", ["data/../../etc/passwd", "/etc/passwd", "data/", "data/a/b", "manifest.json", 7])
def test_a_file_outside_the_data_directory_is_refused(path):
    with pytest.raises(ManifestError, match="not a plain name under data/"):
        decode(sealed(files=[{"path": path, "bytes": 1, "header_crc32c": "0" * 8}]), crc32c, "m")


@pytest.mark.parametrize("name", ["", "../a", "a//b", "/a", "a/..", "a\nb", "__metadata__", "x" * 5000])
def test_a_tensor_name_that_climbs_out_is_refused(name):
    tensor = {"name": name, "dtype": "int8", "shape": [1], "kind": "replicated"}
    with pytest.raises(ManifestError, match="name"):
        decode(sealed(tensors=[tensor]), crc32c, "m")


def test_every_problem_is_named_at_once():
    with pytest.raises(ManifestError) as raised:
        decode(sealed(step=-1, ranks=0, level="perfect"), crc32c, "m")
    assert all(word in str(raised.value) for word in ("step", "ranks", "level"))


def test_a_newer_format_asks_for_an_upgrade():
    with pytest.raises(FormatVersionError, match="upgrade"):
        decode(sealed(format=2), crc32c, "m")
