"""Servers that simulate PBS and Cobalt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcckpt.cli.app import tool
from tests.support.jobs.batch_server import BatchServer


@pytest.fixture
def pbs(tmp_path: Path) -> BatchServer:
    """A server of PBS."""
    return BatchServer(tmp_path / "spool", "pbs", tmp_path / "work")


@pytest.fixture
def cobalt(tmp_path: Path) -> BatchServer:
    """A server of Cobalt."""
    return BatchServer(tmp_path / "spool", "cobalt", tmp_path / "work")


@pytest.fixture
def jobscript() -> Callable[..., tuple[int, str, str]]:
    """Run ``hpcckpt jobscript`` here: return exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(tool, ["jobscript", *words], prog_name="hpcckpt")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.stdout, done.stderr

    return run
