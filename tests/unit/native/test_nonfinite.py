"""Counting NaN and infinity, against NumPy and ml_dtypes."""

from __future__ import annotations

from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.tensors import ITEMSIZE

pytestmark = pytest.mark.one_case

FLOATS = [token for token in ITEMSIZE if "float" in token or "complex" in token]
KNOWN = [token for token in FLOATS if hasattr(np, token) or hasattr(ml_dtypes, token)]
OTHERS = ["int8", "uint16", "int32", "uint64", "bool", "<U5", "|S3", "<M8[ns]", "|V16", "float8_e4m3b11"]


def count_with_numpy(values: np.ndarray) -> int:
    with np.errstate(invalid="ignore"):  # ml_dtypes warns of the signalling ones
        return int(np.count_nonzero(~np.isfinite(values)))


def random_values(token: str, n: int, n_odd: int, seed: int) -> np.ndarray:
    """Finite values of all magnitudes, and at random places whatever bits come."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(n).astype(numpy_dtype(token))
    raw = values.view(np.uint8).reshape(n, -1)
    raw[rng.integers(0, n, n_odd)] = rng.integers(0, 256, (n_odd, raw.shape[1]), np.uint8) | rng.choice(
        np.array([0, 0xFF], np.uint8), (n_odd, raw.shape[1])
    )
    return values


@pytest.mark.parametrize("token", [t for t in KNOWN if ITEMSIZE[t] <= 2])
def test_every_bit_pattern_is_judged_as_numpy_does(io: ModuleType, token: str) -> None:
    values = np.arange(1 << 8 * ITEMSIZE[token], dtype=np.uint32).astype(f"u{ITEMSIZE[token]}")
    expected = count_with_numpy(values.view(numpy_dtype(token)))
    assert io.count_nonfinite(values, token) == expected
    for value in values[:: max(1, len(values) // 512)]:
        assert io.count_nonfinite(value.tobytes(), token) == count_with_numpy(value.view(numpy_dtype(token)))


@pytest.mark.parametrize("token", KNOWN)
@given(
    n=st.integers(1, 3000),
    n_odd=st.integers(0, 40),
    shift=st.integers(0, 7),
    threads=st.integers(1, 4),
    seed=st.integers(0),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_counts_agree_with_numpy(
    io: ModuleType, token: str, n: int, n_odd: int, shift: int, threads: int, seed: int
) -> None:
    values = random_values(token, n, n_odd, seed)
    memory = bytearray(shift) + values.tobytes()  # not aligned, most of the time
    assert io.count_nonfinite(memoryview(memory)[shift:], token, threads) == count_with_numpy(values)


@pytest.mark.parametrize("token", KNOWN)
@pytest.mark.parametrize("nbytes", [(1 << 20) - 16, 1 << 20, (1 << 20) + 16, (3 << 20) + 4096])
def test_the_first_and_the_last_of_many_are_seen(io: ModuleType, token: str, nbytes: int) -> None:
    values = np.ones(nbytes // ITEMSIZE[token], numpy_dtype(token))
    assert io.count_nonfinite(values, token, 3) == 0
    for place in (0, -1, 4096 // ITEMSIZE[token], len(values) // 2):
        values[place] = np.nan
        assert count_with_numpy(values[place : place + 1 or None]) == 1
        assert io.count_nonfinite(values, token, 3) == 1, place
        values[place] = 1


@pytest.mark.parametrize("token", KNOWN)
def test_where_nothing_is_finite_all_is_counted(io: ModuleType, token: str) -> None:
    values = np.full(300_001, np.nan, numpy_dtype(token))
    assert io.count_nonfinite(values, token, 2) == 300_001


@pytest.mark.parametrize("values", [[complex(np.nan, 0)], [complex(0, -np.inf)], [complex(np.inf, np.nan)]])
def test_a_complex_number_counts_once(io: ModuleType, values: list[complex]) -> None:
    for dtype in (np.complex64, np.complex128):
        assert io.count_nonfinite(np.array([1, *values, 2j], dtype), np.dtype(dtype).name) == 1


@pytest.mark.parametrize("token", [t for t in OTHERS if t not in FLOATS])
def test_in_other_types_nothing_is_counted(io: ModuleType, token: str) -> None:
    assert io.count_nonfinite(b"\xff" * 480, token) == 0


def test_nothing_has_none_and_half_an_element_is_refused(io: ModuleType) -> None:
    assert io.count_nonfinite(b"", "float32") == 0
    for nbytes, token in [(7, "float32"), (8, "complex128"), (4, "complex64"), (1, "bfloat16")]:
        with pytest.raises(ValueError, match=f"{nbytes} bytes are no whole number of {token}"):
            io.count_nonfinite(bytes(nbytes), token)
    with pytest.raises(TypeError, match="bytes-like"):
        io.count_nonfinite(3, "int8")
    with pytest.raises(ValueError, match="threads: 0"):
        io.count_nonfinite(b"", "float32", 0)
