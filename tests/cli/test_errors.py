"""Every way to fail: message, JSON, exit code."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors

Cli = Callable[..., Any]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, cli: Cli, tmp_path: Path) -> Callable[..., Any]:
    """Run ``list --json`` while the library raises an error."""

    def run(error: BaseException) -> Any:
        def scan(_directory: object) -> None:
            raise error

        monkeypatch.setattr("hpcckpt.rundir.discovery.scan", scan)
        return cli("list", tmp_path, "--json")

    return run


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (errors.StepNotFoundError("m"), 4, "step-not-found"),
        (errors.CorruptError("m"), 3, "corrupt"),
        (errors.OptionError("m"), 2, "option"),
        (errors.StateMismatchError("m"), 5, "state-mismatch"),
        (errors.NoSpaceError("m"), 7, "no-space"),
        (errors.LockedError("m"), 8, "locked"),
        (errors.RetiredError("m"), 1, "retired"),
        (errors.collective_error("save", {1: errors.Failure("corrupt", "m")}), 3, "corrupt"),
        (OSError(errno.ENOSPC, "No space left on device"), 7, "no-space"),
        (PermissionError(errno.EACCES, "Permission denied", "m"), 1, "read-only"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_library_errors_become_exit_codes(
    error: BaseException, code: int, kind: str, failing: Callable[..., Any]
) -> None:
    result = failing(error)
    assert (result.code, result.json["error"]["kind"]) == (code, kind)
    assert result.err.lstrip().startswith("hpcckpt: error: ")
    assert "Traceback" not in result.err


def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch, cli: Cli, tmp_path: Path) -> None:
    monkeypatch.setattr("hpcckpt.rundir.discovery.scan", None)
    result = cli("list", tmp_path, "--json")
    assert (result.code, result.json["error"]["kind"]) == (1, "internal")
    assert "Traceback" in result.err
    assert "hpcckpt: error: TypeError: 'NoneType' object is not callable; this is a bug" in result.err


PLUGIN = """
import click
import numpy as np
from hpcckpt.backends.rankfile.backend import RankfileBackend

class Mine(RankfileBackend):
    name = "mine"

    def read(self, path, manifest, requests):
        return undefined

@click.command()
def fail():
    np.zeros(2) @ np.zeros(3)
"""


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    """A package of others with a backend and a verb that fail; the PYTHONPATH with which it is installed."""
    info = tmp_path / "site" / "mystore-1.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site" / "mystore.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Name: mystore\nVersion: 1\n")
    points = "[hpcckpt.backends]\nmine = mystore:Mine\n[hpcckpt.commands]\nfail = mystore:fail\n"
    (info / "entry_points.txt").write_text(points)
    return os.pathsep.join([str(tmp_path / "site"), str(Path(hc.__file__).parents[1])])


def test_an_error_in_a_third_party_plugin_names_its_line_and_is_no_bug_of_ours(
    plugin: str, tmp_path: Path, spawn: Callable[..., Any], environment: Callable[..., dict[str, str]]
) -> None:
    made = f"hc.Checkpointer({str(tmp_path / 'run')!r}, backend='mine')"
    code = f"import hpcckpt as hc, numpy as np\nwith {made} as ckpt: ckpt.save(1, {{'a': np.ones(3)}})"
    subprocess.run([sys.executable, "-c", code], env=environment() | {"PYTHONPATH": plugin}, check=True, timeout=240)
    for words, name in ((("tensors", tmp_path / "run", "--stats"), "NameError"), (("fail",), "ValueError")):
        result = spawn(*words, PYTHONPATH=plugin)
        assert result.code == 1
        assert "Traceback" in result.err
        last = result.err.splitlines()[-1]
        assert last.startswith(f"hpcckpt: error: {name}: ")
        assert "mystore.py, line " in last
        assert "bug in hpcckpt" not in result.err


@pytest.mark.parametrize("words", [["nonsense"], ["list"], ["list", "--nonsense", "x"], ["--nonsense"]])
def test_usage_errors_exit_with_2_and_point_to_help(words: list[str], cli: Cli) -> None:
    result = cli(*words)
    assert result.code == 2
    assert "--help'" in result.err
    assert cli(*words, "--json").json["error"]["kind"] == "usage"


def test_a_closed_pipe_is_quiet(saved: Path, environment: Callable[..., dict[str, str]]) -> None:
    command = f"{sys.executable} -m hpcckpt tensors {saved} --json | true"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode in {0, 1}  # 0 if all of it was written before the reader went


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_break_nothing(closed: str, saved: Path, environment: Callable[..., dict[str, str]]) -> None:
    for step, code in ((10, 0), (99, 4)):
        command = f"{sys.executable} -m hpcckpt info {saved} {step} --json {closed}"
        done = subprocess.run(["bash", "-c", command], env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert "Traceback" not in done.stderr


def test_a_locale_without_letters_breaks_nothing(spawn: Cli, tmp_path: Path) -> None:
    with hc.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, {"größe": np.ones(1)}, objects={"text": "…" * 200})
    for verb in ("tensors", "info"):
        for words in ([], ["--json"]):
            assert spawn(verb, tmp_path / "run", *words, PYTHONIOENCODING="ascii").code == 0
    assert spawn("tensors", tmp_path / "run", "--json").json["tensors"][0]["name"] == "größe"


def test_a_full_disk_behind_stdout_is_an_error(saved: Path, environment: Callable[..., dict[str, str]]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hpcckpt", "tensors", str(saved), "--json"],
            env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 7
    assert "hpcckpt: error: " in done.stderr


@pytest.mark.parametrize("words", [("info", 99), ("verify",), ("list",), ("nonsense",), ("prune", "--keep-last", "2")])
@pytest.mark.parametrize("redirected", ["2>/dev/full", "2>&-", "<&- 2>&-"])
def test_messages_that_cannot_be_written_change_no_exit_code(
    redirected: str, words: tuple[object, ...], saved: Path, environment: Callable[..., dict[str, str]], cli: Cli
) -> None:
    verb, *more = map(str, words)
    environ = environment()
    environ.pop("PYTHONUNBUFFERED", None)
    command = f'exec "$0" -m hpcckpt "$@" </dev/null {redirected}'
    done = subprocess.run(["sh", "-c", command, sys.executable, verb, str(saved), *more], env=environ, check=False)
    assert done.returncode == cli(verb, saved, *more, answer="").code


def test_an_interrupt_exits_with_130(saved: Path, environment: Callable[..., dict[str, str]]) -> None:
    code = (
        "import sys, time; from hpcckpt.rundir import discovery; from hpcckpt.cli import main\n"
        "def scan(directory): print('ready', file=sys.stderr, flush=True); time.sleep(60)\n"
        f"discovery.scan = scan; sys.exit(main(['list', {str(saved)!r}]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(240) == 130
        assert process.stderr.read().strip() == "hpcckpt: error: interrupted"


def test_json_behind_two_dashes_is_the_programs_own_option(cli: Cli) -> None:
    for words in (["supervise", "--lead", "x"], ["verify-resume", "--rtol", "x"]):
        assert cli(*words, "--", "prog", "--json").out == ""
        assert cli(*words, "--json", "--", "prog").json["error"]["kind"] == "usage"


@pytest.mark.parametrize(
    "words", [["--overwrite"], ["--overwrite", "--resume", "best"], ["--print-config", "--check"],
              ["--print-config", "--resume", "latest"]], ids=" ".join,
)  # fmt: skip
def test_an_option_of_train_that_would_have_no_effect_is_refused(cli: Cli, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "c.json").write_text("[{}]")
    result = cli("train", "-c", tmp_path / "c.json", "--run", tmp_path / "run", *words, "--json")
    assert (result.code, result.json["error"]["kind"]) == (2, "usage")
    assert words[0] in result.json["error"]["message"]
