"""Rows of ktf: training from a configuration file, without a program."""

from __future__ import annotations

import json
import re
import shutil

from tests.features.table import row
from tests.features.work import Done, Work
from tests.support.paths import ROOT, TESTS

SEEDS = TESTS / "frameworks/train/config/seeds"
FUNCTIONAL = TESTS / "frameworks/train/functional"
MODELS = ("OneHeadNet", "LeNet5", "MultiHeadNet", "EncoderDecoderNet", "TripletNet")
SHAPES = """
    [
      {
        "datasets": { "ktf.datasets.synthetic.from_raw": { "n_images": 640, "size": 8, "batch_size": 32 } },
        "model": { "ktf.models.OneHeadNet": { "num_outputs": 10 } },
        "loss": { "tf.keras.losses.SparseCategoricalCrossentropy": { "from_logits": true } },
        "metrics": [ "accuracy" ],
        "seed": 1
      }
    ]
"""


def train(work: Work, config: str, options: str = "", ranks: int = 0, code: int | None = 0, **env: str) -> Done:
    """Run ``hpcckpt train`` with `config`, the text of a configuration."""
    work.write("config.json", config)
    return work.mpirun(ranks, "bash", "-c", f"hpcckpt train -c config.json {options}", code=code, **env)


def changed(**keys: object) -> str:
    """Return the one-cycle configuration `SHAPES` with some keys replaced."""
    return json.dumps([{**json.loads(SHAPES)[0], **keys}])


def _functional(work: Work) -> Done:
    return work.sh(f"cd / && {FUNCTIONAL}/run.py --timeout 1500", code=None, limit_s=2400)


def functional(work: Work, name: str) -> str:
    """Return the line of a functional test that passed.

    All functional tests run once per session, from ``/``.
    """
    return work.session.once("functional", _functional).line(rf"^{name}\.\w+ +[\d.]+ s  passed$")


@row("works")
def k1(work: Work) -> str:
    """K1: `trainer.py -c config.json`: training without Python

    `hpcckpt train -c config.json` and `python -m hpcckpt.train -c config.json` train. The first also trains on 2 ranks
    under `mpirun`.
    """
    done = train(work, SHAPES, "--run runs/one")
    work.sh("python -m hpcckpt.train -c config.json --run runs/two")
    work.sh("hpcckpt diff runs/one/cycle-1/final runs/two/cycle-1/final")
    both = train(work, SHAPES, "--run runs/ranks", ranks=2)
    both.find(r"cycle=1/1 parameters=24234 trained=24234 ranks=2")
    return done.line(r"cycle=1/1 complete epochs=1 step=16")[:100]


@row("works")
def k2(work: Work) -> str:
    """K2: hjson: comments with `#`, `//` and `/* */`, and optional commas

    Both samples of ktf's documentation parse unchanged. For a file with all three comment styles, the effective
    configuration is printed.
    """
    work.write(
        "mine.hjson",
        """
        # one
        [
          { // two
            "datasets": { "ktf.datasets.synthetic.from_raw": { n_images: 64 } }
            /* three */ "model": { "ktf.models.OneHeadNet": { "num_outputs": 10 } }
            "loss": { "tf.keras.losses.SparseCategoricalCrossentropy": { "from_logits": true } }
          }
        ]
    """,
    )
    found = {}
    for name in ("mine.hjson", str(SEEDS / "simple.json"), str(SEEDS / "complex.json")):
        cycles = json.loads(work.sh(f"hpcckpt train -c {name} --print-config").out)
        found[name.rpartition("/")[2]] = [next(iter(cycle["model"])) for cycle in cycles]
    assert [len(models) for models in found.values()] == [1, 1, 2], found
    return f"models of the cycles: {found}"


@row("works")
def k3(work: Work) -> str:
    """K3: The simple sample of ktf's documentation, unchanged

    The row generates affNIST, which needs no network. Then `hpcckpt train -c` trains the sample.
    """
    work.sh("python -m hpcckpt.train.datasets.digits.affnist.raw_to_tfrecord data/affnist --n-images 1280")
    shutil.copy(SEEDS / "simple.json", work.directory)
    return work.sh("hpcckpt train -c simple.json --run runs/simple").line(r"cycle=1/1 complete epochs=1")[:100]


@row("works")
def k4(work: Work) -> str:
    """K4: The complex sample of ktf's documentation, unchanged

    MobileNetV2 trains on affNIST in two cycles, frozen in the first, with TensorBoard in both. The ImageNet weights
    come from Keras' cache. If they are missing, the error names the folder for them. The row puts random weights there.
    """
    work.sh("python -m hpcckpt.train.datasets.digits.affnist.raw_to_tfrecord data/affnist --n-images 384")
    shutil.copy(SEEDS / "complex.json", work.directory)
    offline = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    command = "TF_FORCE_GPU_ALLOW_GROWTH=true hpcckpt train -c complex.json --run runs/complex"
    refused = work.sh(command, code=2, **offline)
    name, folder = refused.find(r"(mobilenet_v2_weights_\S+_no_top\.h5) is not in ([^\s,]+),").groups()
    work.needs("the network", f"weights of ImageNet: {name} is not in {folder}")
    work.python(
        """
        import os, sys, tensorflow as tf
        os.makedirs(sys.argv[2], exist_ok=True)
        model = tf.keras.applications.MobileNetV2(include_top=False, weights=None, input_shape=(40, 40, 3))
        model.save_weights(os.path.join(sys.argv[2], sys.argv[1]))
        """,
        name, folder,
    )  # fmt: skip
    done = work.sh(command, limit_s=1800, **offline)
    done.find(r"cycle=1/2 complete epochs=10")
    done.find(r"cycle=2/2 262 tensors of cycle 1")
    return done.line(r"cycle=2/2 complete epochs=5")[:110]


@row("works")
def k5(work: Work) -> str:
    """K5: Cycles: a cycle inherits the keys that it leaves out, and continues from the weights of the previous one

    The second of two cycles has another optimizer. The effective configuration has the data of the first cycle. The
    second cycle starts from the tensors of cycle 1. The same command again trains nothing.
    """
    config = json.loads(SHAPES)
    config.append({"optimizer": {"tf.keras.optimizers.SGD": {"learning_rate": 0.01}}})
    text = json.dumps(config)
    shown = train(work, text, "--print-config")
    cycles = json.loads(shown.out)
    assert cycles[1]["datasets"] == cycles[0]["datasets"]
    assert cycles[1]["optimizer"] != cycles[0]["optimizer"]
    done = train(work, text, "--run runs/two")
    again = train(work, text, "--run runs/two")
    assert again.count("saved step=") == 0, again.tail()
    functional(work, "train_two_cycles")
    return f"{done.line(r'cycle=2/2 [0-9]+ tensors of cycle 1')}; {done.line('cycle=2/2 complete')[:60]}"


@row("better")
def k6(work: Work) -> str:
    """K6: Keys, defaults, and error messages for mistakes

    All problems are reported at once, with their places and the nearest name. `--print-config`, `--check` and `--set`
    work. `CustomTrainLoop` without a step is rejected.
    """
    wrong = json.loads(SHAPES)[0]
    wrong["optimiser"] = {"tf.keras.optimizers.Adam": {}}
    wrong["model"] = {"ktf.models.OneHeadNet": {"num_output": 10}}
    refused = train(work, json.dumps([wrong]), "--check", code=2)
    refused.find("did you mean 'num_outputs'")
    bare = train(work, changed(train_loop={"ktf.train.CustomTrainLoop": {}}), "--check", code=2)
    assert "Traceback" not in bare.out
    bare.find("has no train_step; name ktf.train.KerasTrainLoop, or an exported subclass")
    done = train(work, SHAPES, "--print-config --set '[0].optimizer.learning_rate=0.1'")
    effective = json.loads(done.out)[0]
    assert "Adam" in json.dumps(effective["optimizer"]), effective
    assert "0.1" in json.dumps(effective["optimizer"]), effective
    assert "KerasTrainLoop" in json.dumps(effective["train_loop"])
    train(work, SHAPES, "--check").find("1 cycle, nothing wrong")
    return refused.line("did you mean 'optimizer'")


@row("works")
def k7(work: Work) -> str:
    """K7: Factories by dotted path, nested, in lists; `tf` and `ktf` names; `import ktf` in programs

    The row trains with a learning-rate schedule in an optimizer, layers in a Sequential, and metrics. A name that is
    not permitted in a file is rejected unless `--allow` permits it. Programs use `import hpcckpt.train.ktf as ktf` with
    the names of ktf.
    """
    schedule = {
        "tf.keras.optimizers.schedules.ExponentialDecay": {
            "initial_learning_rate": 0.01,
            "decay_steps": 10,
            "decay_rate": 0.9,
        }
    }
    layers = [{"tf.keras.layers.Flatten": {}}, {"tf.keras.layers.Dense": {"units": 10}}]
    text = changed(
        model={"tf.keras.Sequential": {"layers": layers}},
        optimizer={"tf.keras.optimizers.Adam": {"learning_rate": schedule}},
        metrics=[
            {"tf.keras.metrics.SparseCategoricalAccuracy": {}},
            {"tf.keras.metrics.SparseTopKCategoricalAccuracy": {"k": 3}},
        ],
    )
    done = train(work, text, "--run runs/nested")
    refused = train(work, changed(train_loop={"os.system": {}}), "--check", code=2)
    refused.find(r"os\.system")
    own = work.python("""
        import hpcckpt.train.ktf as ktf
        import hpcckpt.train.ktf.models
        from hpcckpt.train.ktf.datasets import synthetic
        print("NAMES", ktf.train.Environment.__name__, ktf.train.KerasTrainLoop.__name__, ktf.models.OneHeadNet.__name__,
              ktf.datasets.synthetic is synthetic, ktf.train.export_config.__name__)
    """)
    own.find(r"^NAMES Environment KerasTrainLoop OneHeadNet True export_config$")
    return f"{done.line('cycle=1/1 complete')[:60]}; {own.line('^NAMES')}"


@row("works")
def k8(work: Work) -> str:
    """K8: `@export_config` and `Environment().run([...])`

    The program of ktf's documentation trains, with its module renamed and its missing colon added. The run directory
    has the name of the script.
    """
    work.write("hello.py", """
        #!/usr/bin/env python
        import hpcckpt.train
        import hpcckpt.train.models

        # Important: Use this decorator so ktf can see it from the config
        @hpcckpt.train.export_config
        class MyCustomModel(hpcckpt.train.models.OneHeadNet):
            def __init__(self, **kwargs):
                super(MyCustomModel, self).__init__(num_outputs=10, **kwargs)


        if __name__ == "__main__":
            train_env = hpcckpt.train.Environment()
            # Start training with the config
            print(train_env.run([
                {
                    "datasets": { "ktf.datasets.mnist.from_raw": { "limit": 1280 } },
                    "model": { "MyCustomModel": { "name": "my_hello_world_model" } },
                    "loss": { "tf.keras.losses.SparseCategoricalCrossentropy": { "from_logits": True } },
                }
            ])[0].history)
    """)  # fmt: skip
    done = work.sh("chmod +x hello.py && ./hello.py")
    assert work.names("runs") == ["hello"], work.names("runs")
    functional(work, "custom_model")
    return f"runs/hello; {done.out.splitlines()[-1][:100]}"


@row("works")
def k9(work: Work) -> str:
    """K9: `KerasTrainLoop(num_epochs, num_valid_steps, callbacks, freeze_submodels)`

    One file has all four. With `num_valid_steps` set to `null`, all validation steps are run.
    """
    loop = {
        "num_epochs": 2, "num_valid_steps": None, "freeze_submodels": ["base_model"],
        "callbacks": [{"tf.keras.callbacks.CSVLogger": {"filename": "epochs.csv"}}],
    }  # fmt: skip
    done = train(work, changed(train_loop={"ktf.train.KerasTrainLoop": loop}), "--run runs/a")
    done.find(r"frozen=base_model\b")
    done.find(r"cycle=1/1 complete epochs=2")
    few = train(work, changed(train_loop={"ktf.train.KerasTrainLoop": {**loop, "num_valid_steps": 1}}), "--check")
    rows = (work.directory / "epochs.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 3, rows
    found = few.find(r"^ +1  ktf\.models\.OneHeadNet +([\d,]+) +([\d,]+) +2 +16 +1 ")
    assert found[1] != found[2]
    return f"{done.line('frozen=')[:100]}; {found[0].strip()}"


@row("works")
def k10(work: Work) -> str:
    """K10: `CustomTrainLoop`

    A subclass with a GradientTape trains on 1 and on 2 ranks. Started again with more epochs, it resumes exactly.
    """
    work.write("tape.py", """
        import sys
        import tensorflow as tf
        import hpcckpt.train

        @hpcckpt.train.export_config
        class TapeLoop(hpcckpt.train.CustomTrainLoop):
            def train_step(self, batch):
                x, y = batch
                with tf.GradientTape() as tape:
                    predicted = self.model(x, training=True)
                    loss = self.loss(y, predicted)
                self.minimize(loss, tape)
                return {"loss": loss, **self.measure(y, predicted)}

        hpcckpt.train.Environment(sys.argv[1]).run([{
            "datasets": {"ktf.datasets.synthetic.from_raw": {"n_images": 640, "size": 8, "batch_size": 32}},
            "model": {"ktf.models.OneHeadNet": {"num_outputs": 10}},
            "loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}},
            "seed": 1,
            "train_loop": {"TapeLoop": {"num_epochs": int(sys.argv[2])}},
        }])
    """)  # fmt: skip
    work.sh("python tape.py runs/a 1")
    again = work.sh("python tape.py runs/a 2")
    both = work.mpirun(2, "python", "tape.py", "runs/b", "1")
    both.find(r"ranks=2")
    again.find(r"cycle=1/1 complete epochs=2")
    return again.line(r"resume step=16 .* level=exact")[:130]


@row("better")
def k11(work: Work) -> str:
    """K11: Weights are saved and loaded between cycles by default

    The weights are in the run directory, not in the directory for temporary files, and are verified. The second cycle
    starts with exactly the bits with which the first ended.
    """
    loop = {"ktf.train.KerasTrainLoop": {"num_epochs": 1}}
    still = {"tf.keras.optimizers.SGD": {"learning_rate": 0.0}}
    first = {**json.loads(SHAPES)[0], "train_loop": loop}
    done = train(work, json.dumps([first, {"optimizer": still}]), "--run runs/a")
    work.sh("hpcckpt verify runs/a/cycle-1 && hpcckpt verify runs/a/cycle-2")
    same = work.sh("hpcckpt diff runs/a/cycle-1/final runs/a/cycle-2/final --only 'model/*'")
    return f"{done.line('tensors of cycle 1')}; {same.out.splitlines()[-1]}"


@row("works")
def k12(work: Work) -> str:
    """K12: Lists of weights of submodels, saved and loaded

    One training uses `save_submodels: ["base_model", "base_model@block1"]`. Another, with another head, uses
    `load_submodels`.
    """
    loop = {"num_epochs": 1, "save_submodels": ["base_model", "base_model@block1"]}
    train(work, changed(train_loop={"ktf.train.KerasTrainLoop": loop}), "--run runs/first")
    assert work.names("runs/first/submodels"), "nothing was saved"
    found = sorted(work.names("runs/first/submodels"))
    listed = [{"name": "base_model", "path": "runs/first/submodels/base_model"}]
    loop = {"num_epochs": 1, "load_submodels": listed, "freeze_submodels": ["base_model"]}
    data = {"ktf.datasets.synthetic.from_raw": {"n_images": 640, "size": 8, "n_classes": 4, "batch_size": 32}}
    other = changed(
        model={"ktf.models.OneHeadNet": {"num_outputs": 4}},
        datasets=data,
        train_loop={"ktf.train.KerasTrainLoop": loop},
    )
    train(work, other, "--run runs/second")
    same = work.sh("hpcckpt diff runs/first/cycle-1/final runs/second/cycle-1/final --only 'model/base_model/*'")
    functional(work, "load_submodel_into_another_head")
    return f"submodels: {found}; {same.out.splitlines()[-1]}"


@row("works")
def k13(work: Work) -> str:
    """K13: `freeze_submodels`, with `a@b@c` for a submodel in a submodel

    Frozen weights keep their bits, nested or not. For a path that does not exist, the error lists the existing names
    and the nearest one.
    """
    wrong = {"ktf.train.KerasTrainLoop": {"freeze_submodels": ["base_model@block9"]}}
    done = train(work, changed(train_loop=wrong), "--run runs/a", code=2)
    line = functional(work, "freeze_submodels")
    return f"{done.line('did you mean')[-100:]}; {line}"


@row("works")
def k14(work: Work) -> str:
    """K14: Data sets: `parser.py`, `raw_to_tfrecord.py`, `dataset.py`; folders of images

    mnist, digits and synthetic have the three files, and no image is on two ranks. A training reads folders of image
    files. TFRecord shards made from such folders are streamed: the memory of the process grows by less than a quarter
    of what it reads.
    """
    datasets = ROOT / "hpcckpt/train/datasets"
    for name in ("mnist", "digits", "synthetic"):
        assert all((datasets / name / f"{file}.py").is_file() for file in ("parser", "raw_to_tfrecord", "dataset"))
    shares = work.python(
        """
        import numpy as np
        from mpi4py import MPI
        from hpcckpt.train.datasets import digits, sharing
        comm = MPI.COMM_WORLD
        with sharing(comm.rank, comm.size):
            train, _ = digits.from_raw(batch_size=16, seed=1)
        mine = {image.tobytes() for images, _ in train.as_numpy_iterator() for image in images}
        both = comm.gather(mine)
        if comm.rank == 0:
            print("SHARES", len(both[0]), len(both[1]), "in both:", len(both[0] & both[1]), flush=True)
        """,
        ranks=2,
    )
    shares.find(r"^SHARES [1-9]\d+ [1-9]\d+ in both: 0$")
    work.python("""
        import numpy as np, pathlib
        from PIL import Image
        rng = np.random.default_rng(0)
        for split, n in (("train", 3000), ("valid", 40)):
            for label in ("cats", "dogs"):
                folder = pathlib.Path("pictures", split, label)
                folder.mkdir(parents=True)
                for number in range(n):
                    pixels = rng.integers(0, 128, (64, 64, 3)) + (100 if label == "dogs" else 0)
                    Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png", compress_level=0)
    """)
    work.sh("python -m hpcckpt.train.datasets.folders.raw_to_tfrecord shards --data pictures/train")
    folders = {"directory": "pictures/valid", "image_size": 16, "batch_size": 8}
    two = {"ktf.models.OneHeadNet": {"num_outputs": 2}}
    done = train(work, changed(datasets={"ktf.datasets.folders.from_raw": folders}, model=two), "--run runs/folders")
    memory = work.python("""
        from pathlib import Path
        from hpcckpt.train.datasets import shards
        def field(name):
            return next(int(l.split()[1]) << 10 for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(name))
        train, _ = shards.from_tfrecord("shards", image_size=64, batch_size=16)
        images = train.as_numpy_iterator()
        next(images)
        Path("/proc/self/clear_refs").write_text("5")
        before, n = field("VmRSS:"), 0
        for batch, _ in images:
            n += batch.nbytes
        print("STREAMED", n >> 20, "MiB", "grew", (field("VmHWM:") - before) >> 20, "MiB")
    """)
    streamed, grown = map(int, memory.find(r"^STREAMED (\d+) MiB grew (-?\d+) MiB$").groups())
    assert streamed > 200, streamed
    assert grown < streamed / 4, memory.tail()
    return f"{shares.line('^SHARES')}; folders: {done.line('cycle=1/1 complete')[:50]}; {memory.line('^STREAMED')}"


@row("works")
def k15(work: Work) -> str:
    """K15: Networks, components, losses, heads

    Several heads on a ResNet, a sequence encoder and decoder, and regression train from example configurations. ResNets
    of depth 18 and 50 have as many weights as published.
    """
    lines = []
    for name in ("heads", "sequences", "regression"):
        config = ROOT / "examples/configs" / f"{name}.hjson"
        done = work.sh(f"hpcckpt train -c {config} --run runs/{name} --set train_loop.num_epochs=1")
        lines.append(f"{name}: {done.line(r'complete epochs=1')[9:60]}")
    data = {"ktf.datasets.synthetic.from_raw": {"n_images": 64, "size": 32, "channels": 3, "batch_size": 8}}
    counts = {}
    for depth in (18, 50):
        resnet = {"ktf.models.networks.ResNet": {"depth": depth, "name": "base_model"}}
        model = {"ktf.models.OneHeadNet": {"num_outputs": 10, "base_model": resnet}}
        found = train(work, changed(datasets=data, model=model), "--check").find(r"OneHeadNet +([\d,]+) ")
        counts[depth] = int(found[1].replace(",", ""))
    assert 11e6 < counts[18] < 12e6, counts  # as published: 11.2 and 23.5 million without the head of ImageNet
    assert 23e6 < counts[50] < 24.5e6, counts
    return f"{'; '.join(lines)}; weights of ResNet by depth: {counts}"


@row("works")
def k16(work: Work) -> str:
    """K16: Functional tests that print `*********** Passed ***********`

    `tests/frameworks/train/functional/run.py` runs them from `/`. It checks the exit code and the line, and that no
    files remain.
    """
    done = work.session.once("functional", _functional)
    assert done.code == 0, done.tail()
    return done.line(r"^\d+ passed, 0 failed$")


@row("works")
def k17(work: Work) -> str:
    """K17: Notebooks as tests; viewers of data sets and of models

    The tests run all notebooks from top to bottom. `python -m hpcckpt.train.view` shows the images of each data set.
    `notebooks/models.ipynb` shows the five models, each built from its configuration.
    """
    done = work.sh(
        f"python -m pytest -q -p no:cacheprovider --rootdir {ROOT} -c {ROOT}/pyproject.toml {ROOT}/tests/docs/test_notebooks.py"
        " -k runs", limit_s=1800,
    )  # fmt: skip
    sheets = []
    for name, options in (
        ("synthetic", {"n_images": 64}),
        ("digits", {}),
        ("mnist", {"limit": 64}),
        ("digits.affnist", {"n_images": 60}),
    ):
        work.write("view.json", changed(datasets={f"ktf.datasets.{name}.from_raw": {**options, "batch_size": 16}}))
        work.sh(f"python -m hpcckpt.train.view view.json -o {name}.png")
        assert (work.directory / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        sheets.append(name)
    shown = (ROOT / "notebooks/models.ipynb").read_text(encoding="utf-8")
    missing = [name for name in MODELS if f"ktf.models.{name}" not in shown]
    assert missing == [], f"the notebook does not show {missing}"
    return f"{done.line('[0-9]+ passed')}; pictures of {', '.join(sheets)}; models in the notebook: {', '.join(MODELS)}"


@row("works")
def k18(work: Work) -> str:
    """K18: Docker: build, push, clean; `docker run --gpus all`; Apptainer

    The scripts run with `--dry-run`, also for the GPU image, and the Apptainer file exists. The row builds no image; it
    lists Docker, Apptainer or a GPU as needed where one is missing.
    """
    build = work.sh(f"{ROOT}/docker/build_docker.sh --dry-run")
    work.sh(f"{ROOT}/docker/push_docker.sh registry.example.org/team --dry-run")
    is_running = work.sh("docker info", code=None).code == 0
    clean = work.sh(f"{ROOT}/docker/clean_docker.sh --dry-run", code=0 if is_running else 1)  # it asks what is there
    if not is_running:
        clean.line(r"daemon|none of: docker")
    gpu = work.sh(f"{ROOT}/docker/build_docker.sh --gpu --dry-run")
    gpu.line(r"build .*DEVICE=gpu")
    page = (ROOT / "docs/containers.md").read_text(encoding="utf-8")
    for command in ("docker run --rm -it", "docker run --gpus all", "apptainer build"):
        assert command in page, f"docs/containers.md has no {command}"
    assert (ROOT / "docker/apptainer.def").is_file()
    for program, command in (
        ("Docker", "docker info"),
        ("Apptainer", "apptainer --version"),
        ("a GPU", "nvidia-smi -L"),
    ):
        tried = work.sh(command, code=None)
        if tried.code != 0:
            work.needs(program, f"{command}: {tried.out.strip().splitlines()[-1] if tried.out.strip() else tried.code}")
    return build.line(r"\bbuild\b.*hpcckpt")[:150]


@row("works")
def k19(work: Work) -> str:
    """K19: Argo: `argo_train.sh`

    `docker/argo_train.sh --dry-run` prints a workflow that is valid YAML and retries on exit code 75. Submitting it
    needs a cluster.
    """
    work.write("mnist.hjson", (ROOT / "examples/configs/mnist.hjson").read_text(encoding="utf-8"))
    done = work.sh(
        f"{ROOT}/docker/argo_train.sh mnist.hjson --image registry.example.org/hpcckpt:1 --claim runs --ranks 2 --dry-run"
    )
    work.write("workflow.yaml", done.out)
    read = work.python("""
        import yaml
        workflow = yaml.safe_load(open("workflow.yaml"))
        print("KIND", workflow["kind"], workflow["apiVersion"], "retry" in str(workflow), "75" in str(workflow))
    """)
    tried = work.sh("kubectl create --dry-run=server -f workflow.yaml", code=None, limit_s=60)
    if tried.code != 0:
        work.needs("a Kubernetes cluster", "kubectl: " + (tried.out.strip().splitlines() or ["nothing"])[-1])
    return read.line(r"^KIND Workflow argoproj.io/\S+ True True$")


@row("works")
def k20(work: Work) -> str:
    """K20: The TensorBoard callback in a configuration, with `profile_batch: [10, 20]`

    The callback writes the events of the training, histograms, the graph and a profile. Its counters continue after a
    resume.
    """
    board = {
        "tf.keras.callbacks.TensorBoard": {
            "log_dir": "board",
            "histogram_freq": 1,
            "write_graph": True,
            "profile_batch": [10, 14],
        }
    }
    loop = {"ktf.train.KerasTrainLoop": {"num_epochs": 1, "callbacks": [board]}}
    train(work, changed(train_loop=loop), "--run runs/a")
    loop["ktf.train.KerasTrainLoop"]["num_epochs"] = 2
    train(work, changed(train_loop=loop), "--run runs/a")
    done = work.python("""
        from pathlib import Path
        import tensorflow as tf
        steps, kinds = {}, set()
        for file in sorted(Path("board").rglob("events*")):
            for event in tf.compat.v1.train.summary_iterator(str(file)):
                kinds |= {"graph"} if event.graph_def else set()
                for value in event.summary.value:
                    kinds.add(value.metadata.plugin_data.plugin_name or "scalars")
                    if value.tag == "epoch_loss":
                        steps.setdefault(file.parent.name, []).append(event.step)
        print("KINDS", sorted(kinds), "STEPS", steps, "PROFILES", len(list(Path("board").rglob("*.xplane.pb"))))
    """)
    done.find(r"'histograms'")
    done.find(r"'graph'")
    done.find(r"'train': \[0, 1\]")
    return done.line(r"^KINDS .* PROFILES [1-9]")[:180]


@row("works")
def k21(work: Work) -> str:
    """K21: `TF_FORCE_GPU_ALLOW_GROWTH`, `TF_GPU_THREAD_MODE`, and a check for GPUs after the installation

    Job scripts for nodes with GPUs export both; `hpcckpt doctor` has a line with the devices that TensorFlow finds.
    """
    script = work.sh(
        "hpcckpt jobscript --scheduler slurm --nodes 1 --gpus-per-node 4 --time 1h --run runs/a -- hpcckpt train -c a.hjson"
    )
    script.find("TF_FORCE_GPU_ALLOW_GROWTH")
    script.find("TF_GPU_THREAD_MODE")
    for _ in range(5):  # on a busy machine TensorFlow may not be imported in time
        found = work.sh("hpcckpt doctor", code=None).line(r"TF devices")
        if "not known" not in found:
            break
    assert "not known" not in found, found
    return found[:150]


@row("works")
def k22(work: Work) -> str:
    """K22: `requirements.txt`, `requirements_ext.txt`, a virtual environment

    The package has extras for each use. With only the required packages, numpy and four small ones, a program saves and
    loads. `make setup` creates a virtual environment.
    """
    done = work.python("""
        import sys, tomllib
        for name in ("tensorflow", "keras", "mpi4py", "h5py", "torch", "horovod", "hjson", "pydantic", "psutil", "matplotlib"):
            sys.modules[name] = None    # as if it were not installed
        import numpy as np
        import hpcckpt as hc
        with hc.Checkpointer("runs/a") as ckpt:
            ckpt.save(1, {"w": np.ones(3)})
        project = tomllib.load(open(sys.argv[1], "rb"))["project"]
        print("EXTRAS", *sorted(project["optional-dependencies"]))
        print("REQUIRED", *project["dependencies"], "enough:", float(hc.load("runs/a")["w"].sum()) == 3)
    """, str(ROOT / "pyproject.toml"))  # fmt: skip
    extras = done.find(r"^EXTRAS (.*)$")[1].split()
    assert {"tf", "horovod", "mpi", "hdf5", "torch", "train", "test", "dev"} <= set(extras), extras
    work.sh(f"make -n -C {ROOT} setup")
    return f"{done.line('^EXTRAS')}; {done.line('^REQUIRED .* enough: True$')}"


@row("works")
def k23(work: Work) -> str:
    """K23: Rules for the names of data and weights

    A paragraph of `docs/train.md` has the rules: lower case, groups of folders, not in the repository.
    """
    page = (ROOT / "docs/train.md").read_text(encoding="utf-8")
    found = re.search(r"Weights do not belong into a repository.*?digits/mnist/raw", page, re.DOTALL)
    assert found, "no such paragraph"
    return " ".join(found[0].split())[:150]


@row("better")
def k24(work: Work) -> str:
    """K24: FAQ: `CUDNN_STATUS_INTERNAL_ERROR`, slow trainings, `--shm-size`

    `docs/slow-training.md` has the command or setting for each. Row K20 writes the profile of a training for which the
    page asks.
    """
    page = (ROOT / "docs/slow-training.md").read_text(encoding="utf-8")
    words = ("CUDNN_STATUS_INTERNAL_ERROR", "TF_FORCE_GPU_ALLOW_GROWTH=true", "profile_batch", "--load_fast=false",
             "TF_GPU_THREAD_MODE=gpu_private", "--shm-size")  # fmt: skip
    missing = [word for word in words if word not in page]
    assert not missing, f"not in the page: {missing}"
    return f"{len(words)} of {len(words)} answers: {', '.join(words[:3])} …"


@row("better")
def k25(work: Work) -> str:
    """K25: Tools that convert raw data to TFRecord files

    `python -m hpcckpt.train.datasets.digits.raw_to_tfrecord` writes the files completely or not at all, with checksums.
    For a truncated file, the error names the file and the remedy.
    """
    tool = "python -m hpcckpt.train.datasets.digits.raw_to_tfrecord data/digits"
    work.sh(f"{tool} && {tool}")
    names = work.names("data/digits")
    assert "index.json" in names, names
    victim = next(name for name in names if name.startswith("train-"))
    cut = work.sh(f"truncate -s -1 data/digits/{victim} && {tool}", code=None)
    assert cut.code != 0
    return cut.line(rf"{victim}: has \d+ bytes, not \d+: remove data/digits")[:150]


@row("works")
def k26(work: Work) -> str:
    """K26: Places for optimizers, gradient algorithms, train steps and triplet-loss processors

    Triplet batches with their loss train from an example configuration. A user's package with an optimizer and a train
    step trains with `--allow`.
    """
    config = ROOT / "examples/configs/triplets.hjson"
    done = work.sh(f"hpcckpt train -c {config} --run runs/triplets --set train_loop.num_epochs=1")
    done.find(r"cycle=2/2 complete epochs=1")
    work.write(
        "mine/__init__.py",
        """
        import keras
        import tensorflow as tf
        from hpcckpt.train import CustomTrainLoop, export_config

        @export_config
        class SignSGD(keras.optimizers.SGD):
            def update_step(self, gradient, variable):
                super().update_step(tf.sign(gradient), variable)

        @export_config
        class ClippedLoop(CustomTrainLoop):
            def train_step(self, batch):
                x, y = batch
                with tf.GradientTape() as tape:
                    predicted = self.model(x, training=True)
                    loss = self.loss(y, predicted)
                self.minimize(loss, tape)
                return {"loss": loss, **self.measure(y, predicted)}
    """,
    )
    own = changed(optimizer={"SignSGD": {"learning_rate": 0.001}}, train_loop={"ClippedLoop": {"num_epochs": 1}})
    mine = train(work, own, "--run runs/mine --allow mine", PYTHONPATH=str(work.directory))
    return f"triplets: {done.line('cycle=1/2 complete')[:60]}; own optimizer and step: {mine.line('complete epochs=1')[:50]}"
