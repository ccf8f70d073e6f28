"""All that ``tf.train.Checkpoint`` can track comes back, into what exists and into what is created later."""

from __future__ import annotations

import gc
import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.errors import OptionError, ReplicaMismatchError, StateError, StateMismatchError
from hpcckpt.restoring.reader import open_step
from hpcckpt.state.tree import flatten
from hpcckpt.tensorflow.deferred_restore import GRAPH_KEY
from hpcckpt.tools.reshard import plan_reshard, reshard
from tests.support.keras.models import IS_KERAS_3

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool", "complex64", "string"]


class Count(tf.train.experimental.PythonState):
    """Python state, as programs write it."""

    def __init__(self, n: int = 0) -> None:
        self.n = n

    def serialize(self) -> str:
        return str(self.n)

    def deserialize(self, string_value: Any) -> None:
        self.n = int(string_value)


def save_and_restore(run_dir: Any, saved: Any, blank: Any) -> Any:
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, saved).result()
        restored = ckpt.restore(blank)
    assert restored.warnings == ()
    return hc.tensorflow.last_status(blank)


@pytest.mark.parametrize("dtype", DTYPES)
def test_variables_of_every_dtype_come_back(run_dir, dtype):
    values = [["a", "b\0c"], ["", "d"]] if dtype == "string" else tf.cast(tf.constant([[0, 1], [2, 3]]), dtype)
    saved = tf.train.Checkpoint(v=tf.Variable(tf.constant(values)), empty=tf.Variable(tf.zeros([0, 3], dtype)))
    blank = tf.train.Checkpoint(v=tf.Variable(tf.zeros([2, 2], dtype)), empty=tf.Variable(tf.zeros([0, 3], dtype)))
    save_and_restore(run_dir, saved, blank).assert_consumed()
    assert blank.v.numpy().tolist() == saved.v.numpy().tolist()


def everything(seed: int) -> tf.train.Checkpoint:
    module = tf.Module()
    module.w = tf.Variable(tf.fill([3, 2], float(seed)))
    module.parts = [tf.Variable(seed), {"deep": tf.Variable([seed, seed])}]
    module.again = module.w
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(tf.constant([f"key {seed}", "both"]), tf.constant([seed, seed], tf.int64))
    pipeline = tf.data.Dataset.range(100).shuffle(30, seed=5).batch(3)
    return tf.train.Checkpoint(
        module=module, table=table, it=iter(pipeline), rng=tf.random.Generator.from_seed(seed), count=Count(seed)
    )


def test_everything_that_can_be_tracked_comes_back(run_dir):
    saved, blank = everything(7), everything(0)
    next(saved.it), next(saved.it), saved.rng.normal([5])
    save_and_restore(run_dir, saved, blank).assert_consumed()
    assert blank.module.w.numpy().tolist() == [[7.0, 7.0]] * 3
    assert (int(blank.module.parts[0]), blank.module.parts[1]["deep"].numpy().tolist()) == (7, [7, 7])
    assert blank.table.lookup(tf.constant(["key 7", "both", "key 0"])).numpy().tolist() == [7, 7, -1]
    assert next(blank.it).numpy().tolist() == next(saved.it).numpy().tolist()
    assert blank.rng.normal([3]).numpy().tolist() == saved.rng.normal([3]).numpy().tolist()
    assert blank.count.n == 7


def test_tables_and_iterators_are_saved_as_parts_of_a_state(run_dir):
    def state(keys: list[str]) -> dict[str, Any]:
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        table.insert(tf.constant(keys), tf.range(len(keys), dtype=tf.int64))
        return {"table": table, "data": [iter(tf.data.Dataset.range(9))]}

    saved, blank = state(["a", "b"]), state(["c"])
    next(saved["data"][0])
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, saved).result()
        ckpt.restore(blank)
    assert blank["table"].lookup(tf.constant(["a", "b", "c"])).numpy().tolist() == [0, 1, -1]
    assert next(blank["data"][0]) == 1


def test_names_are_those_that_tensorflow_gives(run_dir):
    tree = flatten({"state": everything(1), "other": np.ones(1)})
    assert [*tree.tensors] == [
        "other",
        "state/count/.py_state/.own",
        "state/it/.ITERATOR_STATE",
        "state/module/parts/0",
        "state/module/parts/1/deep",
        "state/module/w",
        "state/rng/_state_var",
        "state/table/.table-keys",
        "state/table/.table-values",
    ]
    assert [*tree.objects] == ["state/.graph"]


def test_variables_are_held_and_restored_without_tensorflows_copies(run_dir, monkeypatch):
    saved, blank = (tf.train.Checkpoint(v=tf.Variable(tf.fill([1000], x))) for x in (1.0, 0.0))
    written: list[list[str]] = []
    save_v2 = tf.raw_ops.SaveV2
    monkeypatch.setattr(
        tf.raw_ops, "SaveV2", lambda **how: written.append(how["tensor_names"]) or save_v2(**how), raising=False
    )
    leaf = flatten(saved).tensors["v"]
    assert leaf.read().ctypes.data == leaf.read().ctypes.data
    save_and_restore(run_dir, saved, blank).assert_consumed()
    assert written == [[GRAPH_KEY]]
    assert float(blank.v[999]) == 1.0


# -- what does not exist yet ---------------------------------------------------------------------


def test_variables_created_later_get_their_values(run_dir):
    saved = tf.train.Checkpoint(a=tf.Variable(1.0), m=tf.Module())
    saved.m.w = [tf.Variable([2.0, 3.0]), tf.Variable("text")]
    blank = tf.train.Checkpoint(a=tf.Variable(0.0))
    status = save_and_restore(run_dir, saved, blank)
    with pytest.raises(AssertionError):
        status.assert_consumed()
    status.assert_existing_objects_matched()
    blank.m = tf.Module()
    blank.m.w = [tf.Variable([0.0, 0.0]), tf.Variable("")]
    assert (blank.m.w[0].numpy().tolist(), blank.m.w[1].numpy()) == ([2.0, 3.0], b"text")
    status.assert_consumed()


def test_a_keras_model_that_is_not_built_and_its_optimizer_get_their_values_later(run_dir):
    def training(seed: int) -> tf.train.Checkpoint:
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        return tf.train.Checkpoint(model=model, optimizer=keras.optimizers.Adam(0.1))

    def step(of: tf.train.Checkpoint) -> float:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(of.model(tf.ones([8, 3])) ** 2)
        variables = of.model.trainable_variables
        of.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return float(loss)

    saved, blank = training(1), training(2)
    step(saved), step(saved)
    status = save_and_restore(run_dir, saved, blank)
    assert [step(blank), step(blank)] == [step(saved), step(saved)]
    status.assert_existing_objects_matched()


def in_memory() -> set[str]:
    """Return the files of hpcckpt in the file system that TensorFlow keeps in memory."""
    try:
        return set(tf.io.gfile.glob("ram://hpcckpt-*/*"))
    except tf.errors.OpError:
        return set()


class Dropping(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5, seed=1)

    def call(self, inputs: Any, training: bool = True) -> Any:
        return self.dropout(inputs, training=training)


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 makes the stream when the layer is made")
@pytest.mark.parametrize("is_built", [False, True])
def test_a_random_stream_whose_layer_is_not_built_yet_is_named(run_dir, caplog, is_built):
    tf.keras.backend.experimental.enable_tf_random_generator()
    try:
        saved, blank = tf.train.Checkpoint(m=Dropping()), tf.train.Checkpoint(m=Dropping())
        for each in (saved, blank) if is_built else (saved,):
            each.m(np.ones((2, 4), "float32"))
        save_and_restore(run_dir, saved, blank)
    finally:
        tf.keras.backend.experimental.disable_tf_random_generator()
    assert ("dropout/.generator is not restored, for its layer is not built yet" in caplog.text) != is_built


def test_memory_is_given_back_at_once_where_everything_exists(run_dir):
    before = in_memory()
    iterator = iter(tf.data.Dataset.range(9).shuffle(9))
    saved = tf.train.Checkpoint(it=iterator, s=tf.Variable("x"), n=Count(3))
    next(iterator)
    status = save_and_restore(run_dir, saved, saved)
    status.assert_consumed()
    assert in_memory() == before


def test_a_quantized_variable_is_refused_by_its_name():
    variable = tf.Variable(tf.bitcast(tf.zeros((3,), tf.int8), tf.qint8))
    with pytest.raises(StateError, match=r"saved: c/part/v has the dtype qint8"):
        flatten({"c": tf.train.Checkpoint(part=tf.train.Checkpoint(v=variable))})


def distributed() -> Any:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        return tf.Variable(1.0)


def four_bits() -> Any:
    return tf.Variable(tf.cast(tf.constant([1, 2], tf.int8), tf.dtypes.experimental.int4))


def python_iterator() -> Any:
    return iter(tf.data.Dataset.from_generator(lambda: iter(range(3)), output_signature=tf.TensorSpec((), tf.int64)))


@pytest.mark.parametrize(
    ("make", "reason"),
    [(distributed, "variables of tf.distribute"), (four_bits, "dtype int4"), (python_iterator, "TensorFlow cannot")],
)
def test_what_cannot_be_saved_is_named(make, reason):
    checkpoint = tf.train.Checkpoint(ok=tf.Variable(1.0), it=iter(tf.data.Dataset.range(3)), part=[make()])
    with pytest.raises(StateError, match=f"^this state cannot be saved: part/0: {reason}"):
        flatten(checkpoint)
    with pytest.raises(StateError, match=f"^this state cannot be saved: c/part/0: {reason}"):
        flatten({"c": checkpoint})


def test_layers_that_were_adapted_compute_with_what_was_restored(run_dir):
    def model(rows: Any) -> Any:
        made = keras.Sequential([keras.Input((2,)), keras.layers.Normalization()])
        made.layers[0].adapt(rows)
        return made

    rows = np.arange(8, dtype="float32").reshape(4, 2)
    saved, other = model(rows), model(rows * 3)
    save_and_restore(run_dir, tf.train.Checkpoint(model=saved), tf.train.Checkpoint(model=other))
    assert np.array_equal(other(rows), saved(rows))


def test_memory_that_nobody_waits_for_any_more_is_given_back(run_dir):
    before = in_memory()
    saved, blank = tf.train.Checkpoint(a=tf.Variable(1.0), s=tf.Variable("x")), tf.train.Checkpoint()
    status = save_and_restore(run_dir, saved, blank)
    own = in_memory() - before
    assert own
    blank.a, blank.s = tf.Variable(0.0), tf.Variable("")
    status.assert_consumed()
    del status, blank
    gc.collect()
    assert not own & in_memory()


def test_slots_of_old_optimizers_come_back_now_and_later(run_dir):
    optimizers = getattr(keras.optimizers, "legacy", None)
    if not hasattr(optimizers, "SGD") or keras.__version__.startswith("3"):
        pytest.skip("Keras 2.15 only")

    def training(value: float) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(v=tf.Variable(value), optimizer=optimizers.SGD(0.1, momentum=0.9))

    def step(of: tf.train.Checkpoint) -> float:
        of.optimizer.minimize(lambda: of.v**2, [of.v])
        return float(of.v)

    saved, later, now = training(3.0), training(1.0), training(1.0)
    step(saved), step(now)
    save_and_restore(run_dir, saved, later)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore(now)
    assert step(later) == step(now) == step(saved)


# -- strictness, refusals ------------------------------------------------------------------------


def test_what_the_checkpoint_lacks_is_named_and_nothing_changes(run_dir):
    blank = tf.train.Checkpoint(a=tf.Variable(0.0), new=tf.Variable(5.0))
    with pytest.raises(StateMismatchError, match="'new': is in the state but not in the checkpoint"):
        save_and_restore(run_dir, tf.train.Checkpoint(a=tf.Variable(1.0)), blank)
    assert float(blank.a) == 0.0


def test_another_shape_is_named_and_nothing_changes(run_dir):
    blank = tf.train.Checkpoint(a=tf.Variable(0.0), b=tf.Variable([0.0]))
    with pytest.raises(StateMismatchError, match=r"'b': has shape \(2,\) in the checkpoint and \(1,\)"):
        save_and_restore(run_dir, tf.train.Checkpoint(a=tf.Variable(1.0), b=tf.Variable([1.0, 2.0])), blank)
    assert float(blank.a) == 0.0


def test_variables_of_any_shape_take_that_of_the_checkpoint(run_dir):
    saved, blank = (
        tf.train.Checkpoint(v=tf.Variable(tf.zeros([n, 2]), shape=tf.TensorShape([None, 2]))) for n in (5, 1)
    )
    save_and_restore(run_dir, saved, blank)
    assert blank.v.shape.as_list() == [None, 2]
    assert blank.v.numpy().shape == (5, 2)


def test_an_iterator_that_tensorflow_cannot_save_says_so():
    dataset = tf.data.Dataset.from_generator(lambda: iter(range(3)), output_signature=tf.TensorSpec((), tf.int64))
    with pytest.raises(StateError, match="cannot save"):
        flatten(tf.train.Checkpoint(it=iter(dataset)))


def test_within_a_tf_function_nothing_can_be_saved():
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))

    @tf.function(autograph=False)
    def train():
        flatten(checkpoint)

    with pytest.raises(StateError, match=r"outside of tf\.function"):
        train()


@pytest.mark.parametrize("graph", [3, [], [{"children": {"v": 7}}], [{"values": {"x": 1}}], [{"children": {"v": 1}}]])
def test_a_graph_that_says_nonsense_does_no_harm(run_dir, damage, graph):
    blank = tf.train.Checkpoint(v=tf.Variable(0.0))
    with hc.Checkpointer(run_dir) as ckpt:
        saved = ckpt.save(1, tf.train.Checkpoint(v=tf.Variable(1.0))).result()
        damage.reseal(
            saved.path / "manifest.json", lambda document: document["objects"]["state"].update({".graph": graph})
        )
        with pytest.raises(StateMismatchError):
            ckpt.restore(blank)
    assert float(blank.v) == 0.0


# -- ranks ---------------------------------------------------------------------------------------


@pytest.mark.counts(1, 2, 3)
def test_positions_streams_and_python_state_are_each_ranks_own(ranks, run_dir):
    def training(seed: int) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(
            it=iter(tf.data.Dataset.range(20)),
            rng=tf.random.Generator.from_seed(seed),
            count=Count(seed + 9),  # texts of different length
            w=tf.Variable(1.0),
        )

    def body(comm):
        saved, blank = training(comm.rank), training(50)
        for _ in range(comm.rank + 1):
            next(saved.it)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, saved).result()
            assert ckpt.restore(blank).warnings == ()
        assert blank.rng.normal([2]).numpy().tolist() == saved.rng.normal([2]).numpy().tolist()
        return int(next(blank.it)), blank.count.n

    assert ranks(body) == [(rank + 1, rank + 9) for rank in range(ranks.size)]


def test_on_another_number_of_ranks_weights_come_back_and_the_rest_is_said(group, run_dir):
    def save(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            state = tf.train.Checkpoint(
                w=tf.Variable(3.0), it=iter(tf.data.Dataset.range(9)), count=Count(comm.rank + 9)
            )
            ckpt.save(1, state).result()

    def restore(comm):
        blank = tf.train.Checkpoint(w=tf.Variable(0.0), it=iter(tf.data.Dataset.range(9)), count=Count(0))
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            restored = ckpt.restore(blank)
        return float(blank.w), int(next(blank.it)), blank.count.n, restored.warnings

    group(2, save)
    expected = (
        'state["it"] (.ITERATOR_STATE) was not restored: saved on 2 ranks, restored on 3; set it in the program, or '
        'restart on 2 ranks; state["count"] (.py_state/.own) has rank 0\'s value on each rank: saved on 2 ranks, '
        "restored on 3"
    )
    assert group(3, restore) == [(3.0, 0, 9, (expected,))] * 3


def test_a_resharded_step_has_rank_0s_python_state_for_each_rank(group, run_dir):
    def save(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, tf.train.Checkpoint(w=tf.Variable(3.0), count=Count(comm.rank + 9))).result()

    def restore(comm):
        blank = tf.train.Checkpoint(w=tf.Variable(0.0), count=Count(0))
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return ckpt.restore(blank).warnings, float(blank.w), blank.count.n

    group(2, save)
    reader = open_step(run_dir)
    with pytest.raises(OptionError, match=r"count/\.py_state/\.own.* --drop-per-rank"):
        plan_reshard(reader, 3)
    plan = plan_reshard(reader, 3, is_dropping=True)
    assert plan.of_root == ("count/.py_state/.own",)
    reshard(reader, plan, run_dir, is_replacing=True)
    assert group(3, restore) == [((), 3.0, 9)] * 3


def test_python_state_of_version_0_1_which_has_rank_0s_beside_each_ranks_comes_back(group, run_dir):
    def save(comm):
        tree = flatten(tf.train.Checkpoint(count=Count(comm.rank + 4)))
        first = flatten(tf.train.Checkpoint(count=Count(4))).tensors["count/.py_state/.own"].read()
        state = {
            ".graph": tree.objects[".graph"].read(),
            "count/.py_state": hc.RootOnly(first.copy()),
            "count/.py_state/.own": hc.PerRank(tree.tensors["count/.py_state/.own"].read()),
        }
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state).result()

    def restore(comm):
        blank = tf.train.Checkpoint(count=Count(0))
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.restore(blank)
        return blank.count.n

    group(2, save)
    assert group(2, restore) == [4, 5]
    assert group(3, restore) == [4, 4, 4]


def test_statistics_that_are_not_trained_may_differ_between_ranks(ranks, run_dir):
    def body(comm):
        state = tf.train.Checkpoint(w=tf.Variable(1.0), mean=tf.Variable(float(comm.rank), trainable=False))
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state).result()
            ckpt.restore(state)
        return float(state.mean)

    assert ranks(body) == [0.0] * ranks.size


def word(value: int) -> Any:
    return tf.Variable("a" * value)


def dense_table(value: int) -> Any:
    table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, empty_key=-1, deleted_key=-2)
    table.insert(tf.constant([7, 8], tf.int64), tf.constant([value, 9], tf.int64))
    table.remove(tf.constant([8], tf.int64))
    return table


def text_table(value: int) -> Any:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(tf.constant([f"key {value}"]), tf.constant([1], tf.int64))
    return table


def growing_table(value: int) -> Any:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, [0.0, 0.0])
    table.insert(tf.range(value, dtype=tf.int64), tf.zeros([value, 2]))
    return table


@pytest.mark.counts(2, 3)
@pytest.mark.parametrize("make", [word, dense_table, text_table, growing_table])
def test_tables_and_text_that_differ_between_ranks_are_refused(ranks, run_dir, make):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            with pytest.raises(ReplicaMismatchError, match=r"equal on all ranks differ from rank 0's: 'x.*' on rank 1"):
                ckpt.save(1, tf.train.Checkpoint(x=make(5 + comm.rank))).result()
            ckpt.save(2, tf.train.Checkpoint(x=make(5))).result()

    ranks(body)


def test_entries_of_a_table_may_have_any_order(ranks, run_dir):
    keys = np.random.default_rng(0).integers(0, 1 << 40, 500)

    def body(comm):
        state = tf.train.Checkpoint(table=tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1))
        for key in keys[:: 1 if comm.rank else -1]:
            state.table.insert([key], [key + 1])
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state).result()
            state.table.remove(keys)
            ckpt.restore(state)
        return (state.table.lookup(keys).numpy() == keys + 1).all()

    assert all(ranks(body))


def draw() -> tuple[float, ...]:
    numpy = float(np.random.random_sample())  # noqa: NPY002 - what programs draw from
    return random.random(), numpy, float(tf.random.uniform(()))


def test_random_streams_come_back_and_other_ranks_get_others(run_dir):
    tf.random.set_seed(3)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, tf.train.Checkpoint(rng=hc.tensorflow.random_streams())).result()
        expected = [draw(), draw()]
        ckpt.restore(tf.train.Checkpoint(rng=hc.tensorflow.random_streams()))
        assert [draw(), draw()] == expected
        others = []
        for rank in (0, 1, 0):
            ckpt.restore(tf.train.Checkpoint(rng=hc.tensorflow.random_streams(rank, size=2)))
            others.append(draw())
    assert len({expected[0], *others}) == 3
    assert others[0] == others[2]


# -- one object under two names ----------------------------------------------------------------------


def table_of(value: int) -> Any:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    table.insert(tf.constant([1], tf.int64), tf.constant([value], tf.int64))
    return table


OBJECTS = {
    "scalar": (lambda n: tf.Variable(float(n)), lambda v: v.numpy()),
    "matrix": (lambda n: tf.Variable(tf.fill([2, 3], n)), lambda v: v.numpy().max()),
    "any shape": (lambda n: tf.Variable(tf.fill([n], n), shape=[None]), lambda v: v.numpy().max()),
    "text": (lambda n: tf.Variable(f"{n}"), lambda v: int(v.numpy())),
    "table": (table_of, lambda t: t.lookup(tf.constant(1, tf.int64)).numpy()),
    "generator": (tf.random.Generator.from_seed, lambda g: g.state.numpy()[1]),
    "Python": (Count, lambda c: c.n),
    "within another": (lambda n: tf.train.Checkpoint(v=tf.Variable(n)), lambda c: c.v.numpy()),
}
FORMS = {
    "state": lambda a, b: {"a": a, "b": b},
    "one checkpoint": lambda a, b: {"part": tf.train.Checkpoint(a=a, b=b)},
    "two checkpoints": lambda a, b: {"a": tf.train.Checkpoint(x=a), "b": tf.train.Checkpoint(y=b)},
}


NOT_ALONE = {"any shape", "text"}
"""Variables that are only saved within a ``tf.train.Checkpoint``, or restored with another shape."""


@pytest.mark.parametrize(
    ("kind", "form"), [(k, f) for k in OBJECTS for f in FORMS if not (k in NOT_ALONE and f == "state")]
)
def test_an_object_under_two_names_is_refused_if_the_values_differ(run_dir, kind, form):
    (make, value), state = OBJECTS[kind], FORMS[form]
    now = make(5)
    before = value(now)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, state(make(1), make(2))).result()
        with pytest.raises(
            StateMismatchError, match=r"has the memory of .* another value in the checkpoint; give each"
        ):
            ckpt.restore(state(now, now))
        assert value(now) == before
        ckpt.save(2, state(make(3), make(3))).result()
        ckpt.restore(state(now, now))
    assert value(now) == value(make(3))


def test_a_checkpoint_of_two_variables_is_not_restored_into_one(run_dir):
    manager = hc.tensorflow.CheckpointManager(tf.train.Checkpoint(x=tf.Variable(1.0), y=tf.Variable(2.0)), run_dir, 3)
    path = manager.save()
    manager.close()
    v = tf.Variable(0.0)
    with pytest.raises(StateMismatchError, match="'y': has the memory of 'x'"):
        hc.tensorflow.Checkpoint(x=v, y=v).restore(path)
    assert v.numpy() == 0


def test_numbers_saved_apart_are_not_restored_into_one_variable(run_dir):
    v = tf.Variable(0.0)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"x": 1.0, "y": np.float64(2)}).result()
        with pytest.raises(StateMismatchError, match="'y': has the memory of 'x'"):
            ckpt.restore({"x": v, "y": v})
        assert any(
            "'y' has the memory of 'x'" in text for text in ckpt.restore({"x": v, "y": v}, strict=False).warnings
        )
        assert v.numpy() == 1
        ckpt.save(2, {"x": 3.0, "y": np.float64(3)}).result()
        ckpt.restore({"x": v, "y": v})
    assert v.numpy() == 3


@pytest.mark.counts(1, 2, 3)
def test_a_stream_under_two_names_is_compared_by_each_rank(ranks, run_dir):
    def body(comm):
        def rng(seed):
            return tf.random.Generator.from_seed(seed + comm.rank)

        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            last = comm.rank == comm.size - 1
            ckpt.save(1, {"a": rng(1), "b": rng(2 if last else 1)}).result()
            ckpt.save(2, {"a": rng(3), "b": rng(3)}).result()
            now = rng(9)
            with pytest.raises(StateMismatchError, match=rf"\[rank {comm.size - 1}\] .*'b.*' ?: has the memory of"):
                ckpt.restore({"a": now, "b": now}, 1)
            ckpt.restore({"a": now, "b": now})
        return now.state.numpy().tolist() == rng(3).state.numpy().tolist()

    assert all(ranks(body))
