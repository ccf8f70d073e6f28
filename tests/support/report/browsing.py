"""A headless browser that says what it complains of: Chromium, with no network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--enable-logging=stderr",
    "--v=0", "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-dev-shm-usage",
)  # fmt: skip
_CONSOLE = re.compile(r":CONSOLE[:(]\d+\)?\] (.*)")


def browser() -> str | None:
    """Return the browser of this machine."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Seen(NamedTuple):
    """What the browser printed on stdout, and every line of its console."""

    out: str
    console: list[str]


def browse(page: Path, *words: str) -> Seen:
    """Open a page, with its own profile that is thrown away."""
    program = browser()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # it is still being written in
        command = [program, *FLAGS, f"--user-data-dir={profile}", *words, page.as_uri()]
        environment = {**os.environ, "HOME": profile}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    return Seen(done.stdout, _CONSOLE.findall(done.stderr))
