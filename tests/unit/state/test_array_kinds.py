"""Arrays of every kind come back exactly, or are refused by name when they are saved; nothing changes silently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt.errors import StateError
from hpcckpt.state.tree import flatten

pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")


class Meters(np.ndarray):
    """A subclass whose instances hold more than their elements."""

    unit = "m"


class Labelled:
    """Something that NumPy takes for an array, with labels that it does not see."""

    labels = ("a", "b")
    dtype, shape = np.dtype("f8"), (2,)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.zeros(2)


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def _memmap(mode: str) -> Any:
    def make(tmp_path: Any) -> Any:
        np.arange(6, dtype="f8").tofile(tmp_path / "values")
        return np.memmap(tmp_path / "values", "f8", mode)

    return make


KEPT = {
    "matrix": lambda _: np.matrix([[1.0, 2.0], [3.0, 4.0]]),
    "a matrix that cannot be written": lambda _: _read_only(np.matrix([[1.0, 2.0], [3.0, 4.0]])),
    "a matrix in Fortran's order": lambda _: np.asfortranarray(np.matrix([[1.0, 2.0], [3.0, 4.0]])),
    "recarray of plain elements": lambda _: np.arange(4.0).view(np.recarray),
    "chararray": lambda _: np.char.array([b"ab", b"c"]),
    "memmap": _memmap("r+"),
    "memmap with copy on write": _memmap("c"),
    "big-endian": lambda _: np.arange(5, dtype=">f4"),
    "big-endian, not writable": lambda _: _read_only(np.arange(5, dtype=">f4")),
    "long double": lambda _: np.array([1, np.pi, np.inf, np.nan], np.longdouble),
    "complex long double": lambda _: np.array([1 + 2j, np.nan], np.clongdouble),
    "dates": lambda _: np.array(["2026-11-23", "NaT"], "M8[s]"),
    "durations": lambda _: np.array([5, "NaT"], "m8[ns]"),
    "text": lambda _: np.array(["é", "", "abc"]),
    "bytes": lambda _: np.array([b"\0a", b"", b"abc"]),
    "void": lambda _: np.array([b"a\0b", b"abc"], "V3"),
    "no axes": lambda _: np.array(0.1),
    "no elements": lambda _: np.empty((0, 3), "i2"),
    "reversed": lambda _: np.arange(6)[::-1],
    "float32 scalar": lambda _: np.float32(0.1),
    "text scalar": lambda _: np.str_("é"),
    "bytes scalar": lambda _: np.bytes_(b"a\0b"),
    "void scalar": lambda _: np.void(b"a\0"),
    "date scalar": lambda _: np.datetime64("NaT", "us"),
    "half": lambda _: np.array([0.1, np.nan], "f2"),
}


def _content(value: Any) -> Any:
    return type(value), value.dtype, value.shape, np.asarray(value).tobytes()


def _cleared(value: Any) -> Any:
    """Return the same thing with other values."""
    if isinstance(value, np.str_ | np.bytes_):
        return type(value)(value[:1] * len(value)) if isinstance(value, np.str_) else np.bytes_(b"x" * len(value))
    if isinstance(value, np.generic):
        return np.zeros((), value.dtype)[()]
    new = value.copy("K")
    if isinstance(value, np.memmap):
        new = np.memmap(value.filename, value.dtype, "c", shape=value.shape)
    np.asarray(new)[...] = np.zeros((), value.dtype)
    new.flags.writeable = value.flags.writeable
    return new


@pytest.mark.filterwarnings("ignore:The chararray class:DeprecationWarning")
@pytest.mark.parametrize("wrap", ["plain", "root", "per-rank", "sharded"])
@pytest.mark.parametrize("kind", KEPT)
def test_an_array_comes_back_with_its_class_dtype_and_bytes(run_dir, tmp_path, kind, wrap):
    value = KEPT[kind](tmp_path)
    if wrap == "sharded" and (isinstance(value, np.generic) or value.ndim == 0):
        pytest.skip("a shard has axes")
    wrappers = {
        "plain": lambda x: x,
        "root": hc.RootOnly,
        "per-rank": hc.PerRank,
        "sharded": lambda x: hc.Sharded(x, x.shape, (0,) * x.ndim),
    }
    before, target = _content(value), _cleared(value)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"x": wrappers[wrap](value)}).result()
    state = {"x": wrappers[wrap](target)}
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(state)
    found = state["x"]
    found = found if wrap == "plain" else found.array if wrap == "sharded" else found.value
    if wrap == "per-rank" and isinstance(value, np.memmap):
        found = found.view(np.memmap)  # the values; a rank's own array is a new one
    assert _content(found) == before
    if wrap != "per-rank" and not isinstance(value, np.generic) and value.flags.writeable:
        assert found is target


REFUSED = {
    "masked array": (lambda: np.ma.array([1.0, 2.0], mask=[0, 1]), "numpy.ma.getmaskarray"),
    "masked array without a mask": (lambda: np.ma.array([1.0, 2.0]), "numpy.ma.getmaskarray"),
    "masked element": (lambda: np.ma.masked, "numpy.ma.getmaskarray"),
    "masked record": (lambda: np.ma.array([(1, 2)], "i4,i4")[0], "numpy.ma"),
    "other subclass": (lambda: np.arange(3.0).view(Meters), "Meters is a subclass of numpy.ndarray"),
    "array-like": (Labelled, "Labelled"),
    "structured": (lambda: np.zeros(2, [("a", "f4"), ("b", "i4")]), "split it into plain arrays"),
    "structured record": (lambda: np.rec.array([(1, 2.0)]), "split it into plain arrays"),
    "structured scalar": (lambda: np.zeros(1, [("a", "f4")])[0], "split it into plain arrays"),
    "objects": (lambda: np.array([None, 1]), "split it into plain arrays"),
    "text that ends with zeros": (lambda: np.str_("a\0"), "ends with zeros"),
    "bytes that end with zeros": (lambda: np.bytes_(b"a\0"), "ends with zeros"),
    "memoryview": (lambda: memoryview(b"abc"), "memoryview"),
    "bytearray": (lambda: bytearray(b"abc"), "bytearray"),
    "complex": (lambda: 1j, "complex"),
}
WRAPPERS = {
    "plain": lambda x: x,
    "in a list": lambda x: [x, np.zeros(1)],
    "root": hc.RootOnly,
    "per-rank": hc.PerRank,
    "sharded": lambda x: hc.Sharded(x, np.shape(x), (0,) * np.ndim(x)),
}


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_lose_something_is_refused_by_name(run_dir, kind, wrap):
    make, text = REFUSED[kind]
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateError) as refused:
        ckpt.save(1, {"x": WRAPPERS[wrap](make())})
    if wrap in {"plain", "in a list"}:
        assert text in str(refused.value)
        assert "x" in str(refused.value)


def test_a_list_in_a_shard_is_refused_for_it_would_not_be_restored(run_dir):
    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateError, match=r"builtins.list is not a NumPy array"):
        ckpt.save(1, {"x": hc.Sharded([1.0, 2.0], (2,), (0,))})


def test_a_masked_array_in_a_state_dict_is_refused(run_dir):
    class Loader:
        def state_dict(self):
            return {"seen": {"values": np.ma.array([1.0], mask=[1])}}

        def load_state_dict(self, state):
            raise AssertionError

    with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateError, match=r"MaskedArray"):
        ckpt.save(1, {"loader": Loader()})


@pytest.mark.tf
@pytest.mark.stack_b
def test_tensors_of_tensorflow_that_are_not_dense_are_refused(run_dir):
    tf = pytest.importorskip("tensorflow")
    for value in (
        tf.constant([1.0]),
        tf.sparse.from_dense([[1.0, 0.0]]),
        tf.ragged.constant([[1.0], []]),
        tf.IndexedSlices(tf.constant([1.0]), tf.constant([0])),
    ):
        with hc.Checkpointer(run_dir) as ckpt, pytest.raises(StateError, match="x: "):
            ckpt.save(1, {"x": value})


GENERATORS = {
    "Generator": np.random.default_rng(1),
    "RandomState": np.random.RandomState(1),
    "its state": np.random.RandomState(1).get_state(),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_random_generator_given_as_it_is_names_what_can_be_saved(kind):
    with pytest.raises(StateError, match=r"PerRank\(rng\.bit_generator\.state\)"):
        flatten({"rng": hc.PerRank(GENERATORS[kind])})


def test_a_shard_with_a_number_in_place_of_a_tuple_names_the_tuple():
    with pytest.raises(StateError, match=r"offset must be a tuple, such as \(4,\)"):
        hc.Sharded(np.zeros(4), (8,), 4)
