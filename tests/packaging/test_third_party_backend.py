"""A backend in a package of somebody else's is found once it is installed, and keeps every promise."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "examples" / "backend_package"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment of a program for which the package is installed."""
    pytest.importorskip("setuptools")
    site, source = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("source") / "package"
    shutil.copytree(PACKAGE, source)  # for a build leaves its traces
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True, timeout=280)
    return {**os.environ, "PYTHONPATH": str(site)}


def test_the_installed_package_is_listed_with_its_origin(installed):
    command = [sys.executable, "-m", "hpcckpt", "backends"]
    done = subprocess.run(command, env=installed, capture_output=True, text=True, check=True, timeout=240)
    assert re.search(r"^\s*raw\s+hpcckpt-raw\s+zero-copy\s+ok\s*$", done.stdout, re.MULTILINE)


def test_the_installed_package_keeps_every_promise(installed, tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PACKAGE / "tests")]
    done = subprocess.run(
        command, env=installed, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 80
