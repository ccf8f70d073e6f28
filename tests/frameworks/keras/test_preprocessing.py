"""Layers that are adapted to data give, after a restore, what they gave before the save."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
import hpcckpt.keras
from hpcckpt.errors import CorruptError
from hpcckpt.state.packing import pack

layers = keras.layers
ROWS = np.random.default_rng(0).normal(5, 3, size=(32, 3)).astype("float32")


def scaled(*, adapted: bool) -> Any:
    """Return a model with a `Normalization`, adapted to `ROWS` or not, and one within a layer and a sub-model."""
    keras.utils.set_random_seed(1)
    inner = keras.Sequential([keras.Input((3,)), layers.Normalization(), layers.Dense(3)])
    wrapped = layers.TimeDistributed(layers.Normalization(axis=-1))
    model = keras.Sequential([
        keras.Input((3,)), layers.Normalization(), inner, layers.Reshape((1, 3)), wrapped, layers.Flatten(),
        layers.Dense(1),
    ])  # fmt: skip
    for layer in (model.layers[0], inner.layers[0], wrapped.layer) if adapted else ():
        layer.adapt(ROWS)
    model.compile("adam", "mse")
    return model


class Unbuilt(keras.Model):
    """A model that ``fit`` builds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.dense = layers.Normalization(), layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        """Scale, and apply the dense layer."""
        return self.dense(self.scale(inputs))


def unbuilt(*, adapted: bool) -> Any:
    """Return an `Unbuilt`, its `Normalization` adapted to `ROWS` or not."""
    keras.utils.set_random_seed(1)
    model = Unbuilt()
    if adapted:
        model.scale.adapt(ROWS)
    model.compile("adam", "mse")
    return model


def by_checkpointer(model: Any, run_dir: Path) -> None:
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.restore({"model": model})


def by_load_weights(model: Any, run_dir: Path) -> None:
    hc.keras.load_weights(model, run_dir)


def by_tmci(model: Any, run_dir: Path) -> None:
    hc.tmci.load_weights(model, "rankfile", {"path": str(run_dir)})


@pytest.mark.parametrize("restore", [by_checkpointer, by_load_weights, by_tmci])
def test_a_restored_model_normalizes_as_it_did(restore: Callable[[Any, Path], None], run_dir: Path) -> None:
    model, other = scaled(adapted=True), scaled(adapted=False)
    other.predict(ROWS, verbose=0)  # what was compiled before the restore knows the old values
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
    restore(other, run_dir)
    assert np.array_equal(other(ROWS), model(ROWS))
    assert np.array_equal(other.predict(ROWS, verbose=0), model.predict(ROWS, verbose=0))


def test_a_loaded_model_normalizes_as_it_did(run_dir: Path) -> None:
    model = scaled(adapted=True)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}, objects=hc.keras.describe(model)).result()
    assert np.array_equal(hc.keras.load_model(run_dir)(ROWS), model(ROWS))


@pytest.mark.parametrize("make", [scaled, unbuilt])
def test_a_resumed_fit_normalizes_without_adapting_again(make: Callable[..., Any], run_dir: Path) -> None:
    targets = ROWS[:, :1]

    def fit(model: Any, epochs: int, run: Path) -> Any:
        backup = hc.keras.BackupAndRestore(run, delete_checkpoint=False, verbose=0)
        model.fit(ROWS, targets, epochs=epochs, shuffle=False, verbose=0, callbacks=[backup])
        return model.get_weights()

    straight = fit(make(adapted=True), 2, run_dir / "straight")
    fit(make(adapted=True), 1, run_dir / "killed")
    resumed = fit(make(adapted=False), 2, run_dir / "killed")
    assert all(map(np.array_equal, resumed, straight))


WORDS = np.array([["a b"], ["b c"], ["c c a"], ["d\na"]])


def texts() -> tuple[Any, Any]:
    layer = layers.TextVectorization(output_sequence_length=4)
    return layer, [keras.Input((1,), dtype="string"), layer, layers.Embedding(9, 2), layers.Flatten()]


def weighted_texts() -> tuple[Any, Any]:
    layer = layers.TextVectorization(output_mode="tf_idf", max_tokens=9, pad_to_max_tokens=True)
    return layer, [keras.Input((1,), dtype="string"), layer]


def strings() -> tuple[Any, Any]:
    layer = layers.StringLookup()
    return layer, [keras.Input((1,), dtype="string"), layer, layers.Embedding(9, 2), layers.Flatten()]


def integers() -> tuple[Any, Any]:
    layer = layers.IntegerLookup()
    return layer, [keras.Input((1,), dtype="int64"), layer, layers.Embedding(9, 2), layers.Flatten()]


def bins() -> tuple[Any, Any]:
    layer = layers.Discretization(num_bins=4)
    return layer, [keras.Input((3,)), layer, layers.Embedding(9, 2), layers.Flatten()]


ADAPTED_TO = {texts: WORDS, weighted_texts: WORDS, strings: WORDS, integers: np.array([[7], [9], [9]]), bins: ROWS}


def adapted_to(make: Any, data: Any = None) -> Any:
    """Return a model whose first layer is adapted to data, if there is some."""
    keras.utils.set_random_seed(1)
    layer, stack = make()
    if data is not None:
        layer.adapt(data)
    model = keras.Sequential([*stack, layers.Dense(1)])
    if not model.built:
        model(ADAPTED_TO[make])
    return model


@pytest.mark.parametrize("make", ADAPTED_TO)
def test_vocabularies_and_bins_are_restored_with_the_model(make: Any, run_dir: Path) -> None:
    data = ADAPTED_TO[make]
    model, fresh, other = (adapted_to(make, rows) for rows in (data, None, data[:1]))
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}, objects=hc.keras.describe(model)).result()
        ckpt.restore({"model": other})
    hc.keras.load_weights(fresh, run_dir)
    for each in (fresh, other, hc.keras.load_model(run_dir)):
        assert np.array_equal(each(data), model(data))


class Table(layers.Dense):
    """Keeps an array and a weight, and saves the array as Keras documents it."""

    def __init__(self, units: int = 1, **more: Any) -> None:
        super().__init__(units, **more)
        self.table, self.sum_of_kernel = np.zeros(3, "float32"), 0.0

    def save_own_variables(self, store: Any) -> None:
        """Store the table beside the weights."""
        super().save_own_variables(store)
        store["table"] = self.table

    def load_own_variables(self, store: Any) -> None:
        """Take the table, and derive something from the weights."""
        super().load_own_variables({key: store[key] for key in ("0", "1")})
        self.table = np.array(store["table"])
        self.sum_of_kernel = float(np.sum(self.kernel))


def with_table(table: Any = None) -> Any:
    """Return a model of a `Table`."""
    model = keras.Sequential([keras.Input((3,)), Table()])
    if table is not None:
        model.layers[0].table = table
    return model


def test_what_a_layer_saves_by_save_own_variables_is_restored(run_dir: Path) -> None:
    model, other, third = with_table(np.arange(5, dtype="float32")), with_table(), with_table()
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}, objects=hc.keras.describe(model)).result()
        ckpt.restore({"model": other})
    hc.keras.load_weights(third, run_dir)
    loaded = hc.keras.load_model(run_dir, custom_objects={"Table": Table})
    for layer in (other.layers[0], third.layers[0], loaded.layers[0]):
        assert np.array_equal(layer.table, np.arange(5))
        assert layer.sum_of_kernel == float(np.sum(model.layers[0].kernel)) != 0


class Merged(layers.Dense):
    """Stores its kernel as one array that it splits again when it is loaded, and names beside it."""

    def build(self, input_shape: Any) -> None:
        """Make a second part of the kernel."""
        super().build(input_shape)
        self.more = self.add_weight(name="more", shape=self.kernel.shape, initializer="ones")
        self.names: Any = None

    def save_own_variables(self, store: Any) -> None:
        """Store the sum of both parts."""
        store["sum"], store["bias"] = np.array(self.kernel) + np.array(self.more), np.array(self.bias)
        store["names"] = np.array(["a", "bc"], dtype=object)

    def load_own_variables(self, store: Any) -> None:
        """Take the sum for the kernel."""
        self.kernel.assign(store["sum"])
        self.more.assign(np.zeros(self.more.shape))
        self.bias.assign(store["bias"])
        self.names = [*np.asarray(store["names"]).tolist()]


def test_weights_are_those_that_were_saved_though_a_layer_stores_another_form(run_dir: Path) -> None:
    model = keras.Sequential([keras.Input((3,)), Merged(2, name="merged")])
    other = keras.Sequential([keras.Input((3,)), Merged(2, name="merged")])
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        ckpt.restore({"model": other})
    for one, expected in zip(other.get_weights(), model.get_weights(), strict=True):
        assert np.array_equal(one, expected)
    assert other.layers[0].names == ["a", "bc"]


class Counted(keras.Model):
    """A model that saves something by itself."""

    def __init__(self, count: int = 0) -> None:
        super().__init__()
        self.dense, self.count = layers.Dense(1), count

    def call(self, inputs: Any) -> Any:
        """Apply the dense layer."""
        return self.dense(inputs)

    def save_own_variables(self, store: Any) -> None:
        """Store the count."""
        store["count"] = np.array(self.count)

    def load_own_variables(self, store: Any) -> None:
        """Take the count."""
        self.count = int(np.array(store["count"]))


def test_what_a_model_saves_by_save_own_variables_is_restored(run_dir: Path) -> None:
    model, other = Counted(5), Counted()
    for each in (model, other):
        each(np.zeros((1, 3), "float32"))
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        ckpt.restore({"model": other})
    assert other.count == 5
    assert np.array_equal(other.dense.kernel, model.dense.kernel)


def test_a_checkpoint_without_the_state_of_a_layer_is_restored_with_a_warning(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = with_table(np.ones(3, "float32"))
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": keras.Sequential([keras.Input((3,)), layers.Dense(1, name="table")])}).result()
        ckpt.restore({"model": model})
    hc.keras.load_weights(model, run_dir)
    assert np.array_equal(model.layers[0].table, np.ones(3))
    assert caplog.text.count("model/table/own_variables is not in the checkpoint") == 2


def test_best_weights_are_kept_beside_a_vocabulary(run_dir: Path) -> None:
    targets = np.zeros((4, 1), "float32")

    def fit(epochs: int) -> Any:
        model = adapted_to(texts, WORDS)
        model.compile("sgd", "mse")
        stop = keras.callbacks.EarlyStopping("loss", restore_best_weights=True, patience=9)
        backup = hc.keras.BackupAndRestore(run_dir, delete_checkpoint=False, verbose=0)
        model.fit(tf.constant(WORDS), targets, epochs=epochs, verbose=0, callbacks=[backup, stop])
        return stop.best_weights, model.get_weights()

    fit(1)
    best, weights = fit(1)  # nothing is left to train
    assert [np.shape(array) for array in best] == [np.shape(array) for array in weights]


def made_with(vocabulary: list[str] | None) -> Any:
    """Return a model whose `StringLookup` and `TextVectorization` are made with a vocabulary, or not."""
    keras.utils.set_random_seed(1)
    entry = keras.Input((1,), dtype="string")
    words = layers.TextVectorization(vocabulary=vocabulary, output_sequence_length=2)(entry)
    both = layers.Concatenate()([layers.StringLookup(vocabulary=vocabulary)(entry), words])
    return keras.Model(entry, layers.Embedding(9, 2)(both))


def adapted() -> Any:
    model = made_with(None)
    for layer in model.layers:
        if hasattr(layer, "adapt"):
            layer.adapt(np.array([["b"], ["b"], ["a"]]))
    return model


def of_class(model: Any, cls: Any) -> Any:
    return next(layer for layer in model.layers if isinstance(layer, cls))


MAKERS = {"adapted": adapted, "given": lambda: made_with(["b", "a"]), "other": lambda: made_with(["a", "x", "b"])}


@pytest.mark.parametrize(
    ("saved", "restored"), [("adapted", "given"), ("given", "adapted"), ("given", "given"), ("adapted", "other")]
)
def test_given_and_adapted_vocabularies_are_restored_into_each_other(
    saved: str, restored: str, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, (one, two) = MAKERS[saved](), (MAKERS[restored]() for _ in range(2))
    data = np.array([["a"], ["b"], ["x"]])
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        ckpt.restore({"model": one})
    hc.keras.load_weights(two, run_dir)
    for each in (one, two):
        assert np.array_equal(each(tf.constant(data)), model(tf.constant(data)))
    assert ("the vocabulary of the checkpoint, not the one it was made with" in caplog.text) == (restored == "other")
    lookup = of_class(one, layers.StringLookup)
    assert restored != "other" or [*lookup.get_config()["vocabulary"]] == ["b", "a"]


def test_a_step_without_a_vocabulary_that_was_given_is_restored_silently(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = made_with(["b", "a"])
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": {"embedding": {"embeddings": model.layers[-1].embeddings}}}).result()
        ckpt.restore({"model": model})
    hc.keras.load_weights(model, run_dir)
    assert "vocabulary" not in caplog.text


class WithFiles(layers.Layer):
    """Keeps a table that Keras saves as files."""

    def __init__(self, words: tuple[str, ...] = (), **more: Any) -> None:
        super().__init__(**more)
        self.words = words

    def call(self, inputs: Any) -> Any:
        """Change nothing."""
        return inputs

    def save_assets(self, directory: str) -> None:
        """Write a file for each word."""
        for number, word in enumerate(self.words):
            path = Path(directory, "words", f"{number}.txt")
            path.parent.mkdir(exist_ok=True)
            path.write_text(word, encoding="utf-8")

    def load_assets(self, directory: str) -> None:
        """Read them."""
        self.words = tuple(path.read_text(encoding="utf-8") for path in sorted(Path(directory, "words").glob("*")))


def with_files(*words: str) -> Any:
    return keras.Sequential([keras.Input((3,)), WithFiles(words, name="files"), layers.Dense(1)])


def test_what_a_layer_saves_by_save_assets_is_restored(run_dir: Path) -> None:
    one, two = with_files("c"), with_files()
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": with_files("a", "b")}).result()
        ckpt.restore({"model": one})
    hc.keras.load_weights(two, run_dir)
    assert one.layers[-2].words == two.layers[-2].words == ("a", "b")


def test_a_layer_that_only_writes_assets_is_saved_and_restored_without_them(run_dir: Path) -> None:
    class OnlyWrites(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs

        def save_assets(self, directory: str) -> None:
            raise AssertionError(directory)

    model = keras.Sequential([keras.Input((3,)), OnlyWrites(), layers.Dense(1)])
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": model}).result()
        ckpt.restore({"model": model})


def test_a_vocabulary_that_the_program_replaces_between_saves_is_saved(run_dir: Path) -> None:
    layer = layers.StringLookup(vocabulary=["a", "b"])
    model = keras.Sequential([keras.Input((1,), dtype="string"), layer])
    with hc.Checkpointer(run_dir) as ckpt:
        for step, words in enumerate((["a", "b"], ["x", "y", "z"])):
            layer.set_vocabulary(words)
            ckpt.save(step, {"model": model}).result()
        layer.set_vocabulary(["q"])
        ckpt.restore({"model": model})
    assert layer.get_vocabulary(include_special_tokens=False) == ["x", "y", "z"]


def test_assets_outside_of_their_directory_are_refused(run_dir: Path) -> None:
    assets = pack({"../outside.txt": np.zeros(1, "uint8")})
    model = with_files("a")
    dense = {"kernel": model.layers[-1].kernel, "bias": model.layers[-1].bias}
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"model": {"files": {"assets": assets}, "dense": dense}}).result()
        with pytest.raises(CorruptError, match=r"files.*asset outside of its directory"):
            ckpt.restore({"model": model})
