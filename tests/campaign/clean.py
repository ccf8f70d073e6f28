"""Steps that are not damaged: every way to read gives what was saved, and raises no alarm.

One case: a state of random tensors, saved by some number of ranks, in two steps, and read in every way, restored on
another number of ranks.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import hpcckpt as hc
from hpcckpt import cli
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step, rank_name
from hpcckpt.testing.ranks import run_ranks
from tests.campaign._checkpoints import same
from tests.campaign._common import Campaign, Case, Outcome

Values = dict[str, tuple[str, Any]]
"""By name: how ranks share a tensor, and its values; of a per-rank one those of each rank."""
DTYPES = ["bool", "int8", "<i4", "<u8", "<f2", "<f4", "<f8", "<c16", "|S3", "<U4", "<M8[s]", "|V5", ml_dtypes.bfloat16]
SIDES = [0, 1, 1, 2, 3, 5, 8, 13, 21]
KINDS = ["replicated", "replicated", "sharded", "per-rank", "root"]


def run(case: Case) -> Outcome:
    """Save a random state, and read it in every way."""
    directory = case.scratch / "run"
    n_saving, n_restoring = case.rng.randint(1, 4), case.rng.randint(1, 4)
    old, new = (_values(case, n_saving) for _ in range(2))
    _save(directory, n_saving, {1: old, 2: new})
    for step, values in ((1, old), (2, new)):
        path = directory / layout.step_dirname(step)
        _check_loaded(hc.load(path), values)
        damaged = open_step(path).verify()
        assert not damaged, damaged
        _check_command(directory, step)
    _check_restored(directory, n_saving, n_restoring, new)
    return Outcome("good", f"saved by {n_saving}, restored by {n_restoring}")


def _values(case: Case, n_ranks: int) -> Values:
    return {f"group_{n % 3}/t{n}": _value(case, n_ranks) for n in range(case.rng.randint(1, 12))}


def _value(case: Case, n_ranks: int) -> tuple[str, Any]:
    kind, dtype = case.rng.choice(KINDS), np.dtype(case.rng.choice(DTYPES))
    if kind == "per-rank":
        return kind, [_array(case, dtype) for _ in range(n_ranks)]
    return kind, _array(case, dtype, is_long=case.rng.random() < 0.03)


def _array(case: Case, dtype: np.dtype[Any], *, is_long: bool = False) -> Any:
    """Return random bits; text is made of ASCII, for not every number is a character."""
    shape = (
        [1 + (2 << 20) // dtype.itemsize]
        if is_long
        else [case.rng.choice(SIDES) for _ in range(case.rng.randint(0, 3))]
    )
    count = int(np.prod(shape, dtype=np.int64))
    bits = np.frombuffer(case.rng.randbytes(count * dtype.itemsize), np.uint8)
    if dtype.kind == "U":
        return (bits.view(np.uint32) % 128).view(dtype).reshape(shape)
    if dtype.kind == "b":
        return (bits % 2).view(bool).reshape(shape)
    return bits.view(dtype).reshape(shape)


def _part(values: Any, rank: int, n_ranks: int) -> hc.Sharded:
    """Return a rank's share of the first axis."""
    first, last = values.shape[0] * rank // n_ranks, values.shape[0] * (rank + 1) // n_ranks
    offset = (first, *[0] * (values.ndim - 1))
    return hc.Sharded(values[first:last].copy(), values.shape, offset)


def _state(values: Values, rank: int, n_ranks: int, *, is_blank: bool = False) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, (kind, value) in values.items():
        if kind == "per-rank":
            array = value[rank % len(value)]
            state[name] = hc.PerRank(np.zeros_like(array) if is_blank else array.copy())
            continue
        array = np.zeros_like(value) if is_blank else value.copy()
        if kind == "sharded" and array.ndim:
            state[name] = _part(array, rank, n_ranks)
        else:
            state[name] = hc.RootOnly(array) if kind == "root" else array
    return state


def _save(directory: Path, n_ranks: int, steps: dict[int, Values]) -> None:
    def body(comm: Any) -> None:
        with hc.Checkpointer(directory, comm=comm) as ckpt:
            for step, values in steps.items():
                ckpt.save(step, _state(values, comm.rank, comm.size)).result()

    run_ranks(n_ranks, body)


def _check_loaded(loaded: dict[str, Any], values: Values) -> None:
    expected = {}
    for name, (kind, value) in values.items():
        expected |= {rank_name(name, n): v for n, v in enumerate(value)} if kind == "per-rank" else {name: value}
    assert loaded.keys() == expected.keys()
    for name, value in expected.items():
        assert same(loaded[name], value), f"{name} was loaded with other values"


def _check_command(directory: Path, step: int) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = cli.main(["verify", "--quiet", str(directory), str(step)])
    assert code == 0, out.getvalue()


def _check_restored(directory: Path, n_saving: int, n_restoring: int, values: Values) -> None:
    def body(comm: Any) -> None:
        state = _state(values, comm.rank, comm.size, is_blank=True)
        with hc.Checkpointer(directory, comm=comm) as ckpt:
            restored = ckpt.restore(state)
        assert restored.step == 2
        per_rank = any(kind == "per-rank" for kind, _ in values.values())
        assert bool(restored.warnings) == (per_rank and n_saving != n_restoring), restored.warnings
        for name, expected in _state(values, comm.rank, comm.size).items():
            if isinstance(expected, hc.PerRank) and n_saving != n_restoring:
                continue
            assert same(_bare(state[name]), _bare(expected)), f"{name} was restored with other values"

    run_ranks(n_restoring, body)


def _bare(value: Any) -> Any:
    return value.array if isinstance(value, hc.Sharded) else getattr(value, "value", value)


CAMPAIGN = Campaign(
    "clean",
    "What was saved comes back, whatever its types and shapes and on any number of ranks; no reader raises an alarm.",
    full=1_000,
    run=run,
    jobs=2,
    in_memory=True,
)
