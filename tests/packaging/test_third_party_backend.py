"""A backend that ``plugin new --lang python`` wrote is found once it is installed, and passes the suite."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hpcckpt.cli.app import tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment of a program for which the package is installed."""
    pytest.importorskip("setuptools")
    site, source = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("source") / "raw"
    done = CliRunner().invoke(tool, ["plugin", "new", "raw", str(source), "--lang", "python"])
    assert done.exit_code == 0, done.output
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True, timeout=280)
    return {**os.environ, "PYTHONPATH": str(site), "SOURCE": str(source)}


def test_the_installed_package_is_listed_with_its_origin(installed):
    command = [sys.executable, "-m", "hpcckpt", "backends"]
    done = subprocess.run(command, env=installed, capture_output=True, text=True, check=True, timeout=240)
    assert re.search(r"^\s*raw\s+ok\s+hpcckpt-raw\s*\n\s*zero-copy\s*$", done.stdout, re.MULTILINE)


def test_its_example_saves_and_loads(installed):
    command = [sys.executable, f"{installed['SOURCE']}/try_it.py"]
    done = subprocess.run(command, env=installed, capture_output=True, text=True, check=True, timeout=240)
    assert "loaded step 2: equal" in done.stdout


def test_the_installed_package_keeps_every_promise(installed, tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", installed["SOURCE"]]
    done = subprocess.run(
        command, env=installed, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 80
