"""The verb itself: what it prints and exits with, alone and on several ranks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcckpt
from hpcckpt.train.config.cycles import cycles, effective
from hpcckpt.train.config.read import parse
from tests.support.mpi.launch import clean_environment

Train = Callable[..., Any]
Make = Callable[..., dict[str, Any]]
LAUNCHER_VARIABLES = ("OMPI_", "PMI", "PMIX_", "SLURM_", "PALS_", "ALPS_")
ROOT = str(Path(hpcckpt.__file__).parents[1])


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [ROOT, kept.get("PYTHONPATH")])), **more}


def spawn(command: list[str], cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=250, check=False
    )


def module(*words: str) -> list[str]:
    return [sys.executable, "-m", "hpcckpt.train", *words]


def on_ranks(n: int, *words: str) -> list[str]:
    command = " ".join([sys.executable, "-m", "hpcckpt", "train", *words])
    return ["mpirun", "-n", str(n), "sh", "-c", f"{command}; echo code $?"]


MPI = {name: value for name, value in clean_environment().items() if name.startswith(("OMPI_", "PRTE_"))}
"""Settings of the launcher: ranks that wait give up their core."""
needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")


# -- --print-config --------------------------------------------------------------------------------


def test_both_cycles_of_the_complex_sample_are_printed_resolved(train: Train, seeds: Path) -> None:
    result = train(seeds / "complex.json", "--print-config")
    assert (result.code, result.err) == (0, "")
    first, second = result.json
    assert second["model"] == first["model"]
    assert second["optimizer"] == {"tf.keras.optimizers.Adam": {"learning_rate": 0.00025}}
    assert first["checkpoint"]["max_to_keep"] == 3


def test_what_is_printed_is_a_configuration_that_says_the_same(train: Train, seeds: Path) -> None:
    result = train(seeds / "complex.json", "--print-config", "--set", "seed=3")
    again = effective(cycles(parse(result.out, "printed")))
    assert again == result.json
    assert [cycle["seed"] for cycle in again] == [3, 3]


def test_printing_needs_neither_frameworks_nor_what_is_named(seeds: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    for name in ("tensorflow", "keras", "mpi4py"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text("raise ImportError('not on this machine')", encoding="utf-8")
    path = os.pathsep.join([str(blocked), ROOT])
    done = spawn(module("-c", str(seeds / "complex.json"), "--print-config"), tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)) == 2


def test_the_module_is_the_verb(seeds: Path, tmp_path: Path) -> None:
    verb = [sys.executable, "-m", "hpcckpt", "train"]
    words = ["-c", str(seeds / "simple.json"), "--print-config"]
    assert spawn(module(*words), tmp_path).stdout == spawn([*verb, *words], tmp_path).stdout
    assert spawn(module("--help"), tmp_path).stdout.startswith("Usage: hpcckpt train [OPTIONS]")


def test_a_configuration_may_come_from_standard_input(seeds: Path, tmp_path: Path) -> None:
    text = (seeds / "simple.json").read_text(encoding="utf-8")
    done = subprocess.run(
        module("-c", "-", "--print-config"),
        input=text,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["seed"] is None


def test_help_and_wrong_words_load_no_framework(tmp_path: Path) -> None:
    code = (
        "import sys; from hpcckpt.cli import main\n"
        "main(['train', '--help']); main(['train', '--nonsense']); main(['train', '-c', 'no.json', '--check'])\n"
        "print([n for n in ('tensorflow', 'keras', 'mpi4py', 'horovod', 'torch') if n in sys.modules])"
    )
    done = spawn([sys.executable, "-c", code], tmp_path)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


# -- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "Missing option '-c'"),
        (["-c"], "requires an argument"),
        (["-c", "no.json"], "error: no.json: there is no such file"),
        (["-c", "."], "error: .: is a directory"),
        (["-c", "ok.json", "--set", "nonsense"], "ok.json: --set nonsense: is no change; write PATH=VALUE"),
        (["-c", "ok.json", "--allow", "no_such_root"], "--allow no_such_root: there is no such module"),
        (["-c", "ok.json", "--resume", "sometimes", "--check"], "sometimes"),
        (["-c", "ok.json", "--run", "ok.json"], "is a file"),
    ],
)
def test_wrong_words_exit_with_2(words: list[str], says: str, tmp_path: Path, cycle: Make) -> None:
    (tmp_path / "ok.json").write_text(json.dumps([cycle()]), encoding="utf-8")
    done = spawn([sys.executable, "-m", "hpcckpt", "train", *words], tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["ok.json"]


def test_without_the_extra_it_is_told_what_to_install(seeds: Path, tmp_path: Path) -> None:
    for name in ("pydantic", "hjson"):
        (tmp_path / name / name).mkdir(parents=True)
        (tmp_path / name / name / "__init__.py").write_text(
            "raise ImportError('No module named pydantic')", encoding="utf-8"
        )
        path = os.pathsep.join([str(tmp_path / name), ROOT])
        done = spawn(module("-c", str(seeds / "simple.json"), "--print-config"), tmp_path, PYTHONPATH=path)
        assert done.returncode == 2
        assert "pip install 'hpcckpt[train]'" in done.stderr
        assert "Traceback" not in done.stderr


# -- --check ---------------------------------------------------------------------------------------

SMALL = {"ktf.models.OneHeadNet": {"num_outputs": 10, "base_model": {"ktf.models.networks.SmallConvNet": {}}}}


def test_a_check_builds_everything_and_leaves_nothing_behind(train: Train, cycle: Make, tmp_path: Path) -> None:
    raw = [cycle(model=SMALL), {"train_loop": {"ktf.train.KerasTrainLoop": {"freeze_submodels": ["base_model"]}}}]
    result = train(raw, "--check")
    assert result.code == 0, result.err
    assert "2 cycles, nothing wrong" in result.err
    header, first, second = result.out.splitlines()
    assert header.split()[:3] == ["CYCLE", "MODEL", "PARAMETERS"]
    assert first.split()[:2] == ["1", "ktf.models.OneHeadNet"]
    assert second.split()[-1] == "base_model"
    assert os.listdir(tmp_path) == ["config.json"]


def test_a_check_for_programs(train: Train, cycle: Make) -> None:
    result = train([cycle(model=SMALL)], "--check", "--json")
    assert result.code == 0, result.err
    (only,) = result.json["cycles"]
    assert result.json["ok"] is True
    assert (only["number"], only["ranks"], only["epochs"]) == (1, 1, 1)
    assert only["parameters"] == only["trained"] > 1000


@pytest.mark.parametrize(
    ("monitor", "text"),
    [("speed", "; there are loss, val_loss"), ("max:val_los", "; did you mean 'val_loss'?"), ("val_loss", None)],
)
def test_a_check_warns_of_a_monitor_that_no_epoch_will_have(
    monitor: str, text: str | None, train: Train, cycle: Make
) -> None:
    raw = [cycle(model=SMALL, checkpoint={"keep_best": 1, "monitor": monitor})]
    result = train(raw, "--check", "--json")
    (warnings,) = (each["warnings"] for each in result.json["cycles"])
    name = monitor.removeprefix("max:")
    wanted = f"checkpoint.monitor: there is no metric {name!r}, keep_best keeps nothing{text}"
    assert (result.code, warnings) == (0, [] if text is None else [wanted])
    assert result.err == ("" if text is None else f"hpcckpt: warning: cycle 1: {wanted}\n")


def test_what_is_set_is_what_is_checked(train: Train, cycle: Make) -> None:
    raw = [cycle(model=SMALL)]
    assert train(raw, "--check", "--json", "--set", "train_loop.num_epochs=7").json["cycles"][0]["epochs"] == 7
    wrong = train(raw, "--check", "--set", "model.num_outputs=ten")
    assert wrong.code == 2
    assert "[0].model.ktf.models.OneHeadNet.num_outputs: 'ten' is not accepted; give a whole number" in wrong.err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my_model", "my_parts.my_model"])
def test_a_package_that_is_allowed_is_trained_with(name: str, tmp_path: Path, cycle: Make, train: Train) -> None:
    (tmp_path / "my_parts.py").write_text(
        "import keras\nfrom hpcckpt.train import export_config\n"
        "@export_config\ndef my_model(n):\n"
        "    return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(n)])\n",
        encoding="utf-8",
    )
    raw = [cycle(model={name: {"n": 10}})]
    refused = train(raw, "--check")
    assert refused.code == 2
    assert f"[0].model.{name}: " in refused.err
    done = spawn(module("-c", "config.json", "--check", "--allow", "my_parts"), tmp_path)
    assert done.returncode == 0, done.stderr


# -- training --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_training_writes_a_line_for_each_cycle(train: Train, cycle: Make, tmp_path: Path) -> None:
    raw = [cycle(model=SMALL, metrics=["accuracy"], seed=1), {"optimizer": {"tf.keras.optimizers.SGD": {}}}]
    result = train(raw, "--run", "run", "-q", "--json", "--set", "datasets.limit=128")
    assert result.code == 0, result.err
    assert [each["cycle"] for each in result.json["cycles"]] == [1, 2]
    assert len(result.json["cycles"][0]["history"]["accuracy"]) == 1
    again = train(raw, "--run", "run", "--set", "datasets.limit=128")
    assert again.code == 0, again.err
    header, *rows = again.out.splitlines()
    assert header.split()[:3] == ["CYCLE", "EPOCHS", "LOSS"]
    assert [row.split()[:2] for row in rows] == [["1", "1"], ["2", "1"]]


NOISY = """
import threading
import keras
from hpcckpt.train import export_config

print("noise of an import")

@export_config
class Noisy(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("noise of a callback")
        thread = threading.Thread(target=print, args=("noise of a thread",))
        thread.start()
        thread.join()
"""


@pytest.mark.parametrize("n_ranks", [1, pytest.param(2, marks=[pytest.mark.slow, needs_mpi])])
def test_with_json_stdout_is_one_document_whatever_the_program_prints(
    n_ranks: int, tmp_path: Path, cycle: Make
) -> None:
    (tmp_path / "noisy.py").write_text(NOISY, encoding="utf-8")
    stopping = {"tf.keras.callbacks.EarlyStopping": {"monitor": "loss", "min_delta": 1e9, "patience": 1, "verbose": 1}}
    loop = {"hpcckpt.train.KerasTrainLoop": {"num_epochs": 3, "callbacks": [{"noisy.Noisy": {}}, stopping]}}
    raw = [cycle(model=SMALL, train_loop=loop, datasets={"hpcckpt.train.datasets.digits.from_raw": {"limit": 128}})]
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    words = module("-c", "config.json", "--allow", "noisy", "--run", "run", "-q", "--json")
    launcher = ["mpirun", "-n", str(n_ranks)] if n_ranks > 1 else []
    done = spawn([*launcher, *words], tmp_path, **MPI)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["cycles"][0]["history"]["loss"]) == 2
    lines = re.findall("noise of a[n]? [a-z]+|early stopping", done.stderr)
    heard = ["noise of an import", *["noise of a callback", "noise of a thread"] * 2, "early stopping"]
    assert sorted(lines) == sorted(heard * n_ranks)
    assert n_ranks > 1 or lines == heard


def test_what_a_callback_raises_is_no_fault_of_ours_and_is_told_with_its_traceback(train: Train, cycle: Make) -> None:
    callback = {"tf.keras.callbacks.ModelCheckpoint": {"filepath": "x{nope}.weights.h5", "save_weights_only": True}}
    loop = {"hpcckpt.train.KerasTrainLoop": {"callbacks": [callback]}}
    result = train([cycle(model=SMALL, train_loop=loop)], "--run", "run", "-q", "--set", "datasets.limit=128")
    assert result.code == 1
    assert "hpcckpt: error: the training failed: KeyError: " in result.err
    assert "Traceback" in result.err
    assert "bug in hpcckpt" not in result.err


# -- on several ranks ------------------------------------------------------------------------------


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["-c", "ok.json", "--print-config"], 0, '"seed": 77'),
        (["-c", "no.json"], 2, "no.json: there is no such file"),
        (["-c", "wrong.json", "--check"], 2, "there is no 'Adan' in tf.keras.optimizers; did you mean 'Adam'?"),
        (["--nonsense"], 2, "No such option"),
        (["--help"], 0, "Train from a configuration file, on any number of ranks."),
        (["-c", "unbuilt.json", "--check"], 2, "expected a positive integer"),
        (["-c", "ok.json", "--allow", "no_such_root", "--check"], 2, "there is no such module"),
        (["-c", "ok.json", "--check"], 0, "1 cycle, nothing wrong"),
    ],
)
def test_each_thing_is_said_once_and_every_rank_exits_with_the_code(
    words: list[str], code: int, says: str, tmp_path: Path, cycle: Make
) -> None:
    pytest.importorskip("mpi4py")
    (tmp_path / "ok.json").write_text(json.dumps([cycle(model=SMALL, seed=77)]), encoding="utf-8")
    (tmp_path / "wrong.json").write_text(
        json.dumps([cycle(optimizer={"tf.keras.optimizers.Adan": {}})]), encoding="utf-8"
    )
    layers = [{"tf.keras.layers.Flatten": {}}, {"tf.keras.layers.Dense": {"units": -1}}]
    (tmp_path / "unbuilt.json").write_text(
        json.dumps([cycle(model={"tf.keras.Sequential": {"layers": layers}})]), encoding="utf-8"
    )
    done = spawn(on_ranks(2, *words), tmp_path, TF_CPP_MIN_LOG_LEVEL="3", **MPI)
    told = done.stdout + done.stderr
    assert done.stdout.count(f"code {code}") == 2, told
    assert told.count(says) == 1, told
    assert "Traceback" not in told


# -- signals ---------------------------------------------------------------------------------------


def is_catching(process: subprocess.Popen[str], number: int) -> bool:
    found = re.search(
        r"^SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8"), re.MULTILINE
    )
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_signal_that_comes_before_the_configuration_is_read_ends_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hpcckpt", "train", "-c", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        patience = time.monotonic() + 120
        while process.poll() is None and not is_catching(process, signal.SIGUSR1) and time.monotonic() < patience:
            time.sleep(0.02)
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate("7", timeout=150)
    assert process.returncode == 2, err
    assert "standard input: is a number" in err
