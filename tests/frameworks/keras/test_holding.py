"""What was held stays as it was, to the bit, whatever happens to the variables afterwards; and no byte is copied."""

from __future__ import annotations

import functools
import gc
import importlib.util
import json
import logging
import platform
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.backends.rankfile import backend
from hpcckpt.errors import HostMemoryError, StateError
from hpcckpt.native import tf_ops
from hpcckpt.state import tf_hold
from hpcckpt.state.tf_hold import available_nbytes, copied, hold, stage
from hpcckpt.state.tree import flatten
from tests.support.keras.models import IS_KERAS_3, rows, small
from tests.support.mpi.launch import find_mpirun, mpirun
from tests.support.programs import environment

HERE = Path(__file__).parent
SHAPE = (64, 3)
OPS = tf.raw_ops
ONES = np.ones(SHAPE, np.float32)
SPARSE = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([3, 7]), tf.constant(SHAPE))


def variable(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> tf.Variable:
    return tf.Variable(np.random.default_rng(seed).normal(size=shape).astype("float32"))


def address(v: tf.Variable) -> int:
    return hold([v])[0].ctypes.data


def output_of(program: str, *args: str) -> str:
    """Run a program in a separate process; return what it prints after the word HERE."""
    command = [sys.executable, "-W", "ignore", "-c", program, *args]
    env = environment()
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=240).stdout
    return next(line[4:] for line in out.splitlines() if line.startswith("HERE"))


def loop(v: tf.Variable) -> None:
    def body(count: Any) -> Any:
        v.assign_add(ONES)
        return (count + 1,)

    tf.while_loop(lambda count: count < 3, body, [0])


# Every way to change a variable that works inside of a compiled function too.
DENSE: dict[str, Callable[[Any], Any]] = {
    "assign": lambda v: v.assign(ONES),
    "assign_add": lambda v: v.assign_add(ONES),
    "assign_sub": lambda v: v.assign_sub(ONES),
    "assign_of_itself": lambda v: v.assign(v + 1),
    "assign_unread": lambda v: v.assign_add(ONES, read_value=False),
    "slice": lambda v: v[1:3].assign(ONES[1:3]),
    "loop": loop,
    "raw_descent": lambda v: OPS.ResourceApplyGradientDescent(var=v.handle, alpha=0.1, delta=ONES),
    "raw_scatter_update": lambda v: OPS.ResourceScatterUpdate(resource=v.handle, indices=[1, 2], updates=ONES[:2]),
}
# What XLA does not take, or takes only in part.
OTHERS: dict[str, Callable[[Any], Any]] = {
    "scatter_update": lambda v: v.scatter_update(SPARSE),
    "scatter_add": lambda v: v.scatter_add(SPARSE),
    "scatter_max": lambda v: v.scatter_max(SPARSE),
    "scatter_nd_update": lambda v: v.scatter_nd_update([[1], [2]], ONES[:2]),
    "scatter_nd_add": lambda v: v.scatter_nd_add([[1], [2]], ONES[:2]),
    "batch_scatter_update": lambda v: v.batch_scatter_update(tf.IndexedSlices(ONES[:, :1], np.zeros((64, 1), "int32"))),
    "gather_and_scatter": lambda v: v.scatter_update(tf.IndexedSlices(v.sparse_read([1]) + 1, [1])),
}  # fmt: skip


def silent(fn: Callable[[], Any]) -> Callable[[], None]:
    """Return `fn` without its value, which a compiled function may not be able to return."""

    def run() -> None:
        fn()

    return run


WAYS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda fn: fn,
    "function": tf.function,
    "jit": lambda fn: tf.function(fn, jit_compile=True),
}


def assert_untouched(variables: list[Any], update: Callable[[], Any], repeat: int = 3) -> None:
    """Hold before each of several updates; assert that every one changes values, and none of them what was held."""
    snapshots = []
    for _ in range(repeat):
        arrays = hold(variables)
        snapshots.append((arrays, [array.tobytes() for array in arrays]))
        update()
        assert all(v.numpy().tobytes() != before for v, before in zip(variables, snapshots[-1][1], strict=True))
    for arrays, before in snapshots:
        assert [array.tobytes() for array in arrays] == before


# -- no copies ------------------------------------------------------------------------------------


def test_what_is_held_is_the_variables_own_memory() -> None:
    variables = [variable(n) for n in range(50)]
    arrays = hold(variables)
    assert copied(variables, arrays) == [False] * 50
    assert [a.tobytes() for a in arrays] == [v.numpy().tobytes() for v in variables]
    assert copied(variables, [array.copy() for array in arrays]) == [True] * 50


def test_an_update_takes_fresh_memory_only_while_somebody_holds_the_old() -> None:
    v = variable(shape=(1 << 18,))
    before = address(v)
    array = hold([v])[0]
    v.assign_add(tf.ones(1 << 18))
    after = address(v)
    assert after != before
    del array
    v.assign_add(tf.ones(1 << 18))
    assert address(v) == after


def test_a_part_of_an_array_keeps_the_whole_alive() -> None:
    v = variable(shape=(1 << 18,))
    expected = v.numpy()[5:]
    part = hold([v])[0].view(np.uint8)[20:]
    del v
    gc.collect()
    others = [variable(n, (1 << 18,)) for n in range(8)]  # would lie in that memory if it were free
    assert part.tobytes() == expected.tobytes()
    del others


def test_arrays_cannot_be_written() -> None:
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(ValueError, match="read-only"):
            hold([tf.Variable(tf.zeros(3, dtype))])[0][0] = 1


def test_a_model_that_was_held_and_flattened_goes_when_it_is_dropped() -> None:
    model = small()
    tree = flatten({"model": model})
    arrays = hold([leaf.source for leaf in tree.tensors.values()])
    watched = [weakref.ref(model), weakref.ref(model.optimizer), weakref.ref(tree.tensors["model/dense/kernel"].source)]
    del model, tree
    keras.backend.clear_session()
    gc.collect()
    assert [ref() for ref in watched] == [None] * 3
    assert arrays[0].size


FAULTS = """
import os; os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # the default on CPUs with AVX512-VNNI only
import ctypes; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # no huge pages, or their faults are few
import resource, sys, tensorflow as tf
from hpcckpt.state.tf_hold import hold, warm
variables = [tf.Variable(tf.fill([1 << 22], float(n))) for n in range(4)]
if sys.argv[1] == "warm":
    warm(variables)
held = hold(variables)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for v in variables:
    v.assign_add(v)
print("HERE" + str((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() >> 20))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere TensorFlow has no pool of oneDNN")
def test_warm_memory_spares_the_first_update_its_page_faults() -> None:
    cold, warm = (int(output_of(FAULTS, how)) for how in ("cold", "warm"))
    assert cold >= 56  # of the 64 MiB that are copied
    assert warm <= 8


# -- updates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", DENSE)
def test_updates_leave_what_is_held_untouched(kind: str, way: str) -> None:
    v = variable()
    update = WAYS[way](silent(lambda: DENSE[kind](v)))
    for seed in range(3):
        assert_untouched([v], functools.partial(v.assign, variable(seed + 1)), repeat=1)
        assert_untouched([v], update, repeat=1)


@pytest.mark.parametrize("way", ["eager", "function"])
@pytest.mark.parametrize("kind", OTHERS)
def test_sparse_updates_leave_what_is_held_untouched(kind: str, way: str) -> None:
    v = variable()
    update = WAYS[way](silent(lambda: OTHERS[kind](v)))
    held = hold([v])
    expected = held[0].tobytes()
    assert copied([v], held) == [False]
    update()
    assert v.numpy().tobytes() != expected
    assert held[0].tobytes() == expected
    assert_untouched([v], lambda: (v.assign_sub(ONES * 3), update()))


def test_a_variable_with_sparse_updates_is_copied_by_tensorflow() -> None:
    v = variable()
    v.scatter_update(SPARSE)
    held = hold([v])
    assert copied([v], held) == [True]
    before = held[0].tobytes()
    v.scatter_add(SPARSE)  # in place, in the variable's own memory
    assert held[0].tobytes() == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [lambda: keras.optimizers.SGD(0.1, momentum=0.9), lambda: keras.optimizers.Adam(0.1)])
def test_optimizers_leave_weights_and_slots_untouched(make: Callable[[], Any], way: str) -> None:
    model, optimizer = small(), make()
    weights = model.trainable_variables
    optimizer.build(weights)
    slots = optimizer.variables
    values = [tf.constant(np.random.default_rng(n).normal(size=w.shape), tf.float32) for n, w in enumerate(weights)]
    variables = [leaf.source for leaf in flatten({"w": list(weights), "o": list(slots)}).tensors.values()]
    changing = [v for v in variables if v.dtype == tf.float32 and v.shape.rank > 0]
    assert len(changing) > len(weights)
    step = WAYS[way](silent(lambda: optimizer.apply_gradients(zip(values, weights, strict=True))))
    step()
    assert_untouched(changing, step)


@pytest.mark.parametrize(
    "compiled", [{"run_eagerly": True}, {}, {"jit_compile": True}], ids=["eager", "function", "jit"]
)
def test_fit_leaves_what_is_held_untouched(compiled: dict[str, Any]) -> None:
    model = small()
    model.compile("adam", "mse", **compiled)
    x, y = rows(20)
    model.train_on_batch(x, y)
    variables = [leaf.source for leaf in flatten({"model": model}).tensors.values()]
    changing = [v for v in variables if v.shape.rank > 0]
    assert len(changing) > 8
    assert_untouched(changing, lambda: model.train_on_batch(x, y))


def test_embeddings_with_sparse_gradients_stay_untouched() -> None:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Embedding(50, 4), keras.layers.Flatten()])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    x, y = np.array([[1, 2], [3, 4]]), np.ones((2, 8), "float32")
    table = flatten({"model": model}).tensors["model/embedding/embeddings"].source
    assert_untouched([table], lambda: model.train_on_batch(x, y))


@pytest.mark.skipif(IS_KERAS_3, reason="legacy optimizers, which call fused kernels, are in Keras 2.15 only")
@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "Adagrad"])
@pytest.mark.parametrize("gradient", [tf.ones(SHAPE), SPARSE], ids=["dense", "sparse"])
def test_fused_kernels_leave_what_is_held_untouched(name: str, gradient: Any) -> None:
    optimizer, v = getattr(keras.optimizers.legacy, name)(0.1), variable()
    assert_untouched([v], lambda: optimizer.apply_gradients([(gradient, v)]))


@pytest.mark.parametrize("way", WAYS)
def test_variables_that_share_a_buffer_stay_untouched(way: str) -> None:
    x, y = variable(1), variable(2)

    def share() -> None:
        y.assign(x)

    WAYS[way](share)()
    if way == "eager":
        assert address(x) == address(y)
    before = x.numpy().tobytes()
    held = hold([x, y])
    y.assign_add(ONES)
    assert [array.tobytes() for array in held] == [before] * 2
    assert x.numpy().tobytes() == before
    x.assign_sub(ONES)
    assert [array.tobytes() for array in held] == [before] * 2


def test_updates_on_another_thread_leave_what_is_held_untouched() -> None:
    """Hold while another thread trains: each variable is as it was at some moment, and stays so."""
    variables = [variable(n, (1 << 16,)) for n in range(8)]
    step = tf.function(silent(lambda: [v.assign_add(tf.ones(1 << 16)) for v in variables]))
    step()
    stop = threading.Event()

    def train() -> None:
        while not stop.is_set():
            step()

    def has_moved(before: list[bytes]) -> bool:
        return any(v.numpy().tobytes() != b for v, b in zip(variables, before, strict=True))

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(50):
            held = hold(variables)
            before = [array.tobytes() for array in held]
            while not has_moved(before):
                assert thread.is_alive()
                time.sleep(0.001)
            assert [array.tobytes() for array in held] == before
    finally:
        stop.set()
        thread.join()


# -- dtypes and shapes ------------------------------------------------------------------------------

TYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 complex64 complex128"
_FLOAT8 = [name for name in ("float8_e5m2", "float8_e4m3fn") if hasattr(tf.dtypes.experimental, name)]


@pytest.mark.parametrize("dtype", [*TYPES.split(), *_FLOAT8])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3)])
def test_values_of_every_type_and_shape_are_held(dtype: str, shape: tuple[int, ...]) -> None:
    kind = getattr(tf, dtype, None) or getattr(tf.dtypes.experimental, dtype)
    source = np.arange(int(np.prod(shape)), dtype="float32").reshape(shape)
    v = tf.Variable(tf.cast(tf.constant(source), kind))
    held = hold([v])[0]
    leaf = flatten({"v": v}).tensors["v"]
    assert held.dtype == kind.as_numpy_dtype == leaf.read().dtype
    assert held.shape == shape == leaf.declaration.spec.shape
    assert held.flags.c_contiguous
    assert copied([v], [held]) == [False]
    before = held.tobytes()
    assert before == source.astype(kind.as_numpy_dtype).tobytes()
    v.assign(tf.cast(tf.ones(shape), kind))
    assert held.tobytes() == before


def test_a_variable_of_unknown_shape_has_the_shape_of_its_value() -> None:
    for unknown in (None, [None, 3]):
        v = tf.Variable(tf.zeros((2, 3)), shape=tf.TensorShape(unknown))
        assert flatten({"v": v}).tensors["v"].declaration.spec.shape == (2, 3)
        v.assign(tf.ones((4, 3)))
        leaf = flatten({"v": v}).tensors["v"]
        assert leaf.declaration.spec.shape == leaf.read().shape == (4, 3)


def test_mixed_precision_is_held_as_the_variables_are() -> None:
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
    finally:
        keras.mixed_precision.set_global_policy("float32")
    leaf = flatten({"model": model}).tensors["model/dense/kernel"]
    held = hold([leaf.source])
    assert held[0].dtype == np.float32
    assert copied([leaf.source], held) == [False]


# -- refusals ---------------------------------------------------------------------------------------


def test_variables_without_a_value_are_named() -> None:
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    first, second = (UninitializedVariable(shape=(3,), dtype=tf.float32, name=name) for name in ("first", "second"))
    with pytest.raises(StateError, match=r"no value yet: first:0, second:0; initialize"):
        hold([variable(), first, tf.Variable(tf.zeros((0, 2))), second])


def test_holding_while_a_graph_is_built_is_refused() -> None:
    v = variable()
    with tf.Graph().as_default(), pytest.raises(StateError, match=r"outside of tf\.function"):
        hold([v])


# -- our op, and the way without it -----------------------------------------------------------------


@pytest.fixture
def op() -> Any:
    """Our op; where nothing native is built there is none."""
    return tf_ops.loaded_if_built() or pytest.skip("the TensorFlow ops are not built")


@pytest.fixture
def forged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that was built for another TensorFlow, in place of hpcckpt's."""
    monkeypatch.setenv("HPCCKPT_TF_OPS_DIR", str(tmp_path))
    monkeypatch.delenv("HPCCKPT_NO_NATIVE", raising=False)
    (tmp_path / tf_ops.target()._replace(tensorflow="2.14.0").filename).write_bytes(b"")
    # as in a process that has not loaded any
    monkeypatch.setattr(tf_ops, "load_ops", tf_ops.load_ops.__wrapped__)
    monkeypatch.setattr(tf_ops, "_loaded", functools.cache(tf_ops._loaded.__wrapped__))
    monkeypatch.setattr(tf_hold, "_log_why_each", functools.cache(tf_hold._log_why_each.__wrapped__))


def test_one_op_holds_all_variables(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_hold, "_hold_each", lambda left: pytest.fail(f"{len(left)} are read one by one"))
    shapes: list[tuple[int, ...]] = [(), (0, 3), (5,), (2, 3, 4)]
    variables = [variable(n, shape) for n, shape in enumerate(shapes * 100)]
    for v, array in zip(variables, hold(variables), strict=True):
        assert array.shape == v.shape
        assert array.tobytes() == v.numpy().tobytes()


def test_without_the_op_the_same_is_held_and_why_is_said_once(forged: None, caplog: pytest.LogCaptureFixture) -> None:
    variables = [variable(n) for n in range(3)]
    with caplog.at_level(logging.INFO):
        held = hold(variables)
        hold(variables)
    assert [record.levelname for record in caplog.records] == ["INFO"]  # it works: no reason to warn
    assert copied(variables, held) == [False] * 3
    assert [array.tobytes() for array in held] == [v.numpy().tobytes() for v in variables]
    assert len(caplog.messages) == 1
    assert f"are built for TensorFlow 2.14.0, and {tf.__version__} is installed" in caplog.text
    assert "run: python -m hpcckpt.native.build; until then variables are read one by one" in caplog.text


def test_without_the_op_only_root_says_why(
    forged: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf_hold, "launched_rank", lambda: 1)
    with caplog.at_level(logging.INFO):
        hold([variable()])
    assert caplog.messages == []


def test_what_is_held_within_fit_stays_as_it_was() -> None:
    class Holding(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            arrays = hold([leaf.source for leaf in flatten({"model": self.model}).tensors.values()])
            taken.append((arrays, [array.tobytes() for array in arrays]))

    taken: list[tuple[list[Any], list[bytes]]] = []
    model = small()
    model.compile("adam", "mse")
    x, y = rows(20)
    model.fit(x, y, batch_size=4, epochs=2, callbacks=[Holding()], verbose=0)
    assert len(taken) == 10
    assert len({tuple(before) for _, before in taken}) == 10
    for arrays, before in taken:
        assert [array.tobytes() for array in arrays] == before


def test_what_is_held_outlives_variables_and_the_order_in_which_arrays_are_dropped() -> None:
    """Each array has its own reference: memory that was given to somebody else would show in the others."""
    variables = [variable(n, (1 << 16,)) for n in range(40)]
    expected = [v.numpy().tobytes() for v in variables]
    first, second = hold(variables), hold(variables)
    del variables
    gc.collect()
    for number in np.random.default_rng(0).permutation(40):
        first[number] = None  # type: ignore[call-overload]
        filling = [tf.fill([1 << 16], -1.0) for _ in range(4)]
        assert second[number].tobytes() == expected[number]
        del filling
    del first
    fillings = [tf.fill([1 << 16], -1.0) for _ in range(80)]
    assert [array.tobytes() for array in second] == expected
    del fillings


# -- other devices ----------------------------------------------------------------------------------

MIXED = """
import json, numpy as np, tensorflow as tf
from hpcckpt.state.tf_hold import copied, hold, stage
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
variables = []
for number in range(4):
    with tf.device(f"CPU:{number % 2}"):
        variables.append(tf.Variable(tf.fill([1000], float(number))))
held = hold(variables)
was_copied = copied(variables, held)
staged = stage(variables[1].read_value(), 100)
for v in variables:
    v.assign_add(tf.ones(1000))
print("HERE" + json.dumps({
    "devices": [v.device[-5:] for v in variables], "copied": was_copied, "staged": staged.tolist() == [1.0] * 1000,
    "held": [array.tolist() == [float(n)] * 1000 for n, array in enumerate(held)],
    "now": [float(v[0]) for v in variables],
}))
"""


def test_variables_on_several_devices_are_held_together() -> None:
    assert json.loads(output_of(MIXED)) == {
        "devices": ["CPU:0", "CPU:1"] * 2, "copied": [False] * 4, "staged": True, "held": [True] * 4,
        "now": [1.0, 2.0, 3.0, 4.0],
    }  # fmt: skip


@pytest.mark.parametrize("piece_nbytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("shape", [(), (0, 2), (50, 7)])
def test_staging_copies_all_pieces(shape: tuple[int, ...], piece_nbytes: int) -> None:
    v = variable(shape=shape)
    array = stage(v.read_value(), piece_nbytes)
    assert array.shape == shape
    assert array.tobytes() == v.numpy().tobytes()
    assert not np.shares_memory(array, hold([v])[0])


def test_staging_is_refused_before_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    v = variable()
    monkeypatch.setattr(tf_hold, "_ON_HOST", "GPU")  # as if the processor were the accelerator
    monkeypatch.setattr(tf_ops, "loaded_if_built", lambda: None)  # for our op looks for itself
    assert hold([v])[0].tobytes() == v.numpy().tobytes()
    assert copied([v], hold([v])) == [True]
    monkeypatch.setattr(tf_hold, "available_nbytes", lambda: 64 * 3 * 4 - 1)
    with pytest.raises(HostMemoryError, match="768 B of variables"):
        hold([v])


def test_available_memory_is_what_the_kernel_says(tmp_path: Path) -> None:
    told = tmp_path / "meminfo"
    told.write_text("MemTotal:       24000 kB\nMemAvailable:       12 kB\n", encoding="utf-8")
    assert available_nbytes(str(told)) == 12 << 10
    told.write_text("MemTotal:       24000 kB\n", encoding="utf-8")
    assert available_nbytes(str(told)) is None
    assert available_nbytes(str(tmp_path / "absent")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="no GPU")
def test_variables_of_an_accelerator_are_staged() -> None:
    with tf.device("GPU:0"):
        v = tf.Variable(tf.random.normal((1000, 1000)))
    w = variable()
    held = hold([v, w])
    assert copied([v, w], held) == [True, False]
    before = held[0].tobytes()
    v.assign_add(tf.ones((1000, 1000)))
    assert held[0].tobytes() == before


# -- Horovod ----------------------------------------------------------------------------------------


@pytest.mark.horovod
@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not installed")
@pytest.mark.skipif(find_mpirun() is None, reason="no mpirun on the PATH")
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_horovods_broadcasts_leave_what_is_held_untouched(n_ranks: int) -> None:
    ended = mpirun(n_ranks, "-W", "ignore", str(HERE / "job_broadcast.py"), timeout_s=180)
    assert ended.code == 0, ended.err
    found = ended.lines("broadcast")
    assert len(found) == n_ranks * 4
    root = n_ranks - 1
    for said in found:
        assert said["untouched"], said
        assert said["values"] == [100.0 * root + number for number in range(4)]
        assert said["copied"] == [said["is_sparse"]] * 4
    assert {(said["rank"], said["in_place"], said["is_sparse"]) for said in found} == {
        (rank, in_place, sparse) for rank in range(n_ranks) for in_place in (False, True) for sparse in (False, True)
    }


def test_an_incremental_run_does_not_keep_buffers_of_variables_that_change_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[Any]] = []
    fill = backend.RankfileBackend._fill

    def spy(self: Any, fd: int, job: Any, path: Path, file: Any) -> Any:
        held.extend(weakref.ref(payload.data) for payload in file.payloads)
        return fill(self, fd, job, path, file)

    monkeypatch.setattr(backend.RankfileBackend, "_fill", spy)
    frozen, trained = tf.Variable(tf.zeros([1 << 18])), tf.Variable(0.0)
    with hc.Checkpointer(tmp_path, incremental=True) as ckpt:
        for step in range(1, 5):
            trained.assign_add(1.0)
            ckpt.save(step, {"frozen": frozen, "trained": trained}).result()
        frozen.assign_add(tf.ones_like(frozen))
    gc.collect()
    assert held
    assert [each() for each in held if each() is not None] == []
