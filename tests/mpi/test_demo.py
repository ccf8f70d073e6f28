"""The main job: data-parallel training is killed in the middle of an epoch and goes on, on any number of ranks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import hpcckpt as hc
from tests.support import examples
from tests.support.mpi.launch import mpirun

jobs = examples.load("jobs")

pytestmark = [
    pytest.mark.tf,
    pytest.mark.stack_b,
    pytest.mark.slow,
    pytest.mark.timeout(700),
    pytest.mark.skipif(not (find_spec("tensorflow") and find_spec("mpi4py")), reason="needs TensorFlow and mpi4py"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of MNIST's form, small, which can be learned."""
    path = tmp_path_factory.mktemp("data") / "mnist.npz"
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 2400, dtype=np.uint8)
    x = rng.integers(0, 60, (2400, 28, 28), dtype=np.uint8)
    for row, label in enumerate(y):
        x[row, 2 * label : 2 * label + 4] = 255
    np.savez(path, x_train=x[:2000], y_train=y[:2000], x_test=x[2000:], y_test=y[2000:])
    return path


def options(run: Path, data: Path) -> list[str]:
    every = ["--every-n-batches", "3", "--batch-size", "32", "--epochs", "2"]
    return ["--run", str(run), "--data", str(data), *every]


def run_and_kill(n_ranks: int, run: Path, data: Path) -> jobs.Outcome:
    """Run until there is a checkpoint within an epoch, then kill all processes at once."""

    def should_die(story: jobs.Story) -> bool:
        return len(story.saved) >= 2  # of the first epoch, which has at least ten

    return jobs.run_job(n_ranks, options(run, data), run.parent / "killed.log", lambda *_: None, should_die)


def run_to_end(n_ranks: int, run: Path, data: Path) -> jobs.Outcome:
    return jobs.run_job(n_ranks, options(run, data), run.parent / "ended.log", lambda *_: None, lambda _: False)


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 3)])
def test_a_job_killed_within_an_epoch_goes_on_with_the_next_step(
    before: int, after: int, data: Path, run_dir: Path
) -> None:
    run_dir.parent.mkdir(exist_ok=True)
    killed = run_and_kill(before, run_dir, data)
    newest = hc.latest_checkpoint(run_dir)
    assert killed.was_killed, killed.log.read_text(encoding="utf-8")
    assert newest is not None
    step = int(newest.name.removeprefix("step-"))

    ended = run_to_end(after, run_dir, data)
    assert ended.code == 0, ended.log.read_text(encoding="utf-8")
    assert (ended.story.resumed, ended.story.resumed_ranks) == (step, f"{before}->{after}")
    assert ended.story.first_step == step + 1
    assert ended.story.begin_loss == killed.story.losses[step]
    rest_of_epoch = (2000 - step * before * 32) // (after * 32)  # no sample of the epoch twice, none left out
    assert ended.story.saved[-1] == step + rest_of_epoch + ended.story.steps_per_epoch
    assert (ended.story.accuracy or 0) > 0.5


TWO_RANKS = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import keras, numpy as np
from mpi4py import MPI
import hpcckpt as hc
from hpcckpt.core import failpoints as phases

rank, directory, task = MPI.COMM_WORLD.rank, sys.argv[1], sys.argv[2]

class See(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            sums = [float(np.abs(w).sum()) for w in self.model.get_weights()]
            rate = round(float(self.model.optimizer.learning_rate.numpy()), 6)
            tell("begin", f"{rate} {sum(sums):.6f}")

def tell(word, text):  # not by stdout, where the launcher mixes the ranks' lines
    with open(f"{directory}.{word}-{rank}", "a") as file:
        file.write(text)

def fail(phase, at_rank):
    if phase == "2-write" and at_rank == 1:
        raise OSError(28, "No space left on device")

if task == "fail":
    phases.install_hook(fail)
is_fresh = task == "go on"  # fresh ranks agree neither on weights nor on the learning rate
keras.utils.set_random_seed(rank if is_fresh else 0)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()])
model.compile(keras.optimizers.SGD(0.01 * (rank + 1) if is_fresh else 0.2), "mse", jit_compile=False)
x = np.ones((4, 4), "float32")
backup = hc.keras.BackupAndRestore(directory, delete_checkpoint=False, verbose=0)
try:
    model.fit(x, x[:, :3], epochs=2 if is_fresh else 1, batch_size=4, verbose=0, callbacks=[backup, See()])
except hc.errors.NoSpaceError as error:
    tell("failed", str(error.failures))
"""


def two_ranks(directory: Path, task: str, n_ranks: int = 2) -> None:
    ended = mpirun(n_ranks, "-W", "ignore", "-c", TWO_RANKS, str(directory), task, **quiet())
    assert ended.code == 0, ended.err


def quiet() -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ""}


def told(directory: Path, word: str) -> dict[int, str]:
    """Return what each rank told under `word`."""
    return {
        int(path.name.rpartition("-")[2]): path.read_text(encoding="utf-8")
        for path in directory.parent.glob(f"*.{word}-*")
    }


def test_every_rank_has_restored_weights_and_learning_rate_before_its_first_batch(run_dir: Path) -> None:
    """Horovod's recipe restores on rank 0 and broadcasts after the first batch, without the learning rate."""
    two_ranks(run_dir, "save")
    for path in run_dir.parent.glob("*.begin-*"):
        path.unlink()
    two_ranks(run_dir, "go on")
    begun = told(run_dir, "begin")
    assert set(begun) == {0, 1}
    assert begun[0] == begun[1]
    assert begun[0].split()[0] == "0.2"


def test_a_save_that_fails_on_one_rank_raises_on_all(run_dir: Path) -> None:
    two_ranks(run_dir, "fail")
    failed = told(run_dir, "failed")
    assert set(failed) == {0, 1}
    assert failed[0] == failed[1]
    assert "1:" in failed[0]
    assert "No space left" in failed[0]
    assert hc.latest_checkpoint(run_dir) is None
