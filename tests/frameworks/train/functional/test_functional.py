"""The functional tests pass, as their runner says; and the runner would say if they did not."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUNNER = HERE / "run.py"
NO_SCRIPTS = ("test_", "conftest", "run.py")
NAMES = sorted(path.name for path in HERE.glob("*.[ps][yh]") if not path.name.startswith(NO_SCRIPTS))
IN_THE_SUITE = ("custom_model", "train_on_two_ranks")
"""The quickest; the others take minutes, and `tests/frameworks/train/run` shows piece by piece what they show."""
PASSED = "echo '*********** Passed ***********'"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the runner from the root directory."""
    return subprocess.run([sys.executable, RUNNER, *arguments], cwd="/", text=True, capture_output=True, check=False)


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs TensorFlow")
@pytest.mark.timeout(660)  # the runner's own is 600
@pytest.mark.parametrize(
    "name", [name if name.startswith(IN_THE_SUITE) else pytest.param(name, marks=pytest.mark.nightly) for name in NAMES]
)
def test_the_script_passes_from_another_directory(name: str) -> None:
    done = run(name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "1 passed, 0 failed"


# -- the runner ----------------------------------------------------------------------------------


def script(directory: Path, name: str, text: str, mode: int = 0o755) -> None:
    """Write a script of bash."""
    path = directory / name
    path.write_text(f"#!/usr/bin/env bash\n{text}\n", encoding="utf-8")
    path.chmod(mode)


def test_runner_counts_what_passed_and_what_failed(tmp_path: Path) -> None:
    script(tmp_path, "good.sh", PASSED)
    script(tmp_path, "bad.sh", "echo this went wrong; exit 3")
    done = run("--directory", str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "1 passed, 1 failed"
    assert "bad.sh" in done.stdout
    assert "exit code 3" in done.stdout
    assert "this went wrong" in done.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"{PASSED}; exit 1", "exit code 1"),
        ("exit 0", "did not print"),
        ("echo '** Passed **'", "did not print"),
        (f"touch here; {PASSED}", "left behind where it was called from: here"),
        (f"kill -9 $$; {PASSED}", "exit code -9"),
    ],
)
def test_runner_believes_neither_the_code_nor_the_line_alone(tmp_path: Path, text: str, complaint: str) -> None:
    script(tmp_path, "one.sh", text)
    done = run("--directory", str(tmp_path))
    assert done.returncode == 1
    assert complaint in done.stdout


def test_runner_says_that_a_script_is_not_executable(tmp_path: Path) -> None:
    script(tmp_path, "one.sh", PASSED, mode=0o644)
    done = run("--directory", str(tmp_path))
    assert done.returncode == 1
    assert "chmod +x" in done.stdout


def test_runner_ends_a_script_that_hangs_and_what_it_started(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    script(tmp_path, "one.sh", f"(while sleep 0.05; do date +%N >{alive}; done) & wait")
    for limit_s in (1, 10, 100):
        done = run("--directory", str(tmp_path), "--timeout", str(limit_s))
        assert done.returncode == 1
        assert f"not done after {limit_s} s" in done.stdout
        if alive.exists():
            break
    alive.unlink()
    subprocess.run(["sleep", "0.3"], check=True)
    assert not alive.exists()


def test_runner_refuses_a_name_that_is_not_there(tmp_path: Path) -> None:
    script(tmp_path, "one.sh", PASSED)
    assert run("one", "--directory", str(tmp_path)).returncode == 0
    assert run("two", "--directory", str(tmp_path)).returncode == 2
