"""Run the blocks of a page in order, in one directory: one shell, and one Python, for all of them."""

from __future__ import annotations

import doctest
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.docs import compare
from tests.docs.pages import ROOT, Block, Command

if TYPE_CHECKING:
    from tests.docs.plan import Setup

CHECKOUT = ("docker", "examples", "plugin", "scripts", "tests", "bench", "Makefile", "docs")
"""What commands of pages find in the working directory, as in a checkout."""
SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1", "COLUMNS": "200",
    "NO_COLOR": "1", "PYTHONWARNINGS": "ignore", "LC_ALL": "C.UTF-8", "TF_ENABLE_ONEDNN_OPTS": "0", "TZ": "UTC",
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}  # fmt: skip
PROMPT_FOR = "[y/N]: "
END = "\x1e"

PYTHON = """
import json, os, sys, traceback
requests, replies = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
sys.path.insert(0, "")
names = {"__name__": "__main__"}
for line in requests:
    file, mode = json.loads(line)
    error = ""
    try:
        with open(file, encoding="utf-8") as source:
            exec(compile(source.read(), file, mode), names)
    except SystemExit as end:
        error = f"SystemExit: {end.code}" if end.code else ""
    except BaseException:
        error = traceback.format_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    print(json.dumps(error), file=replies, flush=True)
"""


class PageError(AssertionError):
    """A block does not run, or prints something else than the page shows."""


class Runner:
    """Runs the blocks of one page.

    Parameters
    ----------
    setup
        What the page assumes.
    directory
        An empty directory, in which the blocks run.
    """

    def __init__(self, setup: Setup, directory: Path) -> None:
        self.setup = setup
        self.directory = directory
        self.printed: list[str] = []
        """What the last program or block of Python printed."""
        for name in CHECKOUT:
            (directory / name).symlink_to(ROOT / name)
        home = directory / ".home"
        home.mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HPCCKPT_")},
            **SETTINGS,
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **setup.environment,
        }
        self._shell: subprocess.Popen[str] | None = None
        self._python: subprocess.Popen[bytes] | None = None
        self._pipes: tuple[int, int] = (-1, -1)
        self._output = directory / ".python-output"
        self._digests: dict[str, str] = {}

    def close(self) -> None:
        """End the shell and Python, and what they have started."""
        for process in (self._shell, self._python):
            if process is not None and process.poll() is None:
                kill_below(process.pid)
                process.kill()
                process.wait()
        if self._shell is not None:
            for stream in (self._shell.stdin, self._shell.stdout):
                if stream is not None:
                    stream.close()
        for pipe in self._pipes:
            if pipe >= 0:
                os.close(pipe)

    # -- a shell ---------------------------------------------------------------------------------

    def shell(self, command: str, stdin: str = "", seen: Callable[[str], None] | None = None) -> tuple[int, list[str]]:
        """Run a command in the page's shell; return its exit code, and the lines of stdout and stderr.

        Parameters
        ----------
        command
            What bash reads.
        stdin
            What the command reads.
        seen
            Called with each line when it is printed.
        """
        if self._shell is None:
            self._shell = subprocess.Popen(
                ["bash", "--norc", "--noprofile"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, cwd=self.directory, env=self.environment, start_new_session=True,
                errors="replace",
            )  # fmt: skip
        shell = self._shell
        assert shell.stdin is not None
        assert shell.stdout is not None
        answers = self.directory / ".answers"
        answers.write_text(stdin, encoding="utf-8")
        shell.stdin.write(
            f"(exit ${{page_code:-0}})\n{{ {command}\n}} < '{answers}'\n"
            f"page_code=$?; printf '\\n{END}%s{END}\\n' \"$page_code\"\n"
        )
        shell.stdin.flush()
        lines: list[str] = []
        for line in shell.stdout:
            if match := re.fullmatch(f"{END}(\\d+){END}\n", line):
                if lines and not lines[-1]:
                    lines.pop()
                return int(match[1]), lines
            for part in line.rstrip("\n").replace(PROMPT_FOR, f"{PROMPT_FOR}y\n" if stdin else PROMPT_FOR).split("\n"):
                lines.append(part)
                if seen is not None:
                    seen(part)
        raise PageError(f"the shell ended in: {command}\n" + "\n".join(lines))

    def must(self, command: str, **options: str) -> list[str]:
        """Run a command of a setup, which has to succeed; return its lines."""
        code, lines = self.shell(command, **options)
        if code != 0:
            raise PageError(f"{command} ended with {code}:\n" + "\n".join(lines))
        return lines

    def kill(self, only: str = "") -> None:
        """Kill what the shell has started, with SIGKILL: those processes whose command line contains the text."""
        assert self._shell is not None
        kill_below(self._shell.pid, only)

    def started(self, process: psutil.Process) -> bool:
        """Return whether the shell has started a process."""
        assert self._shell is not None
        return psutil.Process(self._shell.pid) in process.parents()

    # -- Python ----------------------------------------------------------------------------------

    def python(self, code: str, name: str = "setup", line: int = 1, mode: str = "exec") -> list[str]:
        """Run code in the page's Python; return what it printed.

        Raises
        ------
        PageError
            If it raises.
        """
        if self._python is None:
            child_reads, we_write = os.pipe()
            we_read, child_writes = os.pipe()
            with self._output.open("wb") as output:
                self._python = subprocess.Popen(
                    [sys.executable, "-c", PYTHON, str(child_reads), str(child_writes)],
                    pass_fds=(child_reads, child_writes), cwd=self.directory, env=self.environment,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            os.close(child_reads)
            os.close(child_writes)
            self._pipes = (we_write, we_read)
        file = self.directory / f".{name}.py"
        file.write_text("\n" * (line - 1) + code, encoding="utf-8")
        began = self._output.stat().st_size
        os.write(self._pipes[0], json.dumps([str(file), mode]).encode() + b"\n")
        reply = b""
        while not reply.endswith(b"\n"):
            part = os.read(self._pipes[1], 65536)
            if not part:
                raise PageError(
                    f"Python ended with {self._python.wait()}:\n{self._output.read_text('utf-8', 'replace')}"
                )
            reply += part
        printed = self._output.read_bytes()[began:].decode("utf-8", "replace").splitlines()
        if error := json.loads(reply):
            raise PageError("\n".join(printed) + f"\n{error}")
        return printed

    # -- blocks ----------------------------------------------------------------------------------

    def run(self, block: Block) -> None:
        """Run a block, and compare what it prints with what the page shows."""
        handler = self.setup.handler_of(block)
        if not block.commands:
            for hook in self.setup.hooks_of(block.text):
                hook(self)
            exempt = self.setup.exempt_of(block.text) if handler is None else None
            if exempt is not None:
                exempt.check(self, block.text)
                return
        if handler is not None:
            handler(self, block)
        elif block.kind == "file":
            (self.directory / block.file).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            self.printed = self.python(block.text, f"line-{block.line}", block.line)
        elif block.kind == "pycon":
            self._pycon(block)
        elif block.kind == "script":
            self.must(block.text)
        elif block.kind == "transcript":
            self._lead(block)
            for command in block.commands:
                self._command(block, command)
        else:
            raise PageError(f"{block.place}: nothing runs a block of this kind ({block.kind})")

    def _pycon(self, block: Block) -> None:
        for example in doctest.DocTestParser().get_examples(block.text):
            at = block.line + example.lineno
            real = self.python(example.source, f"line-{at}", at, "single")
            if example.want:
                self.compare(f"{block.page}:{at}", example.want.splitlines(), real)

    def _lead(self, block: Block) -> None:
        """Compare what a transcript shows above its first command with what a hook printed."""
        if lead := block.lines[: block.commands[0].line - block.line]:
            for hook in self.setup.hooks_of("\n".join(lead)):
                hook(self)
            self.compare(block.place, lead, self.printed)

    def _command(self, block: Block, command: Command) -> None:
        exempt = self.setup.exempt_command(block, command)
        if exempt is not None:
            exempt.check(self, command.text)
            return
        for hook in self.setup.hooks_of(command.text):
            hook(self)
        shown = tuple(self.setup.here(line) for line in command.shown)
        act = self.setup.action_of(command)
        answers = "y\n" * sum(PROMPT_FOR in line for line in shown)
        code, real = self.shell(
            self.setup.here(command.text) + self.setup.options_of(command.text),
            answers,
            (lambda line: act(self, line)) if act else None,
        )
        self.printed = real
        following = [each for each in block.commands if each.line > command.line][:1]
        is_code_shown = bool(following) and following[0].text.strip() == "echo $?"
        may_fail = is_code_shown or bool(shown) or act is not None  # what is shown has to be what is printed
        if code != 0 and not may_fail:
            raise PageError(f"{block.page}:{command.line}: it ended with {code}:\n" + "\n".join(real))
        if shown:
            self.compare(f"{block.page}:{command.line}", shown, self.setup.filtered(command, real))

    def compare(self, place: str, shown: Sequence[str], real: Sequence[str]) -> None:
        """Compare lines of a page with real ones.

        Raises
        ------
        PageError
            If they differ.
        """
        here = [(re.escape(str(self.directory)), "/DIR"), (r"/home/me\b", "/DIR")]
        digests = [compare.DIGEST.findall("\n".join(lines)) for lines in (shown, real)]
        for of_page, printed in zip(*digests, strict=False):  # equal ones on the page are equal here
            assert self._digests.setdefault(of_page, printed) == printed, f"{place}: another digest than before"
        if text := compare.difference(shown, real, (*here, *self.setup.all_varying)):
            raise PageError(f"{place}: the page shows something else than is printed\n{text}")


def kill_below(pid: int, only: str = "") -> None:
    """Kill the processes that a process has started."""
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if only in " ".join(process.cmdline()):
                process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            pass
