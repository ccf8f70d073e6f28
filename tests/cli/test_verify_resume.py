"""``hpcckpt verify-resume``: a training that resumes well is told from one that does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.errors import ConfigError
from hpcckpt.tools.verify_resume.child_program import Program, _session
from hpcckpt.tools.verify_resume.procedure import draw_kills
from hpcckpt.tools.verify_resume.results import ObservedStep, VerifySettings

PROGRAM = str(Path(__file__).with_name("rehearsed.py"))
Cli = Callable[..., Any]


@pytest.fixture
def rehearse(cli: Cli, tmp_path: Path) -> Callable[..., tuple[int, Any]]:
    """Run the verb on the program; return its exit code and what it says as JSON."""

    def run(*words: str, options: tuple[str, ...] = (), place: str = "{run}") -> tuple[int, Any]:
        work = tmp_path / f"work-{len(list(tmp_path.iterdir()))}"
        asked = ["--json", "--work", str(work), *options]
        result = cli("verify-resume", *asked, "--", sys.executable, PROGRAM, place, "waits", *words)
        return result.code, json.loads(result.out)

    return run


def what(document: Any) -> dict[str, tuple[int, int]]:
    return {each["what"]: (each["n_same"], each["n_all"]) for each in document["compared"]}


def test_a_training_that_resumes_well_ends_the_same_wherever_it_is_killed(rehearse: Any) -> None:
    code, found = rehearse(options=("--seed", "3", "--kills", "2"))
    assert (code, found["same"], found["step"], found["level"]) == (0, True, 20, "state")
    straight, *killed, resumed = found["runs"]
    assert [run["name"] for run in (straight, *killed, resumed)] == ["straight", "killed", "killed", "resumed"]
    assert [run["code"] for run in killed] == [-signal.SIGKILL] * 2
    assert killed[1]["began_at"] >= killed[0]["kill"]["after"]
    assert resumed["began_at"] >= killed[1]["kill"]["after"]
    assert what(found) == {"model": (1, 1), "metrics": (10, 10)}
    assert found["notes"] == []


def test_a_training_that_forgets_its_random_numbers_is_found_out(rehearse: Any) -> None:
    code, found = rehearse("forgets", options=("--kill-after", "8"))
    assert (code, found["same"]) == (5, False)
    assert what(found)["model"] == (0, 1)
    model, metrics = found["compared"]
    assert model["differing"] == ["model/w: 5 of 5 elements differ"]
    assert model["max_abs"] > 0
    assert metrics["n_same"] < metrics["n_all"]


def test_a_training_that_begins_anew_is_told_of(rehearse: Any) -> None:
    code, found = rehearse("fresh", options=("--kill-after", "8"))
    assert code == 0  # what it computes is the same, only later
    (note,) = found["notes"]
    assert note.startswith("the resumed run saved step 2 first, though step")


def test_a_training_that_wants_to_be_requeued_is_started_again(rehearse: Any) -> None:
    code, found = rehearse("requeue", options=("--kill-after", "4"))
    assert (code, found["same"], found["step"]) == (0, True, 20)
    assert len(found["runs"][0]["seen"]) == 10


def test_the_run_directory_is_told_by_a_variable_too(rehearse: Any) -> None:
    assert rehearse(options=("--kill-after", "4"), place="-")[0] == 0


def test_files_and_losses_are_compared_where_no_checkpoint_is_left(rehearse: Any) -> None:
    options = ("--kill-after", "6", "--file", "weights.npz", "--losses", "{run}/log.csv")
    code, found = rehearse("deletes", options=options)
    assert code == 0
    assert what(found)["weights.npz"] == (1, 1)
    assert what(found)["{run}/log.csv"] == (20, 20)
    code, found = rehearse("deletes", "forgets", options=options)
    assert code == 5
    assert what(found)["weights.npz"] == (0, 1)
    same, of = what(found)["{run}/log.csv"]
    assert 6 <= same < of == 20


def test_where_nothing_is_left_to_compare_it_says_so(rehearse: Any) -> None:
    code, found = rehearse("deletes", options=("--kill-after", "6"))
    assert code == 4
    assert "keep the checkpoints in the end" in found["error"]["message"]


def test_the_table_is_for_people(cli: Cli, tmp_path: Path) -> None:
    words = ("--work", str(tmp_path / "work"), "--kill-after", "6", "--", sys.executable, PROGRAM, "{run}", "waits")
    result = cli("verify-resume", *words)
    assert result.code == 0
    assert result.out.splitlines()[0].split() == ["RUN", "EXIT", "SECONDS", "FROM", "SAVED", "KILLED"]
    assert "s after step 6" in result.out
    assert result.out.splitlines()[-1] == "same: the resumed run ended at step 20 as the straight one (level state)"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("true",), 4, "the training saved no step in"),
        (("no-such-program",), 2, "no-such-program cannot be run"),
        ((sys.executable, "-c", "print('so sorry'); raise SystemExit(3)"), 1, "so sorry"),
        (("sleep", "60"), 1, "did not end within 0.2 s"),
        (("--env", "A=B", "--", "true"), 2, "--env: 'A=B' cannot be the name of an environment variable"),
        (("--env", "", "--", "true"), 2, "--env: '' cannot be the name of an environment variable"),
    ],
    ids=["saves nothing", "is not there", "fails", "hangs", "no variable", "no name"],
)
def test_a_training_that_cannot_be_rehearsed_is_an_error(
    words: tuple[str, ...], code: int, text: str, cli: Cli, tmp_path: Path
) -> None:
    limit = ("--timeout", "0.2") if words[0] == "sleep" else ()
    result = cli(
        "verify-resume", "--work", str(tmp_path / "work"), *limit, *(words if "--" in words else ("--", *words))
    )
    assert result.code == code
    assert text in result.err


def test_a_place_that_is_in_use_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    assert cli("verify-resume", "--work", str(tmp_path), "--", "true").code == 2


def test_kills_follow_from_the_seed_and_never_come_behind_the_last_step(tmp_path: Path) -> None:
    seen = [ObservedStep(step, step / 10) for step in range(5, 55, 5)]

    def kills(seed: int, n_kills: int = 2, number: int = 0) -> Any:
        return list(draw_kills(VerifySettings(("x",), tmp_path, seed=seed, n_kills=n_kills), seen, 6.0, number))

    assert kills(1) == kills(1)
    assert len({tuple(kills(seed)) for seed in range(20)}) > 10
    assert max(kill.after for seed in range(100) for kill in kills(seed)) == 45
    assert max(kill.after for seed in range(100) for kill in kills(seed, number=1)) == 20
    assert all(kill.later_s <= 0.55 for seed in range(100) for kill in kills(seed))


def test_a_step_that_no_run_gets_to_cannot_be_killed_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run gets to step 7; the last one is 5"):
        list(draw_kills(VerifySettings(("x",), tmp_path, kill_after=7), [ObservedStep(5, 1.0)], 2.0))


def test_all_that_a_program_has_started_is_killed_with_it(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time; "
        "subprocess.Popen(['sleep', '300']); "
        "subprocess.Popen(['sleep', '300'], preexec_fn=os.setpgrp); "  # as launchers of MPI do
        "open(sys.argv[1], 'w'); time.sleep(300)"
    )
    program = Program([sys.executable, "-c", code, str(tmp_path / "ready")], tmp_path / "log", {})
    while not (tmp_path / "ready").exists():
        assert program.code() is None
        time.sleep(0.01)
    leader = program._process.pid
    assert len(_session(leader)) == 3
    assert program.kill() == -signal.SIGKILL
    ends = time.monotonic() + 60
    while _session(leader) and time.monotonic() < ends:  # until init has taken what was killed
        time.sleep(0.05)
    assert _session(leader) == []


KERAS = """
import sys, time, pathlib
import keras, numpy as np, tensorflow as tf
import hpcckpt as hc
from hpcckpt.keras import BackupAndRestore, stateless
hc.enable_exact_resume(seed=1)
run = pathlib.Path(sys.argv[1])
is_first = run.name != "straight" and not list(run.glob("step-*"))
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, activation="relu"),
                          keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
x = np.random.default_rng(1).normal(size=(80, 4)).astype("float32")
@stateless
class Wait(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if is_first and epoch == 3:
            time.sleep(300)
run.mkdir(exist_ok=True)
backup = BackupAndRestore(run, save_freq=3, delete_checkpoint=False, max_to_keep=None)
log = keras.callbacks.CSVLogger(str(run / "log.csv"))
model.fit(x, x.sum(axis=1), 8, 4, verbose=0, callbacks=[log, Wait(), backup])
"""


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_training_of_keras_resumes_to_the_bit(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    program = tmp_path / "train.py"
    program.write_text(KERAS, encoding="utf-8")
    words = ["--json", "--kill-after", "12", "--losses", "log.csv", "--work", str(tmp_path / "work"), "--"]
    command = [sys.executable, "-m", "hpcckpt", "verify-resume", *words, sys.executable, str(program), "{run}"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["level"] == "exact"
    assert what(found)["log.csv"] == (4, 4)
    assert all(same == of for same, of in what(found).values())
