"""What each page assumes: a model, a run with steps, a killed job. All of it is real and small."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path
from types import ModuleType

import psutil

from tests.docs.pages import ROOT, Block, blocks_of
from tests.docs.plan import Action, Exempt, Handler, Hook, Setup
from tests.docs.runner import PageError, Runner

# -- checks of what cannot run ---------------------------------------------------------------------


def _script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def is_shell(runner: Runner, text: str) -> None:
    """Check the syntax, and that every command of hpcckpt in it is one that its parser takes."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    documented = _script("scripts/dev/documented.py")
    for command in documented.commands_in("page", text):
        documented.parse(command)


def is_make(runner: Runner, text: str) -> None:
    """Check that make knows the targets, and that other programs exist."""
    is_shell(runner, text)
    for words in (shlex.split(line, comments=True) for line in text.splitlines()):
        if words[0] == "make":
            done = subprocess.run(["make", "-n", "-C", ROOT, *words[1:]], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        else:
            assert (ROOT / words[1]).is_file()


def is_submission(runner: Runner, text: str) -> None:
    """Check options against what the scheduler documents, and the script with bash."""
    from tests.support.jobs import directives

    words = shlex.split(text, comments=True)
    scheduler = "slurm" if words[0] == "sbatch" else "cobalt" if "theta" in text else "pbs"
    dialect = directives.DIALECTS[scheduler]
    _, rest, problems = directives.read_words(words[1:], dialect, words[0])
    assert not problems, problems
    script = next(word for word in rest if word.startswith("scripts/"))
    assert subprocess.run(["bash", "-n", ROOT / script], check=False).returncode == 0


def is_dry_run(runner: Runner, text: str) -> None:
    """Run a script of the project with ``--dry-run``."""
    for name in ("mnist.hjson",):
        (runner.directory / name).write_text("[]", encoding="utf-8")
    runner.must(text.split("#")[0].strip() + " --dry-run")


def is_installed_here(runner: Runner, text: str) -> None:
    """Make the package of the working directory one that is found, without pip, and run the rest of the line."""
    project = next(runner.directory.glob("*/pyproject.toml"))
    described = tomllib.loads(project.read_text("utf-8"))["project"]
    info = project.parent / f"{described['name'].replace('-', '_')}-{described['version']}.dist-info"
    info.mkdir()
    name, version = described["name"], described["version"]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    groups = described["entry-points"].items()
    lines = [
        line for group, rows in groups for line in (f"[{group}]", *(f"{key} = {row}" for key, row in rows.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    runner.must(f"export PYTHONPATH={project.parent}")
    runner.must(text.partition("&&")[2] or "true")


def is_log(runner: Runner, text: str) -> None:
    """Check nothing but the name: what a scheduler wrote cannot be printed here."""
    assert text.startswith("cat ")


# -- handlers --------------------------------------------------------------------------------------


def program(name: str, preamble: str = "") -> Handler:
    """Return what writes a block to a file, which later commands run."""

    def write(runner: Runner, block: Block) -> None:
        (runner.directory / name).write_text(preamble + block.text, encoding="utf-8")

    return write


def output_of(command: str, only: str = "", *, until: str = "", may_fail: bool = False) -> Handler:
    """Return what compares a block with the output of a command."""

    def run(runner: Runner, block: Block) -> None:
        code, real = runner.shell(command)
        if code != 0 and not may_fail:
            raise PageError(f"{command} ended with {code}:\n" + "\n".join(real))
        lines = [line for line in real if re.search(only, line)]
        end = next((number for number, line in enumerate(lines, 1) if until and re.search(until, line)), None)
        runner.compare(block.place, block.lines, lines[:end])

    return run


def class_of_tests(old: str, new: str) -> Handler:
    """Return what runs a part of the tests of a class, for a backend that exists in place of a mere name."""

    def run(runner: Runner, block: Block) -> None:
        assert old in block.text
        (runner.directory / "test_mine.py").write_text(block.text.replace(old, new), encoding="utf-8")
        runner.must(f"python -m pytest -q -p no:cacheprovider -k TestMine -k {PART} {runner.directory}/test_mine.py")

    return run


PART = "'dtype or shard'"
"""Of a class of tests: the page's own package or a test elsewhere runs all of them."""


def their_setup(runner: Runner, block: Block) -> None:
    """Make ``~/.hpcckpt.sh`` what the page shows of it, check its syntax, and show it."""
    file = Path(runner.environment["HOME"]) / ".hpcckpt.sh"
    for command in block.commands:
        if command.text == "cat ~/.hpcckpt.sh":
            file.write_text("\n".join([*command.shown, ""]), encoding="utf-8")
            runner.must("bash -n ~/.hpcckpt.sh")
            runner.compare(block.place, command.shown, runner.must(command.text))
        else:
            runner.must(command.text)
    file.unlink()  # there are no modules here


def ran(preamble: str) -> Handler:
    """Return what runs a block as a program by itself, after what it assumes."""

    def run(runner: Runner, block: Block) -> None:
        (runner.directory / "alone.py").write_text(preamble + block.text, encoding="utf-8")
        runner.printed = runner.must("python alone.py")

    return run


def python_with(old: str, new: str) -> Handler:
    """Return what runs a block with a path of a site replaced by one that exists here."""

    def run(runner: Runner, block: Block) -> None:
        runner.python(block.text.replace(old, new), f"line-{block.line}", block.line)

    return run


def doctor_lines(runner: Runner, block: Block) -> None:
    """Run each line, on 2 ranks in place of 64: a problem would be exit code 1."""
    for line in block.lines:
        runner.must(line.replace("-n 64", "-n 2"))


def write_journal(runner: Runner, run: str, seconds: tuple[float, ...]) -> None:
    """Write the journal of a run whose saves took so long: no test may take that long itself."""
    path = runner.directory / run / "journal.jsonl"
    path.parent.mkdir(parents=True)
    events = [
        {"time": 1.8e9 + n, "event": "saved", "step": n, "bytes": 1, "seconds": each} for n, each in enumerate(seconds)
    ]
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")


def printed(runner: Runner, block: Block) -> None:
    """Compare a block with what the block before it printed."""
    runner.compare(block.place, block.lines, runner.printed)


def python(code: str):
    """Return a hook that runs code in the page's Python."""
    return lambda runner: runner.python(code)


def shell(command: str):
    """Return a hook that runs a command."""
    return lambda runner: runner.must(command)


def kill_at(pattern: str, path: str) -> Action:
    """Return what kills a command that has printed a line with the pattern, once a file exists."""

    def act(runner: Runner, line: str) -> None:
        if re.search(pattern, line):
            await_file(runner.directory / path)
            runner.kill()

    return act


def await_file(path: Path) -> None:
    """Return when a file exists; the time limit of the test ends it otherwise."""
    while not path.exists():
        time.sleep(0.005)


def chain_dry(runner: Runner, text: str) -> None:
    """Run the script with ``HPCCKPT_DRY_RUN=1``, and check what it would submit."""
    for line in runner.must(f"HPCCKPT_DRY_RUN=1 {text}"):
        if line.startswith("sbatch "):
            is_submission(runner, line)


def hdf5_run(driver: str) -> Hook:
    """Return what has three ranks save the state of the page, and keeps what they print."""
    code = f"""
import logging, numpy as np, sys
from mpi4py import MPI
import hpcckpt as hc
rank = MPI.COMM_WORLD.rank
logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
state = {{
    "embedding": hc.Sharded(np.zeros((400, 64)), global_shape=(1200, 64), offset=(400 * rank, 0)),
    "model": {{"conv2d_1": {{"bias": np.ones(32, np.float32), "kernel": np.ones((3, 3, 16, 32), np.float32)}}}},
    "rng": hc.PerRank(np.arange(4)),
}}
with hc.Checkpointer("run", backend="hdf5", backend_options={{"driver": {driver!r}}}) as ckpt:
    ckpt.save(10, state)
"""

    def run(runner: Runner) -> None:
        (runner.directory / ".save.py").write_text(code, encoding="utf-8")
        runner.must("rm -rf run")
        runner.printed = [line for line in runner.must("mpirun -n 3 python .save.py") if "driver=" in line]

    return run


def compiles(prefix: str, *options: str) -> Handler:
    """Return what has the C++ compiler read a block, with declarations of what it calls."""

    def run(runner: Runner, block: Block) -> None:
        includes = [line for line in block.lines if line.startswith("#include")]
        text = "\n".join(["#include <cstddef>", *includes, prefix, block.text])
        (runner.directory / "block.cpp").write_text(text, encoding="utf-8")
        flags = "$(python -c 'from hpcckpt.cli import places; print(places.include_dir())')"
        more = " ".join(options)
        runner.must(f"c++ -std=c++17 -fsyntax-only -I{flags} {more} {runner.directory}/block.cpp")

    return run


def cmake_project(runner: Runner, block: Block) -> None:
    """Configure and build a project of the block and the plugin of the page."""
    other = runner.directory / "other"
    other.mkdir()
    (other / "my_store.cpp").write_bytes((runner.directory / "my_store/my_store.cpp").read_bytes())
    text = f"cmake_minimum_required(VERSION 3.18)\nproject(other CXX)\n{block.text}"
    (other / "CMakeLists.txt").write_text(text, encoding="utf-8")
    runner.must(f"cmake -S {other} -B {other}/build -Dhpcckpt_DIR=$(python -m hpcckpt --cmake-dir)")
    runner.must(f"cmake --build {other}/build")


def suite_of_plugin(runner: Runner, block: Block) -> None:
    """Run the tests of the block against the plugin of the page, in part: each restores to the bit."""
    (runner.directory / "test_mine.py").write_text(block.text, encoding="utf-8")
    store = runner.directory / "my_store/build"
    runner.must(
        f"HPCCKPT_PLUGIN_PATH={store} python -m pytest -q -p no:cacheprovider -k {PART} {runner.directory}/test_mine.py"
    )


def stop_twice(runner: Runner, line: str) -> None:
    """Send SIGUSR1 to rank 1 of the first run, and have the second one find a file HALT."""
    if "watching signals" in line and not (runner.directory / "runs/loop").exists():
        for process in psutil.process_iter():
            is_ours = process.name().startswith("python") and runner.started(process)
            if is_ours and process.environ().get("OMPI_COMM_WORLD_RANK") == "1":
                process.send_signal(signal.SIGUSR1)
    elif re.match(r"loop: begins after step [1-9]", line) and not (runner.directory / "runs/loop/.HALT.done").exists():
        (runner.directory / "runs/loop/HALT").touch()


def layout_of_a_run(runner: Runner, block: Block) -> None:
    """Make a run in which much has happened, and look for each of its files among the lines of the page."""
    runner.python("""
import numpy as np, hpcckpt as hc
state = {"x": np.zeros(1000), "y": np.ones(3)}
for step, backend in ((41, "hdf5"), (42, "rankfile")):
    with hc.Checkpointer("run", backend=backend, on_newer="aside") as ckpt:
        ckpt.save(step, state).result()
        ckpt.save(step + 2, state).result()
""")
    runner.must("hpcckpt pin run 42; hpcckpt halt run || true")
    lines = [line.split("  ")[0].rstrip("/") for line in block.lines]
    shapes = [re.escape(line).replace("0000000042", r"\d{10}") for line in lines]
    shapes = [
        re.sub(r"<nonce>|<save_id>", "[0-9a-f]+", shape)
        .replace("rank\\-00000", r"rank-\d{5}")
        .replace("<name>", ".+")
        .replace(r"\*", ".*")
        for shape in shapes
    ]
    found = [path.relative_to(runner.directory).as_posix() for path in (runner.directory / "run").rglob("*")]
    unknown = [
        each
        for each in found
        if not any(re.match(shape, each) or shape.startswith(re.escape(each)) for shape in shapes)
    ]
    unknown = [
        each for each in unknown if not re.fullmatch(r"run/step-\d{10}(/data)?|run/\.pins|run/\.[a-z]+-.*", each)
    ]
    if unknown:
        raise PageError(f"{block.place}: not in the layout: {unknown}")


def header_of_a_file(runner: Runner, block: Block) -> None:
    """Compare the beginning of a data file with the page."""
    (path,) = (runner.directory / "run/step-0000000042/data").glob("rank-00000.safetensors")
    begins = re.escape(block.lines[0].partition("…")[0]).replace("xxxxxxxx", "[0-9a-f]{8}")
    if not re.match(begins, path.read_bytes()[8:].decode("utf-8", "replace")):
        raise PageError(f"{block.place}: the file begins {path.read_bytes()[:90]!r}")


def table_of_a_file(runner: Runner, block: Block) -> None:
    """Look for the line of the page at the end of a file of HDF5."""
    (path,) = runner.directory.glob("run/step-*41/data/checkpoint.h5")
    shape = re.sub(r"([ONC])\1+", lambda run: rf"[0-9a-f ]{{{len(run[0])}}}", block.lines[0])
    if not re.search(shape.encode(), path.read_bytes()):
        raise PageError(f"{block.place}: no such line in {path.name}")


def block_of(page: str, marker: str) -> Block:
    """Return the first block of a page that contains the marker."""
    return next(block for block in blocks_of(ROOT / page) if marker in block.text)


def digits(runner: Runner) -> None:
    """Write the configuration of docs/train.md, which other pages use too."""
    (runner.directory / "digits.hjson").write_text(block_of("docs/train.md", "# digits.hjson").text, encoding="utf-8")


def fragment(within: str = "{}") -> Handler:
    """Return what has `hpcckpt train` check a part of a configuration, in place of ``{}`` in the whole cycle."""

    def run(runner: Runner, block: Block) -> None:
        base = block_of("docs/train.md", "# digits.hjson").text.partition("// again")[0].rstrip()
        text = f"{base.removesuffix('}')}\n{within.replace('{}', block.text)}\n}}\n]\n"
        (runner.directory / "part.hjson").write_text(text, encoding="utf-8")
        runner.must("hpcckpt train -c part.hjson --print-config")

    return run


def checked_config(runner: Runner, block: Block) -> None:
    """Have `hpcckpt train` build all that a configuration names."""
    (runner.directory / "whole.hjson").write_text(block.text, encoding="utf-8")
    runner.must("hpcckpt train -c whole.hjson --check")


def files_exist(runner: Runner, block: Block) -> None:
    """Look for the files that a block lists."""
    for line in block.lines:
        pattern = line.split()[0].replace("…", "*")
        if not list(runner.directory.glob(pattern)):
            raise PageError(f"{block.place}: there is no {pattern}")


def is_pip(runner: Runner, text: str) -> None:
    """Check that the extras of hpcckpt exist."""
    is_shell(runner, text)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for names in re.findall(r"hpcckpt\[([\w,]+)\]", text):
        assert set(names.split(",")) <= set(extras)


def kill_when(pattern: str) -> Action:
    """Return what kills a command when it prints a line with the pattern."""
    return lambda runner, line: runner.kill() if re.search(pattern, line) else None


def joined(runner: Runner, block: Block, code: str) -> None:
    """Compare the message of an error with a block in which it is wrapped."""
    printing = "print(type(error).__name__ + ': ' + str(error))"
    raising = f"try:\n{textwrap.indent(code, '    ')}\nexcept Exception as error:\n    {printing}"
    runner.compare(block.place, [" ".join(block.lines)], runner.python(raising))


def training(runner: Runner) -> None:
    """Train the model of docs/convert.md for 4 steps, with checkpoints and the files of other programs."""
    runner.python(TRAINING)


TRAINING = """
import os
import numpy as np, tensorflow as tf, keras, hpcckpt as hc, hpcckpt.keras
keras.utils.set_random_seed(1)
def cnn(n_outputs=10):
    layers = keras.layers
    model = keras.Sequential([
        layers.Input((28, 28, 1)), layers.Conv2D(6, 5), layers.BatchNormalization(), layers.Flatten(),
        layers.Dense(n_outputs),
    ], name="cnn")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
images = np.random.default_rng(1).normal(size=(16, 28, 28, 1)).astype("float32")
labels = np.arange(16) % 10
model = cnn()
save = hpcckpt.keras.ModelCheckpoint("training/cp-{epoch:04d}.ckpt", max_to_keep=3)
model.fit(images, labels, batch_size=8, epochs=2, verbose=0, callbacks=[save])
model.save_weights("cp-0008.ckpt")
model.save("old.h5")
open("model.json", "w").write(model.to_json())
import safetensors.numpy
safetensors.numpy.save_file({"w": np.zeros(3)}, "pretrained.safetensors")
import torch
net = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(net.parameters(), 0.1)
torch.save({"model_state_dict": net.state_dict(), "optimizer_state_dict": sgd.state_dict()}, "checkpoint.pt")
"""


def is_demo(runner: Runner, text: str) -> None:
    """Check that the rows of the table are those of the program."""
    program = (ROOT / "examples/demo.py").read_text("utf-8")
    rows = re.findall(r"^│ ([a-z ]+?) +│", text, re.MULTILINE)
    assert rows
    assert not [row for row in rows if f'"{row}"' not in program]


def is_diff(runner: Runner, text: str) -> None:
    """Check that the new line is Python, and names what exists."""
    (new,) = [line[1:].strip().rstrip(",") for line in text.splitlines() if line.startswith("+")]
    documented = _script("scripts/dev/documented.py")
    names = list(documented.names_in_code(f"import hpcckpt\n{new}"))
    assert len(names) > 1
    for name in names:
        documented.load(name)


def start_job(runner: Runner, pause: str, n_steps: int = 1, *, halt_before: int = 0) -> None:
    """Start a job in the background, and return when that many steps are there.

    At step ``halt_before`` it waits until ``hpcckpt halt`` was called: a busy machine may call it late.
    """
    (runner.directory / ".loop.py").write_text(JOBS, encoding="utf-8")
    runner.must(f"python .loop.py {pause} {halt_before} > .loop.log 2>&1 &")
    while len(list((runner.directory / "runs/loop").glob("step-*"))) < n_steps:
        time.sleep(0.01)


def second_line(program: str) -> Action:
    """Return what kills a program that has printed two lines, and nothing else."""
    seen: list[str] = []

    def act(runner: Runner, line: str) -> None:
        seen.append(line)
        if sum("saved step" in each for each in seen) == 2:
            runner.kill(program)

    return act


def lenet5_and_more(runner: Runner) -> None:
    """Train LeNet5 as the page says, and make what else its commands are given."""
    command = next(command.text for command in block_of("docs/cli.md", "examples/lenet5.py").commands)
    runner.must(command)
    runner.must("cp -a runs/lenet5 lenet5.all")
    (runner.directory / ".die.py").write_text(KILLED_SAVE, encoding="utf-8")
    (runner.directory / "my_package").mkdir()
    (runner.directory / "my_package/models.py").write_text("from lenet5 import lenet5\n", encoding="utf-8")
    runner.must("export PYTHONPATH=$PWD/examples:$PWD")
    runner.must("python -c 'import lenet5; print(lenet5.lenet5().to_json())' > lenet5.json")
    digits(runner)
    training(runner)


def jq_line(runner: Runner, block: Block) -> None:
    """Run the line, and check that the step is the newest."""
    runner.must(block.text)
    assert runner.must("echo $step") == ["300"]


def two_aside(runner: Runner, block: Block) -> None:
    """Move two steps of a copy aside, and compare the line that reports them."""
    code = """
import numpy as np, hpcckpt as hc
with hc.Checkpointer("runs/back", on_newer="aside") as ckpt:
    ckpt.save(240, {"x": np.zeros(3)}).result()
"""
    (runner.directory / ".aside.py").write_text(code, encoding="utf-8")
    runner.must("cp -a lenet5.all runs/back; python .aside.py")
    runner.compare(
        block.place, block.lines, [line for line in runner.must("hpcckpt list runs/back") if "besides" in line]
    )


def verb_of_a_package(runner: Runner, block: Block) -> None:
    """Give a package the entry point of the block, and run its verb."""
    ((group, points),) = tomllib.loads(block.text)["project"]["entry-points"].items()
    ((verb, path),) = points.items()
    module, _, name = path.partition(":")
    package = runner.directory / module.partition(".")[0]
    package.mkdir()
    code = f"import click\n\n@click.command()\ndef {name}():\n    click.echo('hello')\n"
    (runner.directory / (module.replace(".", "/") + ".py")).write_text(code, encoding="utf-8")
    info = runner.directory / f"{package.name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\n{verb} = {path}\n", encoding="utf-8")
    assert runner.must(f"hpcckpt {verb}") == ["hello"]
    assert any(line.strip().startswith(verb) for line in runner.must("hpcckpt --help"))


def tmci_project(runner: Runner) -> None:
    """Make a project as TMCI's guide has it, and go there."""
    projects = _script("tests/frameworks/tmci/test_cmake_projects.py")
    directory = runner.directory / "tmci-project"
    (directory / "src").mkdir(parents=True)
    (directory / "CMakeLists.txt").write_text(projects.TMCI_STYLE, encoding="utf-8")
    (directory / "src/CMakeLists.txt").write_text(projects.TMCI_STYLE_SRC, encoding="utf-8")
    runner.must(f"cp {ROOT}/plugin/src/*Backend.* {directory}/src/ && cd {directory}")


NO_PIP = "installs from PyPI"
NO_SLURM = "needs a cluster with Slurm; tests/schedulers/slurm runs these scripts where Slurm is installed"
QUIET_KERAS = """
import os, warnings
import numpy as np, tensorflow as tf, keras
keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(64, 8)).astype("float32")
y = x.sum(axis=1, keepdims=True)
def make_model():
    dense = keras.layers.Dense
    model = keras.Sequential([keras.layers.Input((8,)), dense(4, activation="relu"), dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model
"""

SETUPS: dict[str, Setup] = {}

# -- get started -----------------------------------------------------------------------------------

SETUPS["docs/numpy.md"] = Setup(needs=("mpi4py", "mpirun!"))
SETUPS["docs/reasons.md"] = Setup(needs=("tensorflow",), decimals=False)
SETUPS["docs/start-keras.md"] = Setup(needs=("tensorflow",), decimals=False)
SETUPS["docs/start-horovod.md"] = Setup(needs=("tensorflow", "horovod", "mpi4py", "mpirun!"), decimals=False)
SETUPS["docs/start-tensorflow.md"] = Setup(needs=("tensorflow",), decimals=False)
SETUPS["docs/start-torch.md"] = Setup(needs=("torch", "mpi4py", "mpirun!"))
SETUPS["docs/start-train.md"] = Setup(needs=("tensorflow", "hjson"), decimals=False)
SETUPS["docs/start-lms.md"] = Setup(needs=("tensorflow",))
SETUPS["docs/start-operating.md"] = Setup()
SETUPS["docs/start-plugins.md"] = Setup(needs=("cmake!", "c++!"))
SETUPS["docs/keras.md"] = Setup(
    needs=("tensorflow",),
    prepare=lambda runner: (
        runner.python(
            QUIET_KERAS
            + """
def build_and_compile():
    return make_model()
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
"""
        ),
    ),
    before=[("class Report", python("import keras, hpcckpt as hc"))],
    handlers=[
        (
            "from hpcckpt.keras import ModelCheckpoint",
            program("best.py", QUIET_KERAS + "import hpcckpt as hc\nmodel = make_model()\n"),
        )
    ],
    decimals=False,
)
SETUPS["docs/tensorflow.md"] = Setup(
    needs=("tensorflow",),
    before=[
        ("hpcckpt tensors loop2", shell("python examples/tf_custom_loop.py --run loop2 --steps 60")),
    ],
    varying=[(r"uint8 +\[\d+\]", "uint8 [N]")],  # the iterator's state: what was read ahead
    decimals=False,
)
SETUPS["docs/torch.md"] = Setup(
    needs=("torch",),
    prepare=python("""
import torch, hpcckpt as hc
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(256, 4)
data = torch.utils.data.TensorDataset(x, x[:, :2])
torch.nn.functional.mse_loss(model(x), x[:, :2]).backward()
optimizer.step()
epochs = 1
"""),
    before=[("BatchSampler(", python("ckpt = hc.Checkpointer('runs/c')"))],
)

# -- guides ----------------------------------------------------------------------------------------

SETUPS["docs/jobscript.md"] = Setup(
    prepare=lambda runner: write_journal(runner, "runs/a", (60.2, 120.4, 90.0)),
    quick=True,
)
SETUPS["docs/features.md"] = Setup(
    exempt=[Exempt("make coverage", is_make, "trains for an hour; make coverage is outside of the suite")], quick=True
)
SETUPS["docs/benchmarks.md"] = Setup(
    exempt=[Exempt("make bench", is_make, "measures for an hour")],
    quick=True,
)
SETUPS["docs/peers.md"] = Setup(
    exempt=[
        Exempt(
            "make campaign",
            is_make,
            "an hour of kills, in environments of other libraries; tests/campaign/test_peers.py runs two of each",
        )
    ],
    quick=True,
)
SETUPS["docs/containers.md"] = Setup(
    exempt=[
        Exempt("docker ", is_shell, "needs a Docker engine"),
        Exempt("docker/build_docker.sh", is_dry_run, "needs a Docker engine"),
        Exempt("docker/push_docker.sh", is_dry_run, "needs a Docker engine"),
        Exempt("docker/argo_train.sh", is_dry_run, "needs Kubernetes"),
        Exempt("apptainer", is_shell, "needs Apptainer"),
    ],
    quick=True,
)
SETUPS["docs/train-parts.md"] = Setup(
    elsewhere=[("", "tests/frameworks/train/parts/test_page.py::test_the_program_of_the_page_trains_both_cycles")],
)
SETUPS["docs/tiers.md"] = Setup(
    prepare=python(
        "import os\nos.makedirs('scratch')\nimport numpy as np, hpcckpt as hc\nstep, state = 1, {'x': np.zeros(10)}"
    ),
    handlers=[("/local/scratch", python_with("/local/scratch", "scratch"))],
    quick=True,
)
SETUPS["docs/backends.md"] = Setup(
    needs=("h5py",),
    prepare=python("import hpcckpt as hc"),
    handlers=[("import BackendSuite", class_of_tests('backend = "mine"', 'backend = "raw"'))],
    exempt=[Exempt("pip install", is_installed_here, "pip would change the environment of the tests")],
)
SETUPS["docs/doctor.md"] = Setup(
    handlers=[
        ("# this installation", doctor_lines),
        (
            "is not clear",
            output_of(
                "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 hpcckpt list .",
                may_fail=True,
            ),
        ),
    ],
    exempt=[Exempt("srun", is_shell, "needs a cluster with Slurm")],
    needs=("mpi4py", "mpirun!"),
)

SITE = [
    (r"host=\S+", "host=H"),
    (r"left=\S+", "left=T"),
    (r"\b\d{8}-\d{6}-\d+", "UNIQUE"),
    (r"\b1[78]\d{8}\b", "UNIXTIME"),
]
LOG = "what a job of that scheduler wrote; tests/schedulers/jobs and tests/schedulers/slurm run such jobs"
SETUPS["docs/slurm.md"] = Setup(
    handlers=[("cat ~/.hpcckpt.sh", their_setup)],
    exempt=[
        Exempt("cat hpcckpt-", is_log, LOG),
        Exempt("chain.sh", chain_dry, NO_SLURM),
        Exempt("sbatch --", is_submission, NO_SLURM),
        Exempt("#SBATCH", is_shell, NO_SLURM),
    ],
    varying=SITE,
    decimals=False,
    needs=("tensorflow", "hjson"),
)
SETUPS["docs/pbs.md"] = Setup(
    handlers=[("cat ~/.hpcckpt.sh", their_setup)],
    before=[("HPCCKPT_DRY_RUN=1 HPCCKPT_CONFIG", shell("echo '[]' > digits.hjson"))],
    exempt=[
        Exempt("qsub ", is_submission, "needs PBS; tests/schedulers/jobs runs these scripts with simulated commands"),
        Exempt("cat hpcckpt.o", is_log, LOG),
    ],
    varying=SITE,
    decimals=False,
    quick=True,
)
SETUPS["docs/theta.md"] = Setup(
    exempt=[
        Exempt(
            "qsub ", is_submission, "needs Cobalt; tests/schedulers/jobs runs these scripts with simulated commands"
        ),
        Exempt("cat ", is_log, LOG),
    ],
    quick=True,
)
SETUPS["docs/hdf5.md"] = Setup(
    needs=("h5py", "mpi4py", "mpirun!", "h5ls!", "h5dump!"),
    prepare=python("import numpy as np, hpcckpt as hc\nstate = {'x': np.arange(3.0)}"),
    before=[
        ("h5ls -r", hdf5_run("direct")),
        ("ranks write one file together", hdf5_run("auto")),
        ("ls -l run", hdf5_run("per-rank")),
    ],
    filters=[("h5ls -v", r"Maps:|rank-0|^ +\}$")],
    exempt=[Exempt("CC=mpicc", is_shell, "compiles h5py; scripts/dev/setup.sh does so")],
    varying=[(r"\b(ext4|XFS|Btrfs|overlay|tmpfs)\b", "FS")],
    decimals=False,
)
SETUPS["docs/plugins.md"] = Setup(
    needs=("cmake!", "c++!"),
    prepare=shell(
        "hpcckpt plugin new my_store -q && cd my_store && cmake -S . -B build && cmake --build build"
        " && export HPCCKPT_PLUGIN_PATH=$PWD/build"
    ),
    handlers=[
        ("find_package(hpcckpt", cmake_project),
        ("class MyStore", compiles("template <class... Values> bool Put(Values&&...);\n")),
        ("class TestMyStore", suite_of_plugin),
    ],
)
SETUPS["docs/preemption.md"] = Setup(
    needs=("tensorflow", "horovod", "mpi4py", "mpirun!"),
    prepare=python(
        """
import numpy as np, hpcckpt as hc, hpcckpt.horovod
import horovod.tensorflow.keras as hvd
hvd.init()
state = {"x": np.zeros(3)}
ckpt = hc.Checkpointer("runs/guarded")
first, last = 0, 3
def train_one_batch(): pass
"""
    ),
    actions=[("requeue.sh", stop_twice)],
    before=[("requeue.sh", shell("unset HPCCKPT_JOB_END; rm -r runs/loop"))],
    filters=[("custom_loop.py", r"^(loop:|hpcckpt:|requeue)")],
    varying=[(r"step[= ]?\d+", "step=N"), (r"largest_error=\S+", ""), *SITE, (r"reserve=\S+|every=\S+", "")],
    decimals=False,
)
SETUPS["docs/format.md"] = Setup(
    needs=("h5py",),
    handlers=[
        ("run/step-0000000042/manifest.json", layout_of_a_run),
        ("hpcckpt.header_crc32c", header_of_a_file),
        ("hpcckpt-table-1", table_of_a_file),
    ],
    quick=True,
)

BAD_DIGITS = """
[
  {
    "datasets": { "ktf.datasets.mnist.from_raw": { "limit": 12800 } }
    "model": { "ktf.models.OneHeadNet": { "num_output": 10 } }
    "loss": "mse"
  }
  { "optimizer": { "tf.keras.optimizers.SDG": {} } }
]
"""
NO_STEP = """
[{
    "datasets": { "ktf.datasets.synthetic.from_raw": {} }
    "model": { "ktf.models.OneHeadNet": { "num_outputs": 10 } }
    "loss": { "tf.keras.losses.SparseCategoricalCrossentropy": { "from_logits": true } }
    "train_loop": { "ktf.train.CustomTrainLoop": {} }
}]
"""
BROKEN = """
[
  {
    "datasets": { "ktf.datasets.mnist.from_raw": {} }
    "model": { "ktf.models.OneHedNet": {} }
    "loss": "mse"
    "optimiser": {}
    "checkpoint": { "max_to_keep": 0 }
  }
  { "train_loop": { "ktf.train.KerasTrainLoop": {}, "num_epochs": 3 } }
]
"""
FEW_IMAGES = '--set \'[0].datasets={"ktf.datasets.mnist.from_raw": {"limit": 640}}\''
LOOP = '"train_loop": { "ktf.train.KerasTrainLoop": {\n{}\n} }'
TENSORBOARD = ("tensorboard --logdir", kill_when(r"TensorBoard .* at http"))
SETUPS["docs/train.md"] = Setup(
    needs=("tensorflow", "hjson", "mpi4py", "mpirun!"),
    prepare=lambda runner: (
        (runner.directory / "mistakes.hjson").write_text(BAD_DIGITS, encoding="utf-8"),
        (runner.directory / "config.hjson").write_text(NO_STEP, encoding="utf-8"),
    ),
    before=[
        ("runs/digits/environment.json", shell(f"hpcckpt train -c digits.hjson --run runs/digits {FEW_IMAGES}")),
        ("every_n_batches=50", shell("test ! -d runs/digits/cycle-2/final || rm -r runs/digits")),
        ("class TapeLoop", python("import tensorflow as tf")),
    ],
    handlers=[
        ("runs/digits/environment.json", files_exist),
        ('"checkpoint": {', fragment()),
        ('"freeze_submodels"', fragment()),
        ('"lms": {', fragment()),
        ('"callbacks": [\n', fragment(LOOP)),
    ],
    actions=[
        ("every_n_batches=50", kill_at("cycle=2/2 8 tensors", "runs/digits/cycle-2/step-0000000050")),
        TENSORBOARD,
    ],
    smaller=[("--run runs/digits-4", FEW_IMAGES)],
    varying=[(r"resume step=\d+ epoch=0 batch=\d+", "resume"), (r"step-00000\d+", "step-N")],
    exempt=[
        Exempt("srun", is_shell, NO_SLURM),
    ],
    decimals=False,
)
SETUPS["docs/train-config.md"] = Setup(
    needs=("tensorflow", "hjson"),
    prepare=lambda runner: (runner.directory / "broken.hjson").write_text(BROKEN, encoding="utf-8"),
    handlers=[
        ("the first cycle says", checked_config),
    ],
)
SETUPS["docs/slow-training.md"] = Setup(
    needs=("tensorflow", "hjson"),
    prepare=digits,
    handlers=[('"callbacks": [\n', fragment(LOOP))],
    actions=[TENSORBOARD],
    exempt=[Exempt("pip install", is_pip, NO_PIP)],
    varying=[
        (r"tfevents\.\d+\.[\w-]+\.\d+", "tfevents"),
        (r"\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d/[\w-]+\.xplane", "TIME/xplane"),
    ],
)
SETUPS["docs/convert.md"] = Setup(
    needs=("tensorflow", "torch", "safetensors"),
    prepare=training,
    before=[
        *((marker, shell("rm -rf runs/a")) for marker in ("cp-0008.ckpt", "old.h5", "pretrained.", "checkpoint.pt")),
        (
            'load_model("runs/a")',
            python("import shutil\nshutil.rmtree('runs/a')\nshutil.copytree('training', 'runs/a', symlinks=True)"),
        ),
    ],
    handlers=[
        (
            "StateMismatchError",
            lambda runner, block: joined(runner, block, "hc.keras.load_weights(cnn(12), 'training')"),
        )
    ],
    decimals=False,
)

# -- the first pages -------------------------------------------------------------------------------

VERSIONS = [(r"\b\d+\.\d+\.\d+\b", "VERSION")]
NUMBERS = [(r"\b([KMG]i)B\b", "B"), (r"-?\d[\d,.]*", "N")]
"""For pages whose figures are measurements: what is compared are the words."""
SETUPS["README.md"] = Setup(
    needs=("tensorflow", "horovod", "torch", "mpi4py", "hjson", "mpirun!"),
    prepare=python(
        QUIET_KERAS
        + """
import horovod.tensorflow.keras as hvd
hvd.init()
model = make_model()
data = my_shard = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
"""
    ),
    before=[
        (
            "hpcckpt.horovod.RestoreCallback",
            python("""
model = make_model()
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
"""),
        ),
        (
            "tensorflow.CheckpointManager",
            python("import hpcckpt.tensorflow\ncheckpoint = tf.train.Checkpoint(step=tf.Variable(1))"),
        ),
        (
            "torch.restore",
            python("""
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
ckpt, step = hpcckpt.Checkpointer("runs/torch"), 1
"""),
        ),
        ("hpcckpt.lms.LMS", python("model = make_model()")),
        (
            "hpcckpt list runs/a",
            python("""
import shutil
shutil.rmtree("runs/a")
with hc.Checkpointer("runs/a", max_to_keep=3) as ckpt:
    for step in (10, 20, 30, 40):
        ckpt.save(step, {"u": np.full(100_000, step, np.float64)}, metrics={"loss": 1 / step})
"""),
        ),
        (
            "hpcckpt verify runs/a",
            shell(
                "cd runs/a/step-0000000040/data && printf X"
                " | dd of=rank-00000.safetensors bs=1 seek=500000 conv=notrunc status=none && cd -"
            ),
        ),
    ],
    exempt=[
        Exempt(
            "make demo", is_make, "sets up the environment; tests/mpi/test_demo.py kills and resumes the same training"
        ),
        Exempt("make test", is_make, "is the suite itself"),
        Exempt(
            "launch 1: mpirun",
            is_demo,
            "three trainings of LeNet5; tests/mpi/test_demo.py kills and resumes the same training",
        ),
    ],
    smaller=[("hpcckpt train -c examples/configs/mnist.hjson", FEW_IMAGES)],
)
SETUPS["docs/horovod.md"] = Setup(
    needs=("tensorflow", "horovod", "mpi4py", "mpirun!"),
    prepare=lambda runner: (
        (runner.directory / "train.py").write_text(
            block_of("docs/start-horovod.md", "# train.py").text.replace("runs/hvd", "runs/a"), "utf-8"
        ),
        runner.must("python train.py 1"),
    ),
    before=[
        (
            "load_model(",
            python("import mpi4py.MPI, horovod.tensorflow.keras as hvd, hpcckpt as hc, hpcckpt.horovod\nhvd.init()"),
        ),
        (
            "DurableState(",
            python("""
import shutil, numpy as np, keras, horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd
shutil.rmtree("runs/a")
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
def batch(number):
    return np.ones((2, 2)), np.ones((2, 1))
"""),
        ),
        ("broadcast_state", python("shutil.rmtree('runs/a')")),
    ],
    exempt=[
        Exempt(
            "+        hpcckpt.horovod",
            is_diff,
            "a line of Horovod's example, which is not in this repository; "
            "tests/frameworks/horovod/test_published_example.py runs it",
        )
    ],
    varying=[(r"(bytes|kept)=\S+", "")],
    decimals=False,
)
JOBS = """
import sys, time
from pathlib import Path
import numpy as np
import hpcckpt as hc
hc.preemption.catch_signals()
state = {"weights": np.zeros(100_000)}
pause_s, halt_before = float(sys.argv[1]), int(sys.argv[2])
with hc.Checkpointer("runs/loop", max_to_keep=9) as ckpt:
    done = 0 if ckpt.latest_step() is None else ckpt.restore(state).step
    guard = hc.preemption.watch(ckpt, halt_every_s=0.05)
    for step in range(done + 1, 1_000_000):
        state["weights"] += 1e-3
        time.sleep(pause_s)
        while step == halt_before and not Path("runs/loop/HALT").exists():
            time.sleep(0.05)
        about = {"metrics": {"loss": 1 / step}, "objects": {"epoch": step // 100}}
        if guard.check(step).stop:
            guard.save_and_exit(state, **about)
        if step % 40 == 0:
            ckpt.save(step, state, **about)
"""
SETUPS["docs/operating.md"] = Setup(
    needs=("matplotlib",),
    prepare=lambda runner: (
        start_job(runner, "0.001", halt_before=250),
        runner.must("hpcckpt halt runs/loop --after-step 300 -q; wait"),
    ),
    before=[
        ("watch runs/loop --once", lambda runner: (runner.must("rm -r runs/loop"), start_job(runner, "0.025", 2))),
        (
            "halt runs/loop --after-step",
            lambda runner: (
                runner.must("hpcckpt halt runs/loop -q; wait; rm -r runs/loop"),
                start_job(runner, "0.025", 2, halt_before=250),
            ),
        ),
        (
            "hpcckpt report",
            lambda runner: (
                runner.must("wait"),
                start_job(runner, "0.001", 4),
                runner.must("hpcckpt halt runs/loop -q; wait"),
            ),
        ),
    ],
    actions=[("watch runs/loop | cat", second_line("hpcckpt watch"))],
    varying=[(r" on [\w-]+(?=,|\)|$)", " on H"), *NUMBERS],
)

# -- the command line ------------------------------------------------------------------------------

KILLED_SAVE = """
import os, shutil, sys
import numpy as np, hpcckpt as hc
from hpcckpt.core import failpoints
def die(phase, rank):
    if phase == "4-manifest":
        os._exit(137)
failpoints.install_hook(die)
with hc.Checkpointer("runs/lenet5") as ckpt:
    ckpt.save(350, {"x": np.zeros(500_000, np.float32)}).result()
"""
ALL = "rm -rf runs/lenet5 broken; cp -a lenet5.all runs/lenet5"
BROKEN_COPY = "rm -rf broken; cp -a lenet5.all broken; "
FLIP = """python - <<'END'
with open("broken/step-0000000300/data/rank-00001.safetensors", "r+b") as file:
    file.seek(1_000_000)
    byte = file.read(1)
    file.seek(1_000_000)
    file.write(bytes([byte[0] ^ 1]))
END"""
SETUPS["docs/cli.md"] = Setup(
    needs=("tensorflow", "horovod", "mpi4py", "torch", "safetensors", "matplotlib", "hjson", "mpirun!", "jq!", "c++!"),
    prepare=lambda runner: lenet5_and_more(runner),
    before=[
        ("hpcckpt list runs/lenet5", shell(f"{ALL}; hpcckpt pin runs/lenet5 250 -q; python .die.py || true")),
        ("hpcckpt verify broken", shell(BROKEN_COPY + FLIP)),
        ("--out lenet5.weights.h5 --model lenet5.json", shell("rm -f lenet5.weights.h5")),
        ("my_package.models", shell("rm -f lenet5.weights.h5")),
        ("hpcckpt pin runs/lenet5 250", shell(f"{ALL}; python .die.py || true")),
        (
            "hpcckpt list broken",
            shell(
                BROKEN_COPY
                + "rm broken/step-0000000300/manifest.json; "
                + "sed -i s/rankfile/rankfilf/ broken/step-0000000250/manifest.json"
            ),
        ),
        (
            "hpcckpt repair broken --yes",
            shell(
                BROKEN_COPY
                + "rm broken/step-0000000300/manifest.json broken/step-0000000300/data/rank-00001.safetensors"
            ),
        ),
        (
            "repair runs/lenet5/.aside",
            shell(f"{ALL}; mv runs/lenet5/step-0000000300 runs/lenet5/.aside-step-0000000300-5f0c9a77d1e2"),
        ),
        ("hpcckpt reshard runs/lenet5 --files", shell(ALL)),
        (
            "hpcckpt copy /local/scratch",
            shell("mkdir -p scratch; cp -a lenet5.all scratch/lenet5-5f0c9a77d1e2; rm -r runs/lenet5/step-0000000300"),
        ),
        ("--bandwidth 200M", shell("mkdir -p archive; hpcckpt copy runs/lenet5 archive/lenet5 200 -q")),
    ],
    handlers=[
        ("jq .resume_step", jq_line),
        ("besides: 2 directories", two_aside),
        ("hpcckpt.commands", verb_of_a_package),
    ],
    exempt=[
        Exempt("--kills 2", is_shell, "four Horovod trainings; tests/cli/test_verify_resume.py runs the verb"),
        Exempt("srun", is_shell, NO_SLURM),
        Exempt("#SBATCH", is_shell, "lines of a batch script"),
    ],
    paths={"/local/scratch/": "scratch/", "/archive/": "archive/"},
    varying=[
        (r"^(ok|note|warning|problem) +(\S+(?: \S+)*)  .*", r"\1 \2"),
        *VERSIONS,
        (r"\d+ of \d+ elements", "N elements"),
        (r"(accuracy|loss)\"?:? [\d.]+", r"\1"),
        (r"nbytes\"?: \d+", "nbytes"),
        (r"-?\d\.\d+e-\d+", "DECIMAL"),
        (r"max \|d\| \S+", "max |d|"),
        (r"metrics#\d", "metrics#N"),
    ],
    decimals=False,
)
GRAPH = """
import logging, sys
import numpy as np, tensorflow as tf
import hpcckpt as hc, hpcckpt.lms
from hpcckpt.lms import LMS
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
tf1 = tf.compat.v1
tf1.disable_v2_behavior()
x, y = tf1.placeholder(tf.float32, (None, 16)), tf1.placeholder(tf.float32, (None, 16))
h = x
for number in range(4):
    with tf1.variable_scope(f"layer{number}"):
        h = tf.tanh(tf.matmul(h, tf1.get_variable("w", (16, 16))))
with tf1.name_scope("dropout"):
    h = tf1.nn.dropout(h, rate=0.5)
with tf1.name_scope("loss"):
    loss = tf.reduce_mean((h - y) ** 2)
with tf1.name_scope("accuracy"):
    accuracy = tf.reduce_mean(tf.abs(h - y))
train = tf1.train.AdamOptimizer().minimize(loss)
"""
SESSION = """
LMS(swapout_threshold=5, swapin_ahead=3, swapin_groupby=2, sync_mode=0).run(tf1.get_default_graph())
session, saver = tf1.Session(), tf1.train.Saver()
session.run(tf1.global_variables_initializer())
session.run(train, {x: np.zeros((4, 16)), y: np.ones((4, 16))})
inputs, outputs = {"x": x}, {"h": h}
"""
DEBUG = (
    GRAPH
    + """
lms = LMS(swapout_threshold=5, swapin_ahead=3, swapin_groupby=2, sync_mode=0, debug=True, debug_level=2)
lms.run(tf1.get_default_graph())
"""
)
SMALL = "CUDA_VISIBLE_DEVICES= TF_ENABLE_ONEDNN_OPTS=1 python examples"
SETUPS["docs/lms.md"] = Setup(
    needs=("tensorflow", "horovod", "mpi4py", "mpirun!"),
    environment={"TF_ENABLE_ONEDNN_OPTS": "1"},
    handlers=[
        (
            "memory budget: 150.00 MiB",
            output_of(f"{SMALL}/lms_mnist_keras.py --limit 512", r"^\[LMS", until="Verified"),
        ),
        ("[LMS][1] Operation: layer0", output_of(f"python -c '{DEBUG}'", r"^\[LMS\]\[1\] [^\[]")),
        ("LMS(swapout_threshold=50", ran(GRAPH)),
        ("saver.save(session", ran(GRAPH + SESSION)),
    ],
    decimals=False,
)
SETUPS["docs/tmci.md"] = Setup(
    needs=("tensorflow", "cmake!", "c++!"),
    prepare=lambda runner: (
        runner.must(f"rm plugin; cp -r {ROOT}/plugin plugin; rm -rf plugin/build; mkdir build"),
        runner.must("cp $(hpcckpt backends --json | grep -o '/[^\"]*libdummy.so') build/"),
        runner.python(QUIET_KERAS + "model = make_model()"),
    ),
    before=[
        ("sed -i", tmci_project),
        ("cp ~/tmci", shell("mkdir -p ~/tmci && cp -r $OLDPWD/plugin ~/tmci/")),
        ("hpcckpt plugin new my_plugin", shell("cd $ROOT_OF_PAGE")),
        ("hpcckpt list runs/a", shell("cd $ROOT_OF_PAGE")),
        ("cd plugin", shell("export ROOT_OF_PAGE=$PWD")),
    ],
    handlers=[
        (
            "variables = {",
            ran("import tensorflow as tf, hpcckpt.tmci as tmci\ntmci.plugins.load('build/libdummy.so')\n"),
        ),
        ("[DUMMY] Saving 2 tensors", printed),
        ("class MyBackend", compiles("", "-I$(python -m hpcckpt --tmci-include-dirs | sed 's/;/ -I/g')")),
    ],
    exempt=[
        Exempt(
            "mpirun -n 3 python train.py",
            is_shell,
            "compiles for half a minute; tests/frameworks/tmci has the library built by several processes",
        ),
        Exempt("python train.py", is_shell, "needs a machine without a compiler"),
    ],
    smaller=[("examples/tmci_lenet5.py", "--limit 1000")],
    varying=[(r"0x[0-9a-f]+", "ADDRESS"), (r"/\S*/(?=site-packages)", "/")],
    decimals=False,
)
