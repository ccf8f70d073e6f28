"""What all layers share: names, dtype tokens, step names, options, extents."""

from __future__ import annotations

import contextlib
import math
import string

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from hypothesis.extra import numpy as hnp

from hpcckpt.core.dtypes import dtype_token, numpy_dtype
from hpcckpt.core.options import Best, Options, parse_best
from hpcckpt.core.tensors import ITEMSIZE, MAX_NBYTES, Extent, TensorSpec, itemsize, name_problem
from hpcckpt.errors import ConfigError, OptionError, StateError
from hpcckpt.format import layout
from hpcckpt.format.manifest import Manifest, shape_problem
from hpcckpt.rundir.discovery import StepInfo
from hpcckpt.rundir.retention import steps_to_keep

pytestmark = pytest.mark.one_case

# -- names ---------------------------------------------------------------------------------------


@given(st.lists(st.text(string.ascii_letters + "äß€ .[]@:#~'\"\\", min_size=1), min_size=1, max_size=4))
def test_names_of_printable_parts_are_allowed(parts):
    assume(not {".", ".."} & set(parts) and sum(map(len, parts)) < 1000)
    assert name_problem("/".join(parts)) is None


@given(st.text(max_size=50))
def test_a_name_that_is_allowed_can_be_a_path_and_can_be_written(name):
    if name_problem(name) is None:
        assert not name.startswith("/")
        assert not {"", ".", ".."} & set(name.split("/"))
        assert "\0" not in name
        name.encode()


# -- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ITEMSIZE)
def test_every_named_dtype_has_its_size(token):
    if token != "bool" and not hasattr(np, token) and not hasattr(ml_dtypes, token):
        with pytest.raises(ConfigError, match="ml_dtypes"):
            numpy_dtype(token)
        return
    dtype = numpy_dtype(token)
    assert dtype.itemsize == ITEMSIZE[token]
    assert dtype_token(dtype) == token


@given(hnp.array_dtypes() | hnp.scalar_dtypes() | hnp.unicode_string_dtypes() | hnp.byte_string_dtypes())
def test_a_dtype_that_has_a_token_comes_back_in_little_endian(dtype):
    try:
        token = dtype_token(dtype)
    except StateError:
        assert dtype.names or dtype.subdtype or dtype.hasobject
        return
    assert numpy_dtype(token) == dtype.newbyteorder("<")
    assert itemsize(token) == dtype.itemsize


type_strings = st.from_regex(r"[<|>=]?[a-zA-Z][0-9]{0,10}(\[[0-9]{0,7}[a-zA-Z]{0,2}\])?", fullmatch=True)


@given(type_strings | st.text(max_size=12))
def test_a_token_that_is_accepted_is_one_that_numpy_knows_by_that_size(token):
    try:
        size = itemsize(token)
    except ValueError:
        with pytest.raises(ValueError, match="unknown dtype"):
            numpy_dtype(token)
        return
    try:
        assert numpy_dtype(token).itemsize == size >= 0
    except ConfigError:
        assert token in ITEMSIZE or token[1:] in {"f16", "c32"}


@pytest.mark.parametrize("dtype", ["O", [("x", "i4")], "(2,)i4", "V0", ml_dtypes.int4])
def test_a_dtype_without_a_plain_form_is_refused(dtype):
    with pytest.raises(StateError, match="cannot be saved"):
        dtype_token(np.dtype(dtype))


# -- shapes --------------------------------------------------------------------------------------


@given(st.sampled_from(["int8", "complex128", "<U7", "|V0"]), st.lists(st.integers(0, 2**61), max_size=32))
def test_a_shape_that_is_accepted_can_be_that_of_an_array(token, shape):
    if shape_problem(token, shape) is None:
        dtype = numpy_dtype(token)
        strided = np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, [0] * len(shape))  # takes no memory
        assert math.prod(shape) * dtype.itemsize <= MAX_NBYTES
        assert strided.shape == tuple(shape)


@given(st.lists(st.tuples(st.integers(-2, 6), st.integers(-2, 6), st.integers(0, 6)), max_size=3))
def test_an_extent_fits_if_every_element_of_it_is_in_the_tensor(sides):
    extent = Extent(tuple(o for o, _, _ in sides), tuple(n for _, n, _ in sides))
    inside = all(o >= 0 and n >= 0 and o + n <= limit for o, n, limit in sides)
    assert extent.fits(tuple(limit for _, _, limit in sides)) == inside
    assert not extent.fits((1,) * (len(sides) + 1))


# -- directory names -----------------------------------------------------------------------------


@given(st.integers(0, layout.MAX_STEP))
def test_a_step_is_found_under_its_name(step):
    assert layout.parse_step(layout.step_dirname(step)) == step


@given(st.text(max_size=30) | st.from_regex(r"step-[0-9]{1,20}.?", fullmatch=True))
def test_a_directory_is_a_step_only_under_the_name_we_give_it(name):
    step = layout.parse_step(name)
    assert step is None or layout.step_dirname(step) == name


@given(st.integers(0, layout.MAX_STEP))
def test_directories_that_are_no_steps_are_hidden_and_told_apart(step):
    nonce = layout.new_nonce()
    temporary = layout.staging_dirname(nonce), f".{layout.step_dirname(step)}.tmp-{nonce}"  # of older versions
    retired = layout.retired_dirname(nonce)
    kept = layout.bad_dirname(nonce), layout.aside_dirname(step, nonce)
    assert all(name.startswith(".") and layout.parse_step(name) is None for name in (*temporary, retired, *kept))
    assert [layout.is_temporary(name) for name in (*temporary, retired)] == [True, True, False]
    assert [layout.is_retired(name) for name in (*temporary, retired)] == [False, False, True]
    assert not any(layout.is_temporary(name) or layout.is_retired(name) for name in kept)


def test_steps_sort_by_name_as_by_number():
    steps = [0, 1, 9, 10, 99, 10**9, 10**10 - 1]
    assert sorted(map(layout.step_dirname, steps)) == [layout.step_dirname(step) for step in steps]


# -- options -------------------------------------------------------------------------------------

anything = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)


@given(st.dictionaries(st.sampled_from(sorted(set(Options.__slots__) - {"backend"})), anything))
def test_checking_options_never_raises_anything_else(options):
    given = Options(**options)
    if given.problems():
        with pytest.raises(OptionError, match=r"^options\.\w+"):
            given.check()
        return
    checked = given.check()
    assert checked.max_to_keep is None or checked.max_to_keep >= 1
    assert checked.threads >= 0


@given(anything)
def test_reading_what_is_best_raises_nothing_but_option_errors(value):
    with contextlib.suppress(OptionError):
        parse_best(value)


@pytest.mark.parametrize(
    ("text", "best", "largest"),
    [
        ("val_loss", Best("val_loss"), False),
        ("val_accuracy", Best("val_accuracy"), True),
        ("min:val_accuracy", Best("val_accuracy", "min"), False),
        ("max:reward", Best("reward", "max"), True),
        ("max:reward:3", Best("reward", "max", 3), True),
        ("loss:3", Best("loss", "auto", 3), False),
        ("min:a:b", Best("a:b", "min"), False),
    ],
)
def test_what_is_best_is_read_from_a_text(text, best, largest):
    assert parse_best(text) == best
    assert best.largest is largest


# -- retention, decided ---------------------------------------------------------------------------


def info(step, loss, is_whole):
    manifest = Manifest(
        "a" * 8, "a" * 8, None, step, 1, "", "rankfile", 1, (TensorSpec("x", "int8", ()),), (), {"loss": loss}
    )
    return StepInfo(step, None, manifest if is_whole else None, "" if is_whole else "damaged")


step_lists = st.dictionaries(st.integers(0, 60), st.tuples(st.floats(), st.booleans()), max_size=20).map(
    lambda found: tuple(info(step, *found[step]) for step in sorted(found))
)
rules = st.builds(
    Options,
    st.none() | st.integers(1, 5),
    st.none() | st.builds(Best, st.just("loss"), st.sampled_from(["min", "max"]), st.integers(1, 3)),
    st.none() | st.integers(1, 10),
)


@given(step_lists, rules, st.sets(st.integers(0, 60)))
def test_what_must_stay_stays(steps, options, pinned):
    kept = steps_to_keep(steps, options, pinned)
    whole = [i.step for i in steps if i.is_restorable]
    assert {i.step for i in steps if not i.is_restorable} <= kept, "damaged steps are evidence"
    assert pinned <= kept
    assert not whole or whole[-1] in kept, "the newest"
    assert set(whole[-(options.max_to_keep or len(whole)) :] if whole else []) <= kept
    if options.keep_period:
        assert {step for step in whole if step % options.keep_period == 0} <= kept


@given(step_lists, rules)
def test_nothing_stays_without_a_reason(steps, options):
    kept = steps_to_keep(steps, options, set())
    whole = [i.step for i in steps if i.is_restorable]
    most = len(whole) if options.max_to_keep is None else options.max_to_keep
    most += options.keep_best.count if options.keep_best else 0
    most += len({step for step in whole if options.keep_period and step % options.keep_period == 0})
    assert len(kept & set(whole)) <= most


@given(step_lists, st.sampled_from(["min", "max"]))
def test_the_best_step_stays(steps, mode):
    kept = steps_to_keep(steps, Options(1, Best("loss", mode)), set())
    losses = {
        i.manifest.metrics["loss"]: i.step
        for i in steps
        if i.is_restorable and math.isfinite(i.manifest.metrics["loss"])
    }
    if losses:
        best = (min if mode == "min" else max)(losses)
        assert losses[best] in kept
