"""The configurations of the examples: each is read, means what is there, and builds what can be trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from hpcckpt.train.config.cycles import Cycle, check, cycles
from hpcckpt.train.config.factories import Factory
from hpcckpt.train.datasets import sharing
from hpcckpt.train.names.allow_list import Catalogue
from hpcckpt.train.run.build_cycle import metrics_of
from hpcckpt.train.run.submodels import freeze
from tests.support.paths import EXAMPLES

FOLDER = EXAMPLES / "configs"
NAMES = ["heads", "lms", "mnist", "mnist_cycles", "regression", "sequences", "slurm", "transfer", "triplets"]
METRICS = {
    "heads": "val_digit_accuracy", "regression": "val_distance", "sequences": "val_mae",
    "triplets": "val_triplet_accuracy",
}  # fmt: skip
"""Of the first cycle; of all others it is ``val_accuracy``."""
FEWER = {
    name: (f"[0].datasets.ktf.batches.{batches}.datasets.ktf.datasets.digits.affnist.from_raw.n_images=200",)
    for name, batches in (("heads", "classes_and_centres"), ("regression", "centres"))
}
"""Of the first cycle; of all others it is ``val_accuracy``."""
EACH = pytest.mark.parametrize("name", NAMES)


def read(name: str, *sets: str) -> tuple[Cycle, ...]:
    return cycles(FOLDER / f"{name}.hjson", (*FEWER.get(name, ()), *sets))


@pytest.fixture
def mnist_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put 2,000 images where MNIST is kept, and a directory to work in."""
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, n in (("train", 2000), ("test", 200)):
        arrays |= {f"x_{part}": draw.integers(0, 256, (n, 28, 28), np.uint8), f"y_{part}": np.arange(n) % 10}
    (tmp_path / "hpcckpt-examples").mkdir()
    np.savez(tmp_path / "hpcckpt-examples" / "mnist.npz", **arrays)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_the_folder_holds_these() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.hjson")) == NAMES


@EACH
def test_it_is_read_and_all_that_it_names_is_there(name: str) -> None:
    assert check(read(name), Catalogue()) == []


@EACH
def test_what_it_builds_can_be_trained(name: str, mnist_cache: None) -> None:
    for cycle in read(name):
        model, train, valid = built(cycle, Catalogue())
        before = len(model.trainable_weights)
        loop = cycle.train_loop.build(Catalogue())
        frozen = freeze(model, loop.freeze_submodels)
        assert bool(frozen) == (len(model.trainable_weights) < before)
        history = model.fit(
            train.take(2), validation_data=valid.take(1), shuffle=False, verbose=0, callbacks=list(loop.callbacks)
        )
        assert np.isfinite(history.history["loss"]).all()
        metric = METRICS.get(name, "val_accuracy") if cycle.index == 0 else "val_accuracy"
        assert metric in history.history


def built(cycle: Cycle, catalogue: Catalogue) -> tuple[Any, Any, Any]:
    with sharing(0, 1, seed=cycle.seed):
        train, valid = cycle.datasets.build(catalogue)
    model = cycle.model.build(catalogue)
    model.build((None, *train.element_spec[0].shape[1:]))
    loss = cycle.loss.build(catalogue) if isinstance(cycle.loss, Factory) else cycle.loss
    model.compile(cycle.optimizer.build(catalogue), loss, metrics=metrics_of(cycle, catalogue))
    return model, train, valid


def test_the_second_cycle_of_the_long_one_inherits_all_but_optimizer_and_loop() -> None:
    first, second = read("mnist_cycles")
    assert (second.model, second.datasets, second.checkpoint) == (first.model, first.datasets, first.checkpoint)
    assert first.train_loop.kwargs["freeze_submodels"] == ["base_model@block1"]
    assert "freeze_submodels" not in second.train_loop.kwargs
    assert [cycle.optimizer.kwargs["learning_rate"] for cycle in (first, second)] == [0.001, 0.0005]


def test_the_long_one_has_comments_in_three_styles_and_a_comma_that_is_missing() -> None:
    text = (FOLDER / "mnist_cycles.hjson").read_text(encoding="utf-8")
    assert all(style in text for style in ("\n  // ", "    # ", "/* "))
    lines = [line.partition("#")[0].rstrip() for line in text.splitlines()]
    before = lines[next(i for i, line in enumerate(lines) if "freeze_submodels" in line) - 1]
    assert before.endswith("]")


def test_other_bases_that_the_long_one_tells_of_can_be_had(mnist_cache: None) -> None:
    base = '{"tf.keras.applications.MobileNetV2": {"include_top": false, "weights": null, "input_shape": [40, 40, 3]}}'
    sets = (
        f"[0].model.ktf.models.OneHeadNet.base_model={base}",
        "[0].datasets.ktf.datasets.mnist.from_tfrecord.image_size=40",
        "[0].train_loop.ktf.train.KerasTrainLoop.freeze_submodels=[]",
    )
    model, train, _ = built(read("mnist_cycles", *sets)[0], Catalogue())
    assert model(next(iter(train))[0]).shape == (64, 10)


@pytest.mark.slow
def test_the_network_of_the_configurations_learns_mnist() -> None:
    from hpcckpt.train.datasets import mnist
    from hpcckpt.train.datasets.errors import DatasetNotFoundError

    try:
        mnist.parse()
    except DatasetNotFoundError as error:
        pytest.skip(str(error))
    keras.utils.set_random_seed(1)
    cycle, *_ = read("mnist", "[0].datasets.ktf.datasets.mnist.from_raw.limit=12800")
    model, train, valid = built(cycle, Catalogue())
    history = model.fit(train, epochs=2, validation_data=valid, shuffle=False, verbose=0).history
    assert history["val_accuracy"][-1] > 0.93
