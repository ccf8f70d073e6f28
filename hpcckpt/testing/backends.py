"""The promises that every storage backend keeps, as a test class to inherit.

A package with a backend tests it in a few lines::

    from hpcckpt.testing.backends import BackendSuite

    class TestMine(BackendSuite):
        backend = "mine"

and runs ``pytest``.  Three hooks fit the class to a backend: `backend_options`, `damage` and `counts`.
Each test runs on 1, 2, 3 and 5 ranks, which are threads; under ``mpirun -n N pytest --with-mpi`` (pytest-mpi)
once, on the processes of the job.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.backends.base import FEATURES
from hpcckpt.backends.registry import find_backend, load_class
from hpcckpt.core.dtypes import numpy_dtype
from hpcckpt.core.failpoints import PHASES
from hpcckpt.core.tensors import ITEMSIZE, Extent
from hpcckpt.format import layout
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import discovery
from hpcckpt.testing.faults import Fault, InjectedError, armed
from hpcckpt.testing.groups import MpiRanks, ThreadRanks, is_with_mpi, make_ranks

Array = np.ndarray[Any, Any]
Ranks = ThreadRanks | MpiRanks

DTYPES = tuple(token for token in ITEMSIZE if token == "bool" or hasattr(np, token) or hasattr(ml_dtypes, token))
KILL_PHASES = tuple(phase for phase in PHASES if "1-begin" <= phase < "7" or phase in {"0-plan", "8-retired"})
VISIBLE_FROM = "5-published"
LARGE = 3 * 2**20 + 17


def any_bits(token: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Return an array of random bits: NaNs with payloads, infinities, subnormals."""
    rng, dtype = np.random.default_rng(seed), numpy_dtype(token)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape).copy()


def same_bits(a: Array, b: Array) -> bool:
    """Return True if two arrays are bit-identical."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def cut(length: int, n_parts: int, part: int) -> slice:
    """Return one of `n_parts` uneven parts of a length; some may be empty."""
    return slice(length * part**2 // n_parts**2, length * (part + 1) ** 2 // n_parts**2)


def strip(full: Array, comm: Any, axis: int) -> hc.Sharded:
    """Return this rank's uneven part of an array along an axis."""
    own = cut(full.shape[axis], comm.size, comm.rank)
    index = tuple(own if a == axis else slice(None) for a in range(full.ndim))
    return hc.Sharded(full[index].copy(), full.shape, tuple(own.start if a == axis else 0 for a in range(full.ndim)))


class BackendSuite:
    """Tests that every backend must pass. Subclass it, and name the backend.

    Attributes
    ----------
    backend : str
        The name of the backend, as users give it.
    backend_options : mapping
        Hook: options to run with; a property may compute them for each test.
    counts : tuple of int
        Hook: numbers of ranks, as threads. A backend that calls MPI itself has ``(1,)`` here, and is also tested under
        ``mpirun``.
    """

    backend: ClassVar[str] = ""
    backend_options: Mapping[str, Any] = {}
    counts: ClassVar[tuple[int, ...]] = (1, 2, 3, 5)

    def damage(self, step: Path, name: str) -> None:
        """Change one stored byte of a tensor (a hook).

        By default it is found by the index of the backend.

        Parameters
        ----------
        step : pathlib.Path
            A step directory.
        name : str
            A tensor.
        """
        entry = next(entry for entry in open_step(step).index[name] if entry.nbytes)
        with (step / entry.file).open("r+b") as file:
            file.seek(entry.offset + entry.nbytes // 2)
            found = file.read(1)
            if not found:
                where = f"the index of backend {self.backend!r} does not say where {name!r} lies"
                pytest.fail(f"{where}: override damage(step, name)")
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([found[0] ^ 0x10]))

    # -- what the tests are made of ----------------------------------------------------------------

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test with all numbers of ranks."""
        if "suite_ranks" in metafunc.fixturenames:
            counts: tuple[Any, ...] = ("mpi",) if is_with_mpi(metafunc.config) else self.counts
            metafunc.parametrize("suite_ranks", counts, indirect=True, ids=lambda n: f"n={n}")

    @pytest.fixture
    def suite_ranks(self, request: pytest.FixtureRequest) -> Ranks:
        """Return the ranks to run a function on."""
        return make_ranks(request.param)

    @pytest.fixture
    def run(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        """Return a run directory, not yet created, that all ranks share."""
        if not is_with_mpi(request.config):
            return tmp_path / "run"
        from hpcckpt.collective.mpi import world

        return world().bcast(tmp_path / "run")

    def open(self, run: Path, comm: Any, **options: Any) -> hc.Checkpointer:
        """Return a checkpointer with this backend."""
        return hc.Checkpointer(run, comm=comm, backend=self.backend, backend_options=self.backend_options, **options)

    def save_all(self, ranks: Ranks, run: Path, make: Callable[[Any, int], Any], n: int = 1, **options: Any) -> None:
        """Save the steps 1 to `n` of what `make` returns for a rank and a step."""

        def body(comm: Any) -> None:
            with self.open(run, comm, **options) as ckpt:
                for step in range(1, n + 1):
                    ckpt.save(step, make(comm, step)).result()

        ranks(body)

    def round_trip(self, ranks: Ranks, run: Path, make: Callable[[Any, int], Any]) -> list[Any]:
        """Save ``make(comm, 1)``, restore into ``make(comm, 0)``; return the latter.

        The result has one entry for each rank.
        """

        def body(comm: Any) -> Any:
            target = make(comm, 0)
            with self.open(run, comm) as ckpt:
                ckpt.save(1, make(comm, 1)).result()
                assert ckpt.restore(target).warnings == ()
            return target

        return ranks(body)

    # -- what it says of itself --------------------------------------------------------------------

    def test_it_names_features_that_there_are(self) -> None:
        assert load_class(find_backend(self.backend)).features <= FEATURES

    def test_an_option_it_does_not_have_is_refused_by_name_on_every_rank(self, suite_ranks: Ranks, run: Path) -> None:
        def body(comm: Any) -> str:
            options = {**self.backend_options, "no_such_option": 1}
            with pytest.raises(errors.OptionError, match="no_such_option") as caught:
                hc.Checkpointer(run, comm=comm, backend=self.backend, backend_options=options)
            return str(caught.value)

        assert len(set(suite_ranks(body))) == 1

    def test_the_manifest_names_it(self, suite_ranks: Ranks, run: Path) -> None:
        self.save_all(suite_ranks, run, lambda comm, step: {"w": np.ones(5)})
        assert discovery.read_manifest(run / layout.step_dirname(1)).backend == self.backend

    # -- what goes in comes out --------------------------------------------------------------------

    def test_every_dtype_comes_back_to_the_bit(self, suite_ranks: Ranks, run: Path) -> None:
        expected = {f"x/{token}": any_bits(token, (13, 7)) for token in DTYPES}

        def make(comm: Any, step: int) -> dict[str, Array]:
            return {name: array.copy() if step else np.zeros_like(array) for name, array in expected.items()}

        for target in self.round_trip(suite_ranks, run, make):
            assert [name for name in expected if not same_bits(target[name], expected[name])] == []
        loaded = hc.load(run)
        assert [name for name in expected if not same_bits(loaded[name], expected[name])] == []

    def test_scalars_and_empty_tensors_come_back(self, suite_ranks: Ranks, run: Path) -> None:
        shapes: list[tuple[int, ...]] = [(), (1,), (0,), (3, 0), (0, 5, 2), (1, 1, 1, 1, 1)]

        def make(comm: Any, step: int) -> dict[str, Array]:
            return {f"x{number}": np.full(shape, 3.5 * step) for number, shape in enumerate(shapes)}

        for target in self.round_trip(suite_ranks, run, make):
            assert all(same_bits(target[name], array) for name, array in make(None, 1).items())

    def test_any_memory_layout_can_be_saved(self, suite_ranks: Ranks, run: Path) -> None:
        base = np.arange(12 * 10, dtype=np.float64).reshape(12, 10)
        layouts = {"t": base.T, "gaps": base[::2, ::3], "back": base[::-1], "big": base.astype(">f8")}

        def make(comm: Any, step: int) -> dict[str, Array]:
            return layouts if step else {name: np.zeros(array.shape) for name, array in layouts.items()}

        for target in self.round_trip(suite_ranks, run, make):
            assert all(np.array_equal(target[name], array) for name, array in layouts.items())

    def test_tensors_of_many_blocks_come_back(self, suite_ranks: Ranks, run: Path) -> None:
        expected = {"a": any_bits("uint8", (LARGE,), 1), "b": any_bits("float32", (1000, 1001), 2)}

        def make(comm: Any, step: int) -> dict[str, Array]:
            return expected if step else {name: np.zeros_like(array) for name, array in expected.items()}

        for target in self.round_trip(suite_ranks, run, make):
            assert all(same_bits(target[name], array) for name, array in expected.items())

    @pytest.mark.parametrize("name", ["a/b/c", "ünï/€", "with space", "a[0:3]", "x@0:5", "x" * 500, "'\"\\", "#1"])
    def test_names_are_free_text(self, suite_ranks: Ranks, run: Path, name: str) -> None:
        for target in self.round_trip(suite_ranks, run, lambda comm, step: {name: np.arange(50) * step}):
            assert target[name].tolist() == list(range(50))

    def test_a_tensor_and_a_group_of_tensors_may_have_one_name(self, suite_ranks: Ranks, run: Path) -> None:
        names = ["a", "a/b", "a/b/c"]
        for target in self.round_trip(suite_ranks, run, lambda comm, s: {n: np.full(3, s * len(n)) for n in names}):
            assert {name: array.tolist() for name, array in target.items()} == {n: [len(n)] * 3 for n in names}

    def test_objects_and_metrics_come_back(self, suite_ranks: Ranks, run: Path) -> None:
        def body(comm: Any) -> Any:
            with self.open(run, comm) as ckpt:
                ckpt.save(1, {"w": np.ones(2), "epoch": 7}, metrics={"loss": 0.5}, objects={"lr": [0.1, None]}).result()
                target = {"w": np.zeros(2), "epoch": 0}
                restored = ckpt.restore(target)
            return target["epoch"], restored.metrics, restored.objects

        assert suite_ranks(body) == [(7, {"loss": 0.5}, {"lr": [0.1, None]})] * suite_ranks.size

    # -- ranks -------------------------------------------------------------------------------------

    def test_values_of_each_rank_come_back_and_may_change_their_size(self, suite_ranks: Ranks, run: Path) -> None:
        def make(comm: Any, step: int) -> dict[str, Any]:
            length = step * (comm.rank + 3)
            text = "x" * (100 * length)
            return {"rng": hc.PerRank(np.full((length, 2), comm.rank)), "it": hc.PerRank({"at": step, "text": text}),
                    "w": np.full(7, float(step))}  # fmt: skip

        def body(comm: Any) -> None:
            with self.open(run, comm) as ckpt:
                for step in (1, 2, 4):
                    ckpt.save(step, make(comm, step)).result()
                target = make(comm, 2)
                ckpt.restore(target)
            assert same_bits(target["rng"].value, make(comm, 4)["rng"].value)
            assert target["it"].value == make(comm, 4)["it"].value
            assert target["w"].tolist() == [4.0] * 7

        suite_ranks(body)

    def test_what_only_root_has_comes_back_on_every_rank(self, suite_ranks: Ranks, run: Path) -> None:
        def make(comm: Any, step: int) -> dict[str, Any]:
            return {"mean": hc.RootOnly(np.full(4, float(step * (comm.rank + 1)))), "w": np.ones(2)}

        for target in self.round_trip(suite_ranks, run, make):
            assert target["mean"].value.tolist() == [1.0] * 4

    @pytest.mark.parametrize("axis", [0, 1, 2])
    @pytest.mark.parametrize("n_readers", [1, 2, 5])
    def test_shards_are_read_by_any_number_of_ranks_cut_otherwise(
        self, suite_ranks: Ranks, run: Path, axis: int, n_readers: int
    ) -> None:
        full = any_bits("int64", (23, 17, 3), 3)
        self.save_all(suite_ranks, run, lambda comm, step: {"x": strip(full, comm, axis), "all": full})

        def read(comm: Any) -> None:
            own, every = strip(np.zeros_like(full), comm, (axis + 1) % 3), np.zeros_like(full)
            with self.open(run, comm) as ckpt:
                ckpt.restore({"x": own, "all": every})
            assert same_bits(own.array, strip(full, comm, (axis + 1) % 3).array)
            assert same_bits(every, full)

        suite_ranks.sub(n_readers, read)
        assert same_bits(hc.load(run)["x"], full)

    def test_replicated_tensors_are_written_once(self, suite_ranks: Ranks, run: Path) -> None:
        state = {f"x{number}": np.zeros(1000 * number) for number in range(10)}

        def body(comm: Any) -> int:
            with self.open(run, comm) as ckpt:
                return ckpt.save(1, state).result().nbytes

        assert suite_ranks(body) == [sum(array.nbytes for array in state.values())] * suite_ranks.size

    # -- without ranks -----------------------------------------------------------------------------

    def test_parts_can_be_read_by_name_and_box(self, suite_ranks: Ranks, run: Path) -> None:
        full = any_bits("float32", (600, 700), 4)
        self.save_all(suite_ranks, run, lambda comm, step: {"a/x": strip(full, comm, 0), "b": np.ones(3)})
        assert list(hc.load(run, "a/*")) == ["a/x"]
        box = open_step(run).load("a/x", Extent((100, 33), (450, 500)))
        assert same_bits(box, full[100:550, 33:533].copy())

    def test_every_byte_is_verified_and_sound(self, suite_ranks: Ranks, run: Path) -> None:
        self.save_all(suite_ranks, run, lambda comm, step: {"x": any_bits("uint8", (LARGE,)), "y": np.ones(3)})
        seen: list[int] = []
        assert open_step(run).verify(seen.append) == []
        assert sum(seen) == LARGE + 24

    # -- step after step ---------------------------------------------------------------------------

    def test_each_step_holds_its_own_values(self, suite_ranks: Ranks, run: Path) -> None:
        def make(comm: Any, step: int) -> dict[str, Any]:
            return {"x": any_bits("uint8", (LARGE,), step), "s": strip(any_bits("int32", (40, 50), step), comm, 1)}

        self.save_all(suite_ranks, run, make, 5, max_to_keep=2)
        for step in (4, 5):
            loaded = hc.load(run / layout.step_dirname(step))
            assert same_bits(loaded["x"], any_bits("uint8", (LARGE,), step))
            assert same_bits(loaded["s"], any_bits("int32", (40, 50), step))

    def test_what_changes_after_save_does_not_reach_the_step(self, suite_ranks: Ranks, run: Path) -> None:
        def body(comm: Any) -> None:
            state = {"x": np.full(500_000, 1.0)}
            with self.open(run, comm) as ckpt:
                for step in range(1, 5):
                    state["x"][:] = step
                    ckpt.save(step, state)
                    state["x"][:] = -1.0

        suite_ranks(body)
        assert np.all(hc.load(run)["x"] == 4.0)

    def test_a_state_may_grow_and_shrink(self, suite_ranks: Ranks, run: Path) -> None:
        def make(comm: Any, step: int) -> dict[str, Any]:
            full = any_bits("int16", (11 * step, 9), step)
            names = [f"x{number}" for number in range(4) if (step + number) % 3]
            return {"s": strip(full, comm, step % 2), **{name: np.full(step * 100, step) for name in names}}

        def body(comm: Any) -> None:
            with self.open(run, comm, max_to_keep=2) as ckpt:
                for step in range(1, 7):
                    ckpt.save(step, make(comm, step)).result()
                    target = make(comm, step)
                    for value in target.values():
                        getattr(value, "array", value)[...] = 0
                    ckpt.restore(target, step=step)
                    for name, value in make(comm, step).items():
                        found = target[name]
                        assert same_bits(getattr(found, "array", found), getattr(value, "array", value))

        suite_ranks(body)

    def test_two_saves_may_be_under_way(self, suite_ranks: Ranks, run: Path) -> None:
        def body(comm: Any) -> None:
            with self.open(run, comm, max_in_flight=2, max_to_keep=None) as ckpt:
                for step in range(1, 7):
                    ckpt.save(step, {"x": np.full(300_000, step, np.int32)})

        suite_ranks(body)
        for step in range(1, 7):
            assert np.all(hc.load(run / layout.step_dirname(step))["x"] == step)

    def test_overwriting_replaces_the_step(self, suite_ranks: Ranks, run: Path) -> None:
        def body(comm: Any) -> None:
            with self.open(run, comm) as ckpt:
                ckpt.save(1, {"x": np.zeros(1000)}).result()
                ckpt.save(1, {"x": np.ones(1000)}, overwrite=True).result()

        suite_ranks(body)
        assert hc.load(run)["x"].sum() == 1000

    def test_steps_are_incremental_or_the_option_is_refused(self, suite_ranks: Ranks, run: Path) -> None:
        def body(comm: Any) -> bool:
            try:
                with self.open(run, comm, incremental=True) as ckpt:
                    for step in (1, 2, 3):
                        ckpt.save(step, {"x": np.full(1000, step)}).result()
            except errors.OptionError:
                return False
            return True

        is_able = "incremental" in load_class(find_backend(self.backend)).features
        assert suite_ranks(body) == [is_able] * suite_ranks.size
        if is_able:
            assert np.all(hc.load(run)["x"] == 3)

    # -- when things go wrong ----------------------------------------------------------------------

    @pytest.mark.parametrize("phase", ["2-write", "3-report", "4-sealed", "4-durable"])
    def test_a_failure_is_everyones_and_leaves_the_step_before(self, suite_ranks: Ranks, run: Path, phase: str) -> None:
        is_roots = phase.startswith("4")

        def body(comm: Any) -> str:
            with self.open(run, comm) as ckpt:
                ckpt.save(1, {"x": np.full(1000, 1.0)}).result()
                comm.barrier()
                fault = Fault(phase, "raise", 0 if is_roots else comm.size - 1, error=InjectedError("on purpose"))
                with armed(fault):
                    comm.barrier()
                    with pytest.raises(errors.CollectiveError) as caught:
                        ckpt.save(2, {"x": np.full(1000, 2.0)}).result()
                    comm.barrier()
                assert ckpt.latest_step() == 1
                ckpt.save(3, {"x": np.full(1000, 3.0)}).result()
            return str(caught.value)

        texts = suite_ranks(body)
        assert len(set(texts)) == 1
        assert "on purpose" in texts[0]
        assert np.all(hc.load(run)["x"] == 3.0)

    def test_a_damaged_byte_is_found_and_named(self, suite_ranks: Ranks, run: Path) -> None:
        self.save_all(suite_ranks, run, lambda comm, s: {"x": any_bits("uint8", (LARGE,), s), "y": np.ones(9)}, 2)
        step = run / layout.step_dirname(2)
        suite_ranks.on_root(lambda: self.damage(step, "x"))
        assert {block.tensor for block in open_step(step).verify()} == {"x"}
        with pytest.raises(errors.CorruptError, match="'x'"):
            hc.load(step)
        assert hc.load(step, "y")["y"].tolist() == [1.0] * 9

    def test_a_damaged_step_is_passed_over_for_the_one_before(self, suite_ranks: Ranks, run: Path) -> None:
        self.save_all(suite_ranks, run, lambda comm, s: {"x": any_bits("uint8", (LARGE,), s)}, 2)
        suite_ranks.on_root(lambda: self.damage(run / layout.step_dirname(2), "x"))

        def body(comm: Any) -> bool:
            target = {"x": np.zeros(LARGE, np.uint8)}
            with self.open(run, comm) as ckpt:
                restored = ckpt.restore(target)
            assert (restored.step, len(restored.warnings)) == (1, 1)
            return same_bits(target["x"], any_bits("uint8", (LARGE,), 1))

        assert all(suite_ranks(body))

    @pytest.mark.parametrize("way", ["missing", "cut short", "empty", "a link"])
    def test_a_file_that_is_not_whole_is_never_restored(self, suite_ranks: Ranks, run: Path, way: str) -> None:
        self.save_all(suite_ranks, run, lambda comm, s: {"x": np.full(50_000, s)}, 2)
        step = run / layout.step_dirname(2)
        files = [step / record.path for record in discovery.read_manifest(step).files]

        def spoil() -> None:
            largest = max(files, key=lambda path: path.stat().st_size)
            if way == "cut short":
                os.truncate(largest, largest.stat().st_size - 1)
            elif way == "empty":
                os.truncate(largest, 0)
            else:
                kept = largest.rename(run / "elsewhere")
                if way == "a link":
                    largest.symlink_to(kept)

        suite_ranks.on_root(spoil)
        with pytest.raises((errors.CorruptError, errors.StorageError)):
            hc.load(step)

        def body(comm: Any) -> int:
            with self.open(run, comm) as ckpt:
                return ckpt.restore({"x": np.zeros(50_000, int)}).step

        assert suite_ranks(body) == [1] * suite_ranks.size

    @pytest.mark.timeout(600)
    def test_a_job_killed_at_any_phase_leaves_whole_steps_only(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        if is_with_mpi(request.config):
            pytest.skip("runs a job of its own")
        command = [sys.executable, "-c", _KILLED_JOB, str(tmp_path), self.backend, repr(dict(self.backend_options))]
        done = subprocess.run([*command, *KILL_PHASES], check=False, capture_output=True, text=True, timeout=540)
        assert done.returncode == 0, done.stderr
        for phase in KILL_PHASES:
            run = tmp_path / phase
            newest = hc.latest_checkpoint(run)
            is_visible = phase >= VISIBLE_FROM or phase in done.stdout.split()  # not all backends pass all phases
            assert newest is not None, phase
            assert newest.name == layout.step_dirname(4 if is_visible else 3), phase
            assert np.all(hc.load(newest)["x"] == (4 if is_visible else 3)), phase
            with hc.Checkpointer(run, backend=self.backend, backend_options=self.backend_options) as ckpt:
                ckpt.restore({"x": np.zeros(400_000, int), "y": np.zeros(3)})
                ckpt.save(5, {"x": np.full(400_000, 5), "y": np.zeros(3)}).result()
            assert np.all(hc.load(run)["x"] == 5), phase


_KILLED_JOB = """
import ast, os, sys
import numpy as np
import hpcckpt as hc
from hpcckpt.core import failpoints as phases
from hpcckpt.backends.registry import find_backend, load_class

where, backend, options, *names = sys.argv[1:]
load_class(find_backend(backend))

def job(phase):
    with hc.Checkpointer(f"{where}/{phase}", backend=backend, backend_options=ast.literal_eval(options),
                         max_to_keep=2) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, {"x": np.full(400_000, step), "y": np.zeros(3)}).result()
        phases.install_hook(lambda name, rank: os._exit(9) if name == phase else None)
        ckpt.save(4, {"x": np.full(400_000, 4), "y": np.zeros(3)}).result()

for phase in names:
    pid = os.fork()
    if pid == 0:
        try:
            job(phase)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) == 0:
        print(phase)
    elif os.waitstatus_to_exitcode(status) != 9:
        sys.exit(f"the job that was to be killed at {phase} failed")
"""
