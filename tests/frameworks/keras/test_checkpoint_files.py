"""`ModelCheckpoint` writes files of Keras and TensorFlow: whole or absent, and their own readers open them."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpcckpt as hc
from hpcckpt.errors import NoSpaceError, OptionError, StepExistsError
from hpcckpt.keras import ModelCheckpoint
from hpcckpt.keras.callbacks import checkpoint_files
from hpcckpt.rundir.discovery import scan
from tests.support.keras.models import IS_KERAS_3, rows, small
from tests.support.programs import environment

Theirs = keras.callbacks.ModelCheckpoint
pytestmark = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
WHOLE = [("cp.keras", None), ("cp.h5", None), ("cp", "savedmodel")]
WEIGHTS = [("cp.weights.h5", None), ("cp.ckpt", "tf")]
FILES = [*WHOLE, *WEIGHTS]


def build() -> Any:
    """Return a model whose compiled loss all formats can name."""
    model = small()
    model.compile("adam", keras.losses.MeanSquaredError(), metrics=[keras.metrics.MeanAbsoluteError()])
    return model


@functools.cache
def trained(number: int = 0) -> Any:
    """Return a model that has been trained; compiling one takes a second, so there are only a few."""
    model = build()
    model.fit(*rows(10), verbose=0)
    return model


def save(callback: Any, epochs: int = 1, logs: dict[str, float] | None = None, model: Any = None) -> Any:
    """Make the calls of a ``fit`` that saves after each epoch; return the model, which each epoch changes."""
    model = trained() if model is None else model
    callback.set_model(model)
    callback.on_train_begin()
    for epoch in range(epochs):
        model.layers[0].bias.assign_add(np.ones(3, "float32"))
        callback.on_epoch_begin(epoch)
        callback.on_epoch_end(epoch, logs or {"loss": 1.0, "val_loss": 1.0})
    callback.on_train_end()
    return model


def opened(path: Path, file_format: str | None) -> Any:
    """Return what the file's own reader makes of it."""
    if path.name.endswith(".weights.h5"):
        model = build()
        model.optimizer.build(model.trainable_variables)
        model.load_weights(path)
        return model
    if file_format == "tf":
        model = build()
        tf.train.Checkpoint(root=model).restore(tf.train.latest_checkpoint(path.parent)).expect_partial()
        return model
    if file_format == "savedmodel":
        return tf.saved_model.load(str(path)) if IS_KERAS_3 else keras.models.load_model(path)
    return keras.models.load_model(path)


def options_of(name: str, file_format: str | None) -> dict[str, Any]:
    return {"format": file_format, "save_weights_only": (name, file_format) in WEIGHTS}


def predicted(model: Any) -> Any:
    x = rows(10)[0]
    return np.asarray(model.serve(x) if hasattr(model, "serve") else model(x, training=False))


def best_after(path: Path, value: float, **options: Any) -> float | None:
    """Return the best value at the end of a new run of one epoch."""
    trained().optimizer.iterations.assign(0)
    callback = ModelCheckpoint(path, monitor="val_loss", save_best_only=True, **options)
    save(callback, logs={"val_loss": value})
    return callback.best


@pytest.mark.parametrize(("name", "file_format"), FILES)
def test_the_files_own_reader_opens_what_is_saved(name: str, file_format: str | None, tmp_path: Path) -> None:
    model = save(ModelCheckpoint(tmp_path / "new" / name, **options_of(name, file_format)))
    assert np.array_equal(predicted(opened(tmp_path / "new" / name, file_format)), predicted(model))
    assert not [path for path in (tmp_path / "new").iterdir() if path.name.startswith((".tmp", "step-", ".hpcckpt"))]


def test_keras_files_are_written_of_models_of_a_distribution_strategy(tmp_path: Path) -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = build()
    model.fit(*rows(10), verbose=0, callbacks=[ModelCheckpoint(tmp_path / "model.keras")])
    assert np.array_equal(predicted(opened(tmp_path / "model.keras", None)), predicted(model))


def test_format_weights_h5_is_of_weights_only(tmp_path: Path) -> None:
    assert ModelCheckpoint(tmp_path / "cp.weights.h5", format="weights.h5").save_weights_only


@pytest.mark.parametrize("ending", [".keras", ".weights.h5", ".h5"])
@pytest.mark.parametrize("is_weights_only", [False, True])
def test_a_path_is_accepted_or_refused_as_keras_does(ending: str, is_weights_only: bool, tmp_path: Path) -> None:
    said = []
    for cls in (Theirs, ModelCheckpoint):
        try:
            # another model: of Keras 3 the first callback takes the optimizer out of what it was compiled with
            save(cls(str(tmp_path / f"cp{ending}"), save_weights_only=is_weights_only), model=trained(2))
            said.append((tmp_path / f"cp{ending}").read_bytes()[:8])
        except ValueError as error:
            said.append(str(error))
    assert said[0] == said[1]


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 2.15 only")
def test_options_with_a_keras_file_are_refused_in_keras_words(tmp_path: Path) -> None:
    said = []
    for cls in (Theirs, ModelCheckpoint):
        with pytest.raises(ValueError, match="does not support the `options` argument") as caught:
            cls(str(tmp_path / "cp.keras"), options=tf.saved_model.SaveOptions())
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("cp.h5", {"format": "keras"}, "needs a path that ends in .keras"),
        ("cp.weights.h5", {"format": "h5"}, "needs a path that ends in .h5 or .hdf5"),
        ("cp.keras", {"format": "tf"}, "needs another end of the path"),
        ("cp", {"format": "savedmodel", "save_weights_only": True}, "holds whole models"),
        ("cp.ckpt", {"format": "zip"}, "one of keras, weights.h5, h5, tf, savedmodel"),
        ("cp.keras", {"max_to_keep": 2, "scratch": "/x"}, "there is no max_to_keep, scratch: leave them out"),
    ],
)
def test_contradictions_are_errors(name: str, options: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=why):
        ModelCheckpoint(tmp_path / name, **options)


def test_without_a_known_ending_it_is_a_checkpoint_of_ours(tmp_path: Path) -> None:
    save(ModelCheckpoint(tmp_path / "cp-{epoch}.ckpt", format=None))
    assert len(scan(tmp_path)) == 1


@pytest.mark.parametrize("place", ["cp.keras", "cp-{epoch}.keras"])
def test_checkpoints_of_an_earlier_version_at_that_path_are_not_replaced(place: str, tmp_path: Path) -> None:
    save(ModelCheckpoint(tmp_path / place.replace(".keras", ".ckpt")))
    os.rename(tmp_path / place.replace(".keras", ".ckpt").format(epoch=1), tmp_path / place.format(epoch=1))
    with pytest.raises(StepExistsError, match=re.escape(f"mv {tmp_path / place.format(epoch=1)} ")):
        save(ModelCheckpoint(tmp_path / place))
    assert hc.load(tmp_path / place.format(epoch=1))


def test_another_directory_at_that_path_is_refused_in_keras_words(tmp_path: Path) -> None:
    (tmp_path / "cp.h5").mkdir()
    with pytest.raises(OSError, match=r"^Please specify a non-directory filepath for ModelCheckpoint\."):
        save(ModelCheckpoint(tmp_path / "cp.h5"))


@pytest.mark.parametrize(("name", "file_format"), FILES)
def test_a_save_that_fails_leaves_the_file_before(
    name: str, file_format: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = ModelCheckpoint(tmp_path / name, **options_of(name, file_format))
    model = save(callback)
    before = predicted(model)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcckpt.native.fsync", fail)
    with pytest.raises(NoSpaceError):
        save(callback)
    monkeypatch.undo()
    assert np.array_equal(predicted(opened(tmp_path / name, file_format)), before)
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.parametrize(("name", "file_format"), FILES)
def test_what_best_was_is_known_to_the_next_run(name: str, file_format: str | None, tmp_path: Path) -> None:
    assert best_after(tmp_path / name, 0.5, **options_of(name, file_format)) == 0.5
    assert best_after(tmp_path / name, 0.7, **options_of(name, file_format)) == 0.5
    assert best_after(tmp_path / name, 0.4, **options_of(name, file_format)) == 0.4


def test_what_best_was_is_forgotten_with_the_file(tmp_path: Path) -> None:
    best_after(tmp_path / "cp-{epoch}.keras", 0.5)
    (tmp_path / "cp-1.keras").unlink()
    assert best_after(tmp_path / "cp-{epoch}.keras", 0.7) == 0.7


def test_root_writes_and_all_ranks_wait(group: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    write = checkpoint_files.write_file
    monkeypatch.setattr(
        checkpoint_files, "write_file", lambda path, *args, **more: (written.append(path), write(path, *args, **more))
    )
    trained(0), trained(1)

    def body(comm: Any) -> bool:
        callback = ModelCheckpoint(run_dir / "cp-{epoch}.keras", comm=comm)
        save(callback, model=trained(comm.rank))
        return (run_dir / "cp-1.keras").is_file()

    assert group(2, body) == [True, True]
    assert len(written) <= 1  # ranks may be threads or processes


def test_the_tutorials_restoring_lines_run_with_format_tf(tmp_path: Path) -> None:
    path = tmp_path / "training" / "cp-{epoch:04d}.ckpt"
    model = save(ModelCheckpoint(path, save_weights_only=True, format="tf"), epochs=3)
    latest = tf.train.latest_checkpoint(path.parent)
    assert latest == str(path).format(epoch=3)
    other = build()
    if IS_KERAS_3:
        tf.train.Checkpoint(root=other).restore(latest).expect_partial()
    else:
        other.load_weights(latest)
    assert np.array_equal(predicted(other), predicted(model))


def test_the_tutorials_restoring_lines_run_on_checkpoints_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "training" / "cp-{epoch:04d}.ckpt"
    model = save(ModelCheckpoint(path, save_weights_only=True), epochs=3)
    latest = hc.latest_checkpoint(path.parent)
    for place in (latest, path.with_name("cp-0003.ckpt")):
        other = build()
        hc.keras.load_weights(other, place)
        assert np.array_equal(predicted(other), predicted(model))


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 2.15 only")
@pytest.mark.parametrize(("name", "file_format"), [("cp-{epoch}.h5", None), ("cp-{epoch}.ckpt", "tf")])
def test_load_weights_on_restart_takes_the_newest_file(name: str, file_format: str | None, tmp_path: Path) -> None:
    model = save(ModelCheckpoint(tmp_path / name, format=file_format), epochs=2)
    other = build()
    callback = ModelCheckpoint(tmp_path / name, format=file_format, load_weights_on_restart=True)
    callback.set_model(other)
    callback.on_train_begin()
    callback.close()
    assert np.array_equal(predicted(other), predicted(model))


def test_the_direction_of_a_metric_may_be_known_only_after_the_first_batch(tmp_path: Path) -> None:
    model = build()
    model.compile("sgd", "mse", metrics=[keras.metrics.CosineSimilarity(name="accord")])
    callback = ModelCheckpoint(tmp_path / "cp.keras", monitor="accord", save_best_only=True)
    model.fit(*rows(10), callbacks=[callback], verbose=0)
    assert (tmp_path / "cp.keras").exists()


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 2.15 only")
def test_an_optimizer_that_horovod_wraps_is_that_of_keras_in_the_file(tmp_path: Path) -> None:
    wrapping = type("Adam", (keras.optimizers.Adam,), {"__module__": "horovod._keras"})
    model = small(wrapping())
    model.optimizer.build(model.trainable_variables)
    save(ModelCheckpoint(tmp_path / "cp.keras"), model=model)
    assert type(keras.models.load_model(tmp_path / "cp.keras").optimizer) is keras.optimizers.Adam
    assert wrapping.__module__ == "horovod._keras"


KILLED = """
import sys, os, keras
from tests.support.keras.models import small
from hpcckpt.keras import ModelCheckpoint
from hpcckpt import native
model = small()
callback = ModelCheckpoint({path!r})
callback.set_model(model)
model.optimizer.build(model.trainable_variables)
callback.on_train_begin(); callback.on_epoch_begin(0)
callback.on_epoch_end(0, {{}})
native.fsync = lambda *args: os._exit(9)
model.layers[0].bias.assign([9.0] * 3)
callback.on_epoch_end(1, {{}})
"""


@pytest.mark.slow
def test_a_job_killed_while_it_writes_leaves_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "cp.keras"
    program = KILLED.format(path=str(path))
    assert (
        subprocess.run([sys.executable, "-c", program], env=environment(), check=False, capture_output=True).returncode
        == 9
    )
    assert not np.any(keras.models.load_model(path).layers[0].get_weights()[1])
