"""Running the scripts of docker/ with engines and submitters that only write down what they are asked."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.support.paths import ROOT

DOCKER = ROOT / "docker"
# What the scripts call: nothing else is on their PATH, so that no engine or cluster of this machine is asked.
TOOLS = ("bash", "cat", "dirname", "env", "grep", "mkdir", "sed", "sort", "wc")


class Machine:
    """A machine that has the programs it is given, and writes down how they were called."""

    def __init__(self, directory: Path, programs: Iterable[str] = ()) -> None:
        self.bin, self.log = directory / "bin", directory / "calls"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        for program in programs:
            self.install(program)

    def install(self, program: str, says: str = "", code: int = 0) -> None:
        """Put a program on the PATH that logs its arguments, keeps its input, says something and ends."""
        path = self.bin / program
        lines = (
            "#!/usr/bin/env bash",
            f"printf '%s\\n' \"{program} $*\" >>{self.log}",
            f"case \" $* \" in *' - '*) cat >{self.log}.input ;; esac",
            f"printf '%s' '{says}'",
            f"exit {code}",
        )
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        path.chmod(0o755)

    def run(self, script: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a script of docker/ from the root directory, with nothing to read."""
        environment = {"PATH": str(self.bin), "HOME": os.fspath(self.bin), **variables}
        return subprocess.run(
            [str(self.bin / "bash"), DOCKER / script, *map(str, arguments)],
            cwd="/", env=environment, text=True, capture_output=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def calls(self) -> list[str]:
        """How the programs were called, in order."""
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []

    @property
    def input(self) -> str:
        """What was handed to a program through a pipe."""
        return Path(f"{self.log}.input").read_text(encoding="utf-8")
