"""Keras models and TensorFlow's objects beyond the table: stock files of others, odd models, what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

import hpcckpt as hc
from hpcckpt.errors import ConfigError, CorruptError, ForeignFormatError, HpcckptError, StateMismatchError
from hpcckpt.keras.files.architecture import NAME, build_architecture, find_architecture
from hpcckpt.keras.files.describe import describe
from hpcckpt.keras.files.match import tensor_leaves
from tests.support.convert import small_models
from tests.support.convert.converting import assert_same

IS_KERAS_3 = small_models.IS_KERAS_3
keras_2_only = pytest.mark.skipif(IS_KERAS_3, reason="of Keras 2.15 only")


@pytest.fixture(scope="module")
def model() -> Any:
    return small_models.trained(small_models.sequential)


@pytest.fixture(scope="module")
def run(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model") / "run", {"model": model}, objects=describe(model))


def save(directory: Path, state: Any, **more: Any) -> Path:
    with hc.Checkpointer(directory, async_save=False) as ckpt:
        ckpt.save(3, state, **more)
    return directory


def values(model: Any, *lost: str) -> dict[str, Any]:
    found = {name: leaf.read() for name, leaf in tensor_leaves(model).items()}
    return {name: value for name, value in found.items() if not any(part in name for part in lost)}


def loaded(path: Path, *lost: str) -> dict[str, Any]:
    found = {name.partition("#")[0]: value for name, value in hc.load(path).items()}
    return {name: value for name, value in found.items() if not any(part in name for part in lost)}


# -- the architecture that a checkpoint holds ------------------------------------------------------


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5", "m.h5", "cp.ckpt"])
def test_a_checkpoint_that_knows_its_architecture_needs_no_model(name: str, run: Path, tmp_path: Path) -> None:
    done = hc.export_checkpoint(run, tmp_path / name)
    expected = hc.load(run)
    kept = [each for each in expected if each.startswith("optimizer/")]
    is_without_rate = name == "m.weights.h5" and not IS_KERAS_3
    assert done.optimizer == len(kept) - is_without_rate
    assert not any("by names only" in remark for remark in done.remarks)


def test_a_class_that_keras_does_not_know_names_the_option_that_helps(run: Path, tmp_path: Path) -> None:
    class Unknown(keras.Model):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return x

    saved = save(tmp_path / "run", {"model": {"w": np.ones(3)}}, objects=describe(Unknown()))
    with pytest.raises(ConfigError, match=r"Unknown.*--model"):
        hc.export_checkpoint(saved, tmp_path / "m.keras")


def test_an_imported_model_knows_its_architecture(run: Path, tmp_path: Path) -> None:
    hc.export_checkpoint(run, tmp_path / "m.keras")
    done = hc.import_checkpoint(tmp_path / "m.keras", tmp_path / "back")
    hc.export_checkpoint(done.path, tmp_path / "again.keras")
    again = keras.models.load_model(tmp_path / "again.keras")
    assert_same(loaded(run, "seed_generator"), values(again, "seed_generator"))


def test_an_architecture_is_found_only_if_it_is_one(model: Any) -> None:
    text = model.to_json()
    assert find_architecture({}) is None
    assert find_architecture({"user": {NAME: text}}) == {"model": text}
    assert find_architecture({"state": {f"net/{NAME}": {"model": json.loads(text)}}}) == {"model": json.loads(text)}
    assert find_architecture({"state": {f"a/{NAME}": text, f"b/{NAME}": text}}) is None
    assert find_architecture({"user": {NAME: {"model": 3}}}) is None


def test_a_loss_of_the_users_leaves_the_optimizer(model: Any) -> None:
    compiled = describe(model)[NAME]
    foreign = {"module": "my.losses", "class_name": "function", "config": "mine", "registered_name": "mine"}
    built = build_architecture({**compiled, "compile": {**compiled["compile"], "loss": foreign}})
    assert type(built.optimizer).__name__ == "Adam"


# -- models that do not fit ------------------------------------------------------------------------


def test_another_model_is_refused_and_nothing_is_written(run: Path, tmp_path: Path) -> None:
    for name in ("m.keras", "cp.ckpt"):
        with pytest.raises(StateMismatchError, match="does not fit the checkpoint"):
            hc.export_checkpoint(run, tmp_path / name, model=small_models.functional())
    assert list(tmp_path.iterdir()) == []


def test_another_optimizer_is_refused_unless_it_is_left_out(run: Path, tmp_path: Path) -> None:
    other = small_models.sequential()
    other.compile(keras.optimizers.SGD(), "mse")
    with pytest.raises(StateMismatchError, match="--no-optimizer"):
        hc.export_checkpoint(run, tmp_path / "m.weights.h5", model=other)
    done = hc.export_checkpoint(run, tmp_path / "m.weights.h5", model=other, optimizer=False)
    assert done.optimizer == 0
    assert type(other.optimizer).__name__ == "SGD"  # it was aside only while the file was written


def test_a_model_without_an_optimizer_says_so(run: Path, tmp_path: Path) -> None:
    done = hc.export_checkpoint(run, tmp_path / "m.keras", model=small_models.bare())
    assert "the model is not compiled" in [left.reason for left in done.left_out]
    assert getattr(keras.models.load_model(tmp_path / "m.keras"), "optimizer", None) is None


def test_what_is_no_part_of_the_model_is_said(model: Any, tmp_path: Path) -> None:
    run = save(tmp_path / "run", {"model": model, "more": np.ones(2)})
    done = hc.export_checkpoint(run, tmp_path / "m.keras", model=small_models.sequential())
    assert ("more",) in [left.names for left in done.left_out]


def test_a_file_without_an_optimizer_gives_none(run: Path, tmp_path: Path) -> None:
    """Keras itself would go on with the model's new one, as if it had been trained."""
    hc.export_checkpoint(run, tmp_path / "m.weights.h5", optimizer=False)
    done = hc.import_checkpoint(tmp_path / "m.weights.h5", tmp_path / "back", model=small_models.sequential())
    assert done.optimizer == 0
    assert done.left_out[0].reason == "not in the file; the model has a new one"
    assert_same(loaded(run, "optimizer/", "seed"), loaded(done.path, "seed"))


def test_a_file_of_another_model_is_refused_and_leaves_the_model_as_it_was(run: Path, tmp_path: Path) -> None:
    hc.export_checkpoint(run, tmp_path / "m.weights.h5")
    hc.export_checkpoint(run, tmp_path / "cp.ckpt")
    other = small_models.functional()
    before = values(other)
    for name in ("m.weights.h5", "cp.ckpt"):
        with pytest.raises(StateMismatchError):
            hc.import_checkpoint(tmp_path / name, tmp_path / "back", model=other)
        assert_same(before, values(other))


# -- other models ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5", "m.h5", "cp.ckpt"])
def test_models_in_models(name: str, tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    model = small_models.nested()
    run = save(tmp_path / "run", {"model": model})
    hc.export_checkpoint(run, tmp_path / name, model=model)
    fresh = None if name == "m.keras" else small_models.nested()
    done = hc.import_checkpoint(tmp_path / name, tmp_path / "back", model=fresh)
    assert_same(loaded(run, "learning_rate"), loaded(done.path, "learning_rate"))


def test_subclassed_models(tmp_path: Path) -> None:
    model = small_models.subclassed()
    run = save(tmp_path / "run", {"model": model})
    for name in ("m.weights.h5", "cp.ckpt"):
        hc.export_checkpoint(run, tmp_path / name, model="tests.support.convert.small_models:subclassed")
        done = hc.import_checkpoint(tmp_path / name, tmp_path / f"back-{name}", model=small_models.subclassed())
        assert_same(loaded(run), loaded(done.path))


def test_a_subclassed_model_as_h5(tmp_path: Path) -> None:
    model = small_models.subclassed()
    run = save(tmp_path / "run", {"model": model})
    hc.export_checkpoint(run, tmp_path / "m.h5", model=model)
    fresh = small_models.subclassed()
    fresh.load_weights(tmp_path / "m.h5")
    assert_same(values(model), values(fresh))


def test_mixed_precision_keeps_its_loss_scale(tmp_path: Path) -> None:
    def build() -> Any:
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2, dtype="mixed_float16")])
        adam = keras.optimizers.Adam(0.01)
        wrap = getattr(keras, "mixed_precision", keras.optimizers).LossScaleOptimizer
        model.compile(wrap(adam), "mse")
        return model

    model = build()
    model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0)
    run = save(tmp_path / "run", {"model": model})
    hc.export_checkpoint(run, tmp_path / "cp.ckpt", model=model)
    assert_same(loaded(run), loaded(hc.import_checkpoint(tmp_path / "cp.ckpt", tmp_path / "back").path))
    done = hc.import_checkpoint(tmp_path / "cp.ckpt", tmp_path / "again", model=build())
    assert_same(loaded(run), loaded(done.path))


def test_only_one_of_two_models(model: Any, tmp_path: Path) -> None:
    run = save(tmp_path / "run", {"generator": model, "critic": small_models.functional()})
    done = hc.export_checkpoint(run, tmp_path / "m.weights.h5", model=small_models.sequential(), only="generator/*")
    assert done.weights >= 10
    assert done.optimizer >= 17


# -- TensorFlow's checkpoints ----------------------------------------------------------------------


def test_without_a_model_objects_are_found_by_the_parts_of_their_names(tmp_path: Path) -> None:
    run = save(tmp_path / "run", {"model": {"dense": {"kernel": np.arange(4.0)}}, "epoch": 2})
    done = hc.export_checkpoint(run, tmp_path / "cp.ckpt")
    assert "by names only" in done.remarks[0]
    kernel = tf.Variable(np.zeros(4))
    root = tf.train.Checkpoint(model=tf.train.Checkpoint(dense=tf.train.Checkpoint(kernel=kernel)))
    root.restore(tf.train.latest_checkpoint(tmp_path)).assert_existing_objects_matched()
    np.testing.assert_array_equal(kernel.numpy(), np.arange(4.0))


def test_a_manager_goes_on_in_a_directory_that_was_exported_to(run: Path, tmp_path: Path) -> None:
    hc.export_checkpoint(run, tmp_path / "cp-0001.ckpt")
    hc.export_checkpoint(run, tmp_path / "cp-0002.ckpt")
    other = small_models.sequential()
    checkpoint = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=3)
    assert [Path(path).name for path in manager.checkpoints] == ["cp-0001.ckpt", "cp-0002.ckpt"]
    assert manager.restore_or_initialize() == str(tmp_path / "cp-0002.ckpt")
    manager.save()
    assert len(manager.checkpoints) == 3


@pytest.mark.parametrize("name", ["gr\u00fcn", '\u2603 "x"'])
def test_names_that_are_no_plain_ascii_are_found_by_us_and_by_tensorflow(name: str, tmp_path: Path) -> None:
    theirs, ours = tmp_path / name / "theirs", tmp_path / "ours"
    tf.train.Checkpoint(w=tf.Variable([1.0])).save(str(theirs / name))
    ours.mkdir()
    hc.export_checkpoint(hc.import_checkpoint(theirs, tmp_path / "run").path, ours / f"{name}.ckpt", "tf")
    assert tf.train.latest_checkpoint(str(ours)) == str(ours / f"{name}.ckpt")


@pytest.mark.parametrize("has_model", [False, True], ids=["by names", "with a model"])
def test_a_counter_of_the_users_keeps_its_value(has_model: bool, model: Any, tmp_path: Path) -> None:
    """``save_counter`` is also what TensorFlow calls its own, which counts the saves of a `tf.train.Checkpoint`."""
    other = {"model": model} if has_model else {"w": np.ones(2)}
    run = save(tmp_path / "run", {"save_counter": np.int64(41), **other})
    hc.export_checkpoint(run, tmp_path / "cp", "tf", model=model if has_model else None)
    root = tf.train.Checkpoint()
    root.restore(str(tmp_path / "cp")).expect_partial()
    assert int(root.save_counter) == 41
    back = hc.import_checkpoint(tmp_path / "cp", tmp_path / "back")
    assert_same(hc.load(run), hc.load(back.path))


def test_a_counter_that_is_tensorflows_does_not_get_into_a_checkpoint(tmp_path: Path) -> None:
    run = save(tmp_path / "run", {"w": np.ones(2)})
    hc.export_checkpoint(run, tmp_path / "cp", "tf")
    assert list(hc.load(hc.import_checkpoint(tmp_path / "cp", tmp_path / "back").path)) == ["w"]


def stock(model: Any, prefix: Path, style: str) -> str:
    """Write a checkpoint as stock code does."""
    if style == "save_weights":
        model.save_weights(str(prefix))
        return str(prefix)
    parts = {"root": {"root": model}, "parts": {"model": model, "optimizer": model.optimizer}}[style]
    return str(tf.train.Checkpoint(**parts).save(str(prefix)))


STYLES = ["root", "parts", pytest.param("save_weights", marks=keras_2_only)]


@pytest.mark.parametrize("style", STYLES)
def test_stock_checkpoints_have_the_names_of_their_variables(style: str, model: Any, tmp_path: Path) -> None:
    done = hc.import_checkpoint(stock(model, tmp_path / "cp", style), tmp_path / "back")
    found, own = loaded(done.path), values(model, "seed_generator")
    assert sorted(v.tobytes() for v in found.values()) == sorted(v.tobytes() for v in own.values())
    assert {name.partition("/")[0] for name in found} == {"model", "optimizer"}
    assert {"optimizer/iteration", "optimizer/learning_rate"} <= found.keys()
    assert done.step == 3


@pytest.mark.parametrize("style", STYLES)
def test_stock_checkpoints_have_our_names_with_a_model(style: str, model: Any, tmp_path: Path) -> None:
    stock(model, tmp_path / "train" / "cp", style)
    done = hc.import_checkpoint(tmp_path / "train", tmp_path / "back", model=small_models.sequential())
    assert_same(values(model, "seed_generator"), loaded(done.path, "seed_generator"))


@pytest.mark.parametrize("name", ["cp.index", "cp.data-00000-of-00001"])
def test_one_of_the_two_files_will_do(name: str, run: Path, tmp_path: Path) -> None:
    hc.export_checkpoint(run, tmp_path / "cp", "tf")
    done = hc.import_checkpoint(tmp_path / name, tmp_path / "back")
    assert_same(hc.load(run), hc.load(done.path))


def test_text_in_a_checkpoint_is_left_out_and_said(tmp_path: Path) -> None:
    prefix = tf.train.Checkpoint(name=tf.Variable("text"), w=tf.Variable([1.0])).write(str(tmp_path / "cp"))
    done = hc.import_checkpoint(prefix, tmp_path / "back")
    assert (list(hc.load(done.path)), done.left_out[0].reason) == (["w"], "text, and no tensor")


def write_bundle(prefix: Path, values: dict[str, Any]) -> None:
    """Write tensors by their keys, and nothing else."""
    blank = [""] * len(values)
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=list(values), shape_and_slices=blank, tensors=list(values.values())
    )


def test_names_without_objects(tmp_path: Path) -> None:
    """As `tf.compat.v1.train.Saver` writes them."""
    write_bundle(tmp_path / "cp", {"conv/w": tf.constant([1.0])})
    done = hc.import_checkpoint(tmp_path / "cp", tmp_path / "back")
    assert list(hc.load(done.path)) == ["conv/w"]
    with pytest.raises(ForeignFormatError, match="leave out --model"):
        hc.import_checkpoint(tmp_path / "cp", tmp_path / "again", model=small_models.sequential())


def test_a_damaged_checkpoint_is_so_called(run: Path, tmp_path: Path) -> None:
    hc.export_checkpoint(run, tmp_path / "cp.ckpt")
    data = tmp_path / "cp.ckpt.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(CorruptError):
        hc.import_checkpoint(tmp_path / "cp.ckpt", tmp_path / "back")
    (tmp_path / "cp.ckpt.index").write_bytes(b"no index")
    with pytest.raises(HpcckptError):
        hc.import_checkpoint(tmp_path / "cp.ckpt", tmp_path / "back")


def graph_text(*children: int) -> bytes:
    """Return an object graph of one node, which says that it has these children."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    node = graph.nodes.add()
    for number in children:
        node.children.add(node_id=number, local_name="model")
    return bytes(graph.SerializeToString())


@pytest.mark.parametrize("has_model", [False, True], ids=["by names", "into a model"])
@pytest.mark.parametrize(
    "graph",
    [b"\xff not a message", b"", [b"a", b"b"], 1.5, graph_text(7), graph_text(-1)],
    ids=["no message", "no object", "a list", "a number", "a child beyond", "a child before"],
)
def test_an_object_graph_that_cannot_be_is_damage_of_the_file(graph: Any, has_model: bool, tmp_path: Path) -> None:
    """TensorFlow's own checksums fit: it was written so."""
    values = {"_CHECKPOINTABLE_OBJECT_GRAPH": tf.constant(graph), "w/.ATTRIBUTES/VARIABLE_VALUE": tf.constant([1.0])}
    prefix = tmp_path / "cp.ckpt"
    write_bundle(prefix, values)
    with pytest.raises(CorruptError, match=r"cp\.ckpt is damaged: its object graph"):
        hc.import_checkpoint(prefix, tmp_path / "back", model=small_models.bare() if has_model else None)


def test_a_note_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    write_bundle(tmp_path / "cp", {"_HPCCKPT": tf.constant([1.0, 2.0]), "w": tf.constant([3.0])})
    done = hc.import_checkpoint(tmp_path / "cp", tmp_path / "back")
    assert hc.load(done.path)["w"].tolist() == [3.0]


@keras_2_only
def test_slots_of_legacy_optimizers(tmp_path: Path) -> None:
    def build() -> Any:
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.legacy.Adam(0.01), "mse")
        return model

    model = build()
    model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0)
    run = save(tmp_path / "run", {"model": model})
    hc.export_checkpoint(run, tmp_path / "cp.ckpt", model=model)
    fresh = build()
    tf.train.Checkpoint(model=fresh, optimizer=fresh.optimizer).restore(str(tmp_path / "cp.ckpt"))
    assert_same(loaded(run), values(fresh))
    assert_same(loaded(run), loaded(hc.import_checkpoint(tmp_path / "cp.ckpt", tmp_path / "back").path))


# -- files -----------------------------------------------------------------------------------------


def test_a_saved_model_is_replaced_only_on_request(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "saved"
    hc.export_checkpoint(run, out, "saved-model")
    with pytest.raises(ConfigError, match="exists"):
        hc.export_checkpoint(run, out, "saved-model")
    (out / "old").touch()
    hc.export_checkpoint(run, out, "saved-model", overwrite=True)
    assert not (out / "old").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    with pytest.raises(ForeignFormatError, match="saved/variables/variables"):
        hc.import_checkpoint(out, tmp_path / "back")


@pytest.fixture
def named_wrongly(run: Path, tmp_path: Path) -> Path:
    hc.export_checkpoint(run, tmp_path / "m.weights.h5")
    return (tmp_path / "m.weights.h5").rename(tmp_path / "weights.bin")


def test_keras_reads_files_whatever_their_names(named_wrongly: Path, run: Path, tmp_path: Path) -> None:
    done = hc.import_checkpoint(named_wrongly, tmp_path / "back", model=small_models.sequential())
    assert done.source_format == "weights.h5"
    assert_same(loaded(run, "learning_rate", "seed"), loaded(done.path, "learning_rate", "seed"))


def test_a_file_that_is_damaged_is_refused(run: Path, tmp_path: Path) -> None:
    hc.export_checkpoint(run, tmp_path / "m.keras")
    content = (tmp_path / "m.keras").read_bytes()
    (tmp_path / "m.keras").write_bytes(content[: len(content) // 2])
    with pytest.raises(HpcckptError):
        hc.import_checkpoint(tmp_path / "m.keras", tmp_path / "back")
    assert not (tmp_path / "back").exists()
