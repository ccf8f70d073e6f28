"""Rows of the checkpointing tutorial: PyTorch, TensorFlow and Keras."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.features.table import PAGE, row
from tests.features.work import Work
from tests.support.paths import ROOT

MODEL = """
import numpy as np, tensorflow as tf
with np.load("mnist.npz") as data:
    train_X, train_Y = data["x_train"][:6400] / 255.0, data["y_train"][:6400]
    test_X, test_Y = data["x_test"][:1000] / 255.0, data["y_test"][:1000]

def create_model():
    layers = [tf.keras.layers.Flatten(input_shape=(28, 28)), tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(10)]
    model = tf.keras.Sequential(layers)
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model

def show(name, model):
    loss, accuracy = model.evaluate(test_X, test_Y, batch_size=500, verbose=0)
    print(f"{name}: loss={loss:.6f} accuracy={accuracy:.4f}", flush=True)
"""
EX6 = """
import tensorflow as tf
from model import create_model, show, test_X, test_Y, train_X, train_Y
import hpcckpt.keras
tf.keras.utils.set_random_seed(1)
kwargs = {}
my_ckpts = "training/cp-{epoch:04d}.ckpt"
checkpoint_callback = hpcckpt.keras.ModelCheckpoint(
    filepath=my_ckpts,
    monitor='val_loss',
    verbose=1,
    save_best_only=False,
    save_weights_only=True,
    mode='auto',
    save_freq='epoch',
    options=None,
    **kwargs
)
whole = hpcckpt.keras.ModelCheckpoint("full/{epoch}", save_weights_only=False)
theirs = hpcckpt.keras.ModelCheckpoint("theirs/cp-{epoch:04d}.ckpt", save_weights_only=True, verbose=1, format="tf")
model = create_model()
model.fit(train_X,
          train_Y,
          batch_size=128,
          epochs=2,
          callbacks=[checkpoint_callback, whole, theirs],
          validation_data=(test_X, test_Y),
          verbose=1)
show("trained", model)
"""


def _train(work: Work) -> Path:
    """Run the training of the tutorial."""
    (work.directory / "mnist.npz").symlink_to(work.mnist())
    work.write("model.py", MODEL)
    work.write("ex6.py", EX6)
    done = work.sh("python ex6.py")
    work.write("printed.txt", done.out)
    return work.directory


def trained(work: Work) -> str:
    """Copy the tutorial's training into the row's directory; return its output."""
    shutil.copytree(work.session.once("tutorial", _train), work.directory, symlinks=True, dirs_exist_ok=True)
    return (work.directory / "printed.txt").read_text(encoding="utf-8")


def accuracy_of(text: str, name: str = "trained") -> str:
    """Return the ``loss=… accuracy=…`` that a program printed for a model."""
    found = re.search(rf"^{re.escape(name)}: (loss=\S+ accuracy=\S+)$", text, re.MULTILINE)
    assert found, f"no accuracy of {name}:\n{text[-2000:]}"
    return found[1]


def same_accuracy(work: Work, program: str, printed: str, **env: str) -> str:
    """Run a program that prints ``restored``, check that its loss and accuracy are the training's, and return them."""
    done = work.python("from model import *\n" + program, **env)
    restored = accuracy_of(done.out, "restored")
    assert restored == accuracy_of(printed), f"{restored} is not {accuracy_of(printed)}"
    return restored


@row("works")
def a1(work: Work) -> str:
    """A1: PyTorch: `torch.save(my_model.state_dict(), "my_model.pt")` and `torch.load`

    The same two lines with `hc.torch.` write and read one file. Loading it executes no code, and all tensors are equal.
    """
    done = work.python("""
        import torch
        import hpcckpt as hc
        class MyModel(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 4)
        my_model = MyModel()
        hc.torch.save(my_model.state_dict(), "my_model.safetensors")
        other = MyModel()
        other.load_state_dict(hc.torch.load("my_model.safetensors"))
        torch.save(my_model.state_dict(), "theirs.pt")      # a file of torch.save is read too
        third = MyModel()
        third.load_state_dict(hc.torch.load("theirs.pt"))
        same = [torch.equal(a, b) for each in (other, third) for a, b in zip(my_model.parameters(), each.parameters())]
        print("tensors equal:", same)
    """)
    assert {"my_model.safetensors", "theirs.pt"} <= set(work.names())
    return done.line(r"tensors equal: \[True, True, True, True\]")


@row("works")
def a2(work: Work) -> str:
    """A2: PyTorch: the optimizer's state and the epoch beside the model; files of `torch.save`

    `hc.torch.save` and `hc.torch.restore` save and restore a step. `hpcckpt convert` converts a `.pt` file of
    `torch.save` to a checkpoint and back.
    """
    done = work.python("""
        import torch
        import hpcckpt as hc
        def fresh(seed):
            torch.manual_seed(seed)
            model = torch.nn.Linear(8, 4)
            return model, torch.optim.Adam(model.parameters())
        model, optimizer = fresh(1)
        for _ in range(3):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        hc.torch.save("runs/a", 1, model=model, optimizer=optimizer, epoch=3)
        other, its_optimizer = fresh(2)
        restored = hc.torch.restore("runs/a", model=other, optimizer=its_optimizer)
        moments = lambda o: [s["exp_avg"] for s in o.state_dict()["state"].values()]
        equal = all(map(torch.equal, [*model.parameters(), *moments(optimizer)], [*other.parameters(), *moments(its_optimizer)]))
        print("restored", restored.step, restored.objects, "equal", equal)
        torch.save({"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "epoch": 3}, "full.pt")
    """)
    work.sh("hpcckpt convert full.pt runs/f && hpcckpt convert runs/f back.pt")
    back = work.python("""
        import torch
        first, second = (torch.load(name, weights_only=True) for name in ("full.pt", "back.pt"))
        second = second.get("model_state_dict", second.get("model"))
        print("back", all(torch.equal(value, second[name]) for name, value in first["model_state_dict"].items()))
    """)
    back.find("^back True$")
    return done.line(r"^restored 1 \{'epoch': 3\} equal True$")


@row("works")
def a3(work: Work) -> str:
    """A3: Load a model without the code of its class; ONNX

    A model made of Keras' layers loads in a new process. For a subclassed model, the error names the class. The
    documentation describes how to export a model to ONNX.
    """
    printed = trained(work)
    shown = same_accuracy(work, 'import hpcckpt as hc\nshow("restored", hc.keras.load_model("full"))', printed)
    work.python("""
        import keras, numpy as np
        import hpcckpt as hc
        class MyOwn(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(3)
            def call(self, x):
                return self.dense(x)
        model = MyOwn()
        model.compile("sgd", "mse")
        model.fit(np.ones((4, 2)), np.ones((4, 3)), verbose=0, callbacks=[hc.keras.ModelCheckpoint("own/{epoch}")])
    """)
    other = work.python("import hpcckpt as hc\nhc.keras.load_model('own')", code=None)
    assert other.code != 0
    other.line("MyOwn")
    assert any("ONNX" in page.read_text(encoding="utf-8") for page in pages()), "no page mentions ONNX"
    return f"fresh process: {shown}; subclassed: {other.line('MyOwn')[:120]}"


@row("works")
def a4(work: Work) -> str:
    """A4: A job script for a PyTorch training that uses TMPDIR

    `hpcckpt jobscript --scheduler slurm` with `--scratch '$TMPDIR'` prints a job script. `scripts/slurm/program.sbatch`
    starts any program. Both run in dry-run mode.
    """
    script = work.sh(
        """hpcckpt jobscript --scheduler slurm --nodes 1 --time 1h --scratch '$TMPDIR' --run runs/torch \\
        -- python train.py --run runs/torch > job.sbatch
        HPCCKPT_DRY_RUN=1 bash job.sbatch""",
        TMPDIR=str(work.directory),
    )
    script.find(r"srun .*python train\.py --run runs/torch")
    dry = work.sh(
        f"bash {ROOT}/scripts/slurm/program.sbatch runs/torch python train.py --run runs/torch", HPCCKPT_DRY_RUN="1"
    )
    return f"program.sbatch: {dry.line(r'would start: srun .*python train.py --run runs/torch')}"


@row("better")
def a5(work: Work) -> str:
    """A5: `tf.train.Checkpoint` and `CheckpointManager`

    A training loop with hpcckpt's manager in place of TensorFlow's stops at step 30 of 60 and resumes. The result is
    bit-identical to that of a run without a stop.
    """
    digests = []
    for run, steps in (("stopped", 30), ("stopped", 60), ("straight", 60)):
        done = work.example("tf_custom_loop", "--run", run, "--steps", str(steps))
        digests.append(done.find(r"^done: step=\d+ .*sha256=(\w+)$")[1])
    assert digests[1] == digests[2] != digests[0], digests
    same = work.sh("hpcckpt diff stopped straight --only 'training/model/*' --only 'training/optimizer/*'")
    return f"sha256 of both: {digests[1][:16]}; hpcckpt diff: {same.out.splitlines()[-1]}"


@row("works")
def a6(work: Work) -> str:
    """A6: Format: TensorFlow checkpoint

    `hpcckpt convert` writes the index, the data and the file `checkpoint`. `tf.train.latest_checkpoint` finds the
    checkpoint, `model.load_weights` loads it, and the accuracy is equal. Converted back to a checkpoint, the files have
    the same tensors of the model.
    """
    printed = trained(work)
    work.sh("mkdir tf && hpcckpt convert full tf/cp-0002.ckpt && hpcckpt convert tf/cp-0002.ckpt back")
    assert work.names("tf") == ["checkpoint", "cp-0002.ckpt.data-00000-of-00001", "cp-0002.ckpt.index"]
    program = """
model = create_model()
model.load_weights(tf.train.latest_checkpoint("tf"))
show("restored", model)
"""
    shown = same_accuracy(work, program, printed)
    same = work.sh("hpcckpt diff full back --only 'model/*'")
    return f"{shown}; hpcckpt diff: {same.out.splitlines()[-1]}"


@row("works")
def a7(work: Work) -> str:
    """A7: Format: `.keras` and `.weights.h5`

    `hpcckpt convert` writes both. Keras loads them with equal accuracy. Tensors that the format cannot store are listed
    as left out.
    """
    printed = trained(work)
    made = work.sh("hpcckpt convert full model.keras && hpcckpt convert full model.weights.h5")
    whole = same_accuracy(work, 'show("restored", tf.keras.models.load_model("model.keras"))', printed)
    weights = 'model = create_model()\nmodel.load_weights("model.weights.h5")\nshow("restored", model)'
    same_accuracy(work, weights, printed)
    made.line(r"left out +1  Keras keeps no such thing in this format: optimizer/learning_rate")
    return f"both: {whole}; {made.line('left out +. +Keras')}"


@row("works")
def a8(work: Work) -> str:
    """A8: Format: `.h5` and SavedModel

    `hpcckpt convert` writes both; `keras.models.load_model(...).evaluate` gives the accuracy of the trained model.
    """
    printed = trained(work)
    work.sh("hpcckpt convert full out.h5 && hpcckpt convert full my_seq_model --to saved-model")
    assert {"saved_model.pb", "variables"} <= set(work.names("my_seq_model"))
    for name in ("out.h5", "my_seq_model"):
        shown = same_accuracy(work, f'show("restored", tf.keras.models.load_model("{name}"))', printed)
    return f"both: {shown}"


@row("works")
def a9(work: Work) -> str:
    """A9: `tree` of a saved model

    `hpcckpt tensors --tree` prints the tensors as a tree with the sum of each branch.
    """
    trained(work)
    done = work.sh("hpcckpt tensors full --tree")
    done.find(r"── model\b")
    assert done.count("── kernel") >= 2, done.tail()
    return done.line("── model")


@row("works")
def a10(work: Work) -> str:
    """A10: The `ModelCheckpoint(...)` of the tutorial with all its arguments

    The code of the tutorial runs with only its import changed, including `options=None` and `**kwargs`. It runs in one
    process and on 2 ranks, where each line is printed once.
    """
    printed = trained(work)
    assert re.search(r"^Epoch 1: saving model to training/cp-0001\.ckpt$", printed, re.MULTILINE), printed[-2000:]
    shutil.rmtree(work.directory / "training")
    program = EX6.replace("callbacks=[checkpoint_callback, whole, theirs]", "callbacks=[checkpoint_callback]")
    done = work.python(program, ranks=2)
    assert done.count(r"Epoch 1: saving model to training/cp-0001\.ckpt") == 1, done.tail()
    return f"2 ranks: {done.line('Epoch 2: saving model to')[-60:]}"


@row("works")
def a11(work: Work) -> str:
    """A11: `verbose=1`, `save_freq` as a number of batches, and `{epoch:04d}`, `{batch}` and metrics in the name

    Trainings with Keras' callback and with hpcckpt's save at the same moments under the same names.
    """
    (work.directory / "mnist.npz").symlink_to(work.mnist())
    work.write("model.py", MODEL)
    done = work.python("""
        import os
        from model import *
        import hpcckpt.keras
        for kind in (tf.keras.callbacks.ModelCheckpoint, hpcckpt.keras.ModelCheckpoint):
            directory = "theirs" if "hpcckpt" not in kind.__module__ else "ours"
            tf.keras.utils.set_random_seed(1)
            batches = kind(directory + "/b{epoch}-{batch}.weights.h5", save_freq=20, save_weights_only=True)
            named = kind(directory + "/cp-{epoch:04d}-{val_accuracy:.2f}.weights.h5", verbose=1, save_weights_only=True)
            create_model().fit(train_X, train_Y, 128, 2, verbose=0, callbacks=[batches, named], validation_data=(test_X, test_Y))
            print(directory, *sorted(os.listdir(directory)), flush=True)
    """)
    theirs, ours = (
        done.find(r"^theirs (.*)$")[1],
        [name for name in done.find(r"^ours (.*)$")[1].split() if "h5" in name],
    )
    assert theirs.split() == ours, done.tail()
    done.find(r"^Epoch 1: saving model to ours/cp-0001-0\.\d\d\.weights\.h5$")
    return f"both: {theirs}"


@row("better")
def a12(work: Work) -> str:
    """A12: `save_best_only`, `mode`, `monitor`

    The callback prints Keras' lines. A second run continues with the best value of the first run, whereas Keras starts
    again from infinity.
    """
    (work.directory / "mnist.npz").symlink_to(work.mnist())
    work.write("model.py", MODEL)
    program = """
        from model import *
        import hpcckpt.keras
        tf.keras.utils.set_random_seed(1)
        best = hpcckpt.keras.ModelCheckpoint("best/cp", monitor="val_accuracy", verbose=1, save_best_only=True, mode="auto")
        create_model().fit(train_X[:1280], train_Y[:1280], 128, 2, verbose=0, callbacks=[best], validation_data=(test_X, test_Y))
        print("best", best.best, flush=True)
    """
    first = work.python(program)
    second = work.python(program)
    first.find(r"^Epoch 1: val_accuracy improved from -inf to 0\.\d+, saving model to best/cp$")
    best = first.find(r"^best (\S+)$")[1]
    assert second.find(r"^best (\S+)$")[1] == best, second.tail()
    return f"first run: best {best}; second: {second.line(f'did not improve from {float(best):.5f}')}"


@row("works")
def a13(work: Work) -> str:
    """A13: The whole model, or its weights only

    `load_model` restores model, optimizer and loss from a checkpoint of the whole model. For a checkpoint of weights
    only, the error describes what to do.
    """
    printed = trained(work)
    program = """
import hpcckpt as hc
model = hc.keras.load_model("full")
show("restored", model)
print(type(model).__name__, "iterations", int(model.optimizer.iterations))
"""
    shown = same_accuracy(work, program, printed)
    weights = work.python('import hpcckpt as hc\nhc.keras.load_model("training")', code=None)
    assert weights.code != 0
    return f"{shown}; weights only: {weights.out.splitlines()[-1][:140]}"


@row("works")
def a14(work: Work) -> str:
    """A14: `ls training/` shows `checkpoint`, `cp-0001.ckpt.index` and `cp-0001.ckpt.data-00000-of-00001`

    The same callback with `format="tf"` writes TensorFlow's files during the training.
    """
    trained(work)
    files = [f"cp-000{epoch}.ckpt.{part}" for epoch in (1, 2) for part in ("data-00000-of-00001", "index")]
    assert work.names("theirs") == ["checkpoint", *files], work.names("theirs")
    return "ls: " + " ".join(work.names("theirs"))


@row("works")
def a15(work: Work) -> str:
    """A15: `latest = tf.train.latest_checkpoint("training")` and `model.load_weights(latest)`

    The two lines run unchanged on a training with `format="tf"`. On checkpoints of hpcckpt, `hc.latest_checkpoint` and
    `hc.keras.load_weights` do the same.
    """
    printed = trained(work)
    lines = 'model = create_model()\nlatest = {}("{}")\n{}\nshow("restored", model)\n'
    shown = same_accuracy(
        work, lines.format("tf.train.latest_checkpoint", "theirs", "model.load_weights(latest)"), printed
    )
    ours = lines.format("hc.latest_checkpoint", "training", "hc.keras.load_weights(model, latest)")
    same_accuracy(work, "import hpcckpt as hc\n" + ours, printed)
    return f"both: {shown}"


@row("works")
def a16(work: Work) -> str:
    """A16: The example `restore.py` restores the earlier checkpoints

    `examples/tutorial.py` trains, and `examples/restore.py` restores each of its checkpoints. The accuracies are those
    that the training printed.
    """
    data = ["--data", str(work.mnist())]
    first = work.example("tutorial", "--directory", "training", "--epochs", "2", *data)
    done = work.example("restore", "training", *data)
    saved = re.findall(r"val_accuracy: (0\.\d+)", first.out)
    restored = re.findall(r"^cp-000\d\.ckpt: loss=\S+ accuracy=(0\.\d+)", done.out, re.MULTILINE)
    assert len(saved) == len(restored) == 2
    assert all(abs(float(a) - float(b)) < 2e-4 for a, b in zip(saved, restored, strict=True)), (saved, restored)
    return done.line("cp-0002.ckpt: loss=")


@row("works")
def a17(work: Work) -> str:
    """A17: `mnist.npz`, modules and TMPDIR on a compute node without a network

    An example trains from a file without a network (under `unshare -n`, where the host permits it). `hpcckpt train
    --check` runs likewise, with the data of an installed package.
    """
    isolated = work.sh("unshare -rn true", code=None).code == 0
    prefix = "unshare -rn " if isolated else "env http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 "
    example = ROOT / "examples" / "tmci_lenet5.py"
    done = work.sh(f"{prefix}python {example} --limit 500 --data {work.mnist()}", TMPDIR=str(work.directory))
    check = work.sh(f"{prefix}hpcckpt train -c {ROOT}/examples/configs/mnist.hjson --check")
    return f"{prefix.split()[0]}: {done.line('^scores are equal$')}; {check.line('nothing wrong')}"


@row("better")
def a18(work: Work) -> str:
    """A18: A crash after hours: continue from the last interval

    `hpcckpt verify-resume` kills a Keras training in the middle of an epoch with SIGKILL and starts it again. The
    result is bit-identical to that of a run that was not killed.
    """
    work.write("train.py", """
        import os, keras, numpy as np
        import hpcckpt.keras
        hpcckpt.enable_exact_resume(seed=1)
        x = np.random.default_rng(0).normal(size=(3200, 8)).astype("float32")
        model = keras.Sequential([
            keras.layers.Input((8,)), keras.layers.Dense(64, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1),
        ])
        model.compile("adam", "mse")
        model.fit(x, x.sum(1, keepdims=True), 32, epochs=2, verbose=0, callbacks=[hpcckpt.keras.BackupAndRestore(
            os.environ["HPCCKPT_RUN"], every_n_batches=20, every_n_minutes=60, delete_checkpoint=False)])
    """)  # fmt: skip
    done = work.sh("hpcckpt verify-resume --kill-after 60 -- python train.py")
    done.find(r"^ +killed +-9 ")
    return f"{done.line('^ +killed')}; {done.line('^ +model ')}"


@row("better")
def a19(work: Work) -> str:
    """A19: Restore with other resources

    A partly sharded state is saved on 2 ranks. It is restored on 3 ranks and on 1 rank, and by `hpcckpt restore` on 2
    ranks. The values are the same.
    """
    work.write("job.py", """
        import sys
        import numpy as np
        from mpi4py import MPI
        import hpcckpt as hc
        comm = MPI.COMM_WORLD
        rows = np.array_split(np.arange(600.0).reshape(60, 10), comm.size)
        offset = sum(len(part) for part in rows[: comm.rank])
        mine = rows[comm.rank].copy()
        state = {"w": np.arange(7.0), "table": hc.Sharded(mine, global_shape=(60, 10), offset=(offset, 0))}
        with hc.Checkpointer("runs/a", comm=comm) as ckpt:
            if sys.argv[1] == "save":
                ckpt.save(1, state)
            else:
                mine[:], state["w"][:] = 0, 0
                ckpt.restore(state)
                right = np.array_equal(mine, rows[comm.rank]) and np.array_equal(state["w"], np.arange(7.0))
                print(f"rank {comm.rank} of {comm.size}: {right}", flush=True)
    """)  # fmt: skip
    work.mpirun(2, "python", "job.py", "save")
    three, one = work.mpirun(3, "python", "job.py", "restore"), work.mpirun(1, "python", "job.py", "restore")
    assert three.total(r"rank \d of 3: True") == 3, three.tail()
    one.find("^rank 0 of 1: True$")
    written = work.mpirun(2, "hpcckpt", "restore", "runs/a", "--out", "a.npz")
    back = work.python('import numpy as np\nprint("table", float(np.load("a.npz")["table"].sum()))')
    back.find(r"^table 179700\.0$")
    return f"2 -> 3 and 1 ranks: equal; {written.out.splitlines()[-1][:100]}"


@row("works")
def a20(work: Work) -> str:
    """A20: Inspect, compare, transfer, share

    The row runs `hpcckpt diff` per tensor, a verified `copy`, `restore --out best.safetensors` and
    `load_weights(names=...)`. One page has a heading for each of the tutorial's four motives.
    """
    trained(work)
    steps = re.findall(r"^ +(\d+) ", work.sh("hpcckpt list training").out, re.MULTILINE)
    diff = work.sh(f"hpcckpt diff training {steps[0]} {steps[1]}", code=5)
    diff.find(r"^ *model/dense/kernel ")
    work.sh(
        "hpcckpt copy full shared/full && hpcckpt verify shared/full && hpcckpt restore full best --out best.safetensors"
    )
    done = work.python("""
        from model import create_model
        import hpcckpt as hc
        from safetensors.numpy import load_file
        print(len(load_file("best.safetensors")), "tensors in the file")
        print("loaded", hc.keras.load_weights(create_model(), "full", names="model/dense/*").loaded)
    """)
    done.find(r"^loaded .*model/dense/kernel")
    motives = ("resume|fault", "inspect|debug", "transfer", "share")
    found = [page for page in pages() if all(_in_heading(page, word) for word in motives)]
    assert found, f"no page has a heading for each of {', '.join(motives)}"
    return f"{diff.out.splitlines()[-1][:100]}; {done.line('tensors in the file')}; docs/{found[0].name}"


def pages() -> list[Path]:
    """Return the pages of the documentation, except docs/features.md."""
    return [page for page in sorted((ROOT / "docs").glob("*.md")) if page != PAGE]


def _in_heading(page: Path, word: str) -> bool:
    text = page.read_text(encoding="utf-8")
    return bool(re.search(rf"^#[^\n]*({word})", text, re.MULTILINE | re.IGNORECASE))


@row("works")
def a21(work: Work) -> str:
    """A21: HDF5 as the content of a checkpoint

    `backend="hdf5"` writes with the drivers direct, mpio and per-rank on 2 ranks. All three checkpoints are verified,
    and h5py finds the tensors by their names.
    """
    done = work.python(
        """
        import h5py, numpy as np, sys
        from pathlib import Path
        from mpi4py import MPI
        import hpcckpt as hc
        comm = MPI.COMM_WORLD
        for driver in ("direct", "mpio", "per-rank"):
            state = {"model": {"dense": {"kernel": np.full((64, 3), 2.0, "f4")}},
                     "table": hc.Sharded(np.full((4, 5), comm.rank), global_shape=(8, 5), offset=(4 * comm.rank, 0))}
            with hc.Checkpointer(f"runs/{driver}", comm=comm, backend="hdf5", backend_options={"driver": driver}) as ckpt:
                ckpt.save(1, state)
            comm.Barrier()
            if comm.rank == 0:
                with h5py.File(next(Path(f"runs/{driver}").rglob("checkpoint.h5"))) as file:
                    print(driver, file["model/dense/kernel"].shape, int(file["table"][:].sum()), flush=True)
        """,
        ranks=2,
    )
    for driver in ("direct", "mpio", "per-rank"):
        done.find(rf"{driver} \(64, 3\) 20")
        work.sh(f"hpcckpt verify runs/{driver}")
    return f"{done.line('mpio')}; 3 drivers verified"


@row("works")
def a22(work: Work) -> str:
    """A22: TensorBoard and the profiler

    `hpcckpt train` writes event files of the training, the validation and the checkpoints (stall, bytes, GB/s), and a
    profile.
    """
    work.write("config.hjson", """
        [{
          "datasets": { "ktf.datasets.synthetic.from_raw": { "n_images": 640, "size": 8, "batch_size": 32 } }
          "model": { "ktf.models.OneHeadNet": { "num_outputs": 10 } }
          "loss": { "tf.keras.losses.SparseCategoricalCrossentropy": { "from_logits": true } }
          "train_loop": { "ktf.train.KerasTrainLoop": { "num_epochs": 2, "callbacks": [
            { "tf.keras.callbacks.TensorBoard": { "log_dir": "board", "write_graph": true, "profile_batch": [5, 10] } }
          ] } }
        }]
    """)  # fmt: skip
    work.sh("hpcckpt train -c config.hjson --run runs/a")
    done = work.python("""
        from pathlib import Path
        import tensorflow as tf
        tags = set()
        for file in Path("board").rglob("events*"):
            for event in tf.compat.v1.train.summary_iterator(str(file)):
                tags |= {f"{file.parent.name}:{value.tag}" for value in event.summary.value}
        print("TAGS", *sorted(tags))
        print("PROFILES", len(list(Path("board").rglob("*.xplane.pb"))))
    """)
    tags = done.find(r"^TAGS (.*)$")[1]
    for tag in (
        "train:epoch_loss",
        "validation:epoch_loss",
        *(f"checkpoint/{name}" for name in ("stall_seconds", "bytes", "GBps")),
    ):
        assert tag in tags, tags
    done.find(r"^PROFILES [1-9]")
    return f"{tags}"[:200]
