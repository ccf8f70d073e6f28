"""The code blocks and commands of the pages: find them, and report what runs each of them.

    python -m tests.docs.pages             # the two numbers, and what is checked in another way, with the reason
    python -m tests.docs.pages --all       # a line for each block and each command

A page is run block by block, in order, in one temporary directory (`runner`). What a page assumes, and what cannot run
in a test, is in `setups`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

FENCE = re.compile(r"^( *)(`{3,})([\w+-]*)\s*$")
PROMPT = "$ "
NAMED = re.compile(r"# ([\w.-]+\.(?:py|hjson|json))")
CODE = {"python", "pycon", "hjson", "toml", "cmake", "cpp", "diff"}
"""Languages of blocks without commands. `bash` is a script; all others are transcripts, or output."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a transcript, and the output that is shown below it."""

    line: int
    text: str
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page; ``line`` is the one after the fence."""

    page: str
    line: int
    language: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The content."""
        return "\n".join(self.lines) + "\n"

    @property
    def place(self) -> str:
        """Page and line, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands of a transcript; the line after one that ends with a backslash belongs to it."""
        found: list[tuple[int, list[str], list[str]]] = []
        is_continued = False
        for number, line in enumerate(self.lines, self.line):
            if line.startswith(PROMPT) and not is_continued:
                found.append((number, [line.removeprefix(PROMPT)], []))
            elif is_continued:
                found[-1][1].append(line)
            elif found:
                found[-1][2].append(line)
            is_continued = bool(found) and not found[-1][2] and found[-1][1][-1].endswith("\\")
        return tuple(Command(number, "\n".join(text), tuple(shown)) for number, text, shown in found)

    @property
    def file(self) -> str:
        """The name of the file that a block is, if its first line is ``# NAME``."""
        match = NAMED.fullmatch(self.lines[0]) if self.lines else None
        return match[1] if match else ""

    @property
    def kind(self) -> str:
        """``file``, ``code``, ``python``, ``pycon``, ``script``, ``transcript`` or ``output``."""
        if self.file:
            return "file"
        if self.language == "python" and self.lines and self.lines[0].startswith(">>> "):
            return "pycon"
        if self.language in CODE:
            return self.language if self.language in {"python", "pycon"} else "code"
        if self.language == "bash":
            return "script"
        return "transcript" if self.commands else "output"


def paths() -> list[Path]:
    """Return the pages whose blocks are counted."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(path: Path) -> list[Block]:
    """Return the fenced blocks of a page, also those that are indented."""
    page = path.relative_to(ROOT).as_posix()
    found: list[Block] = []
    fence: tuple[str, str, str, int] | None = None
    lines: list[str] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        match = FENCE.match(line)
        if fence is None and match:
            fence, lines = (match[1], match[2], match[3], number + 1), []
        elif fence is not None and line.strip() == fence[1]:
            found.append(Block(page, fence[3], fence[2], tuple(lines)))
            fence = None
        elif fence is not None:
            lines.append(line.removeprefix(fence[0]))
    assert fence is None, f"{page}: the block that begins at line {fence and fence[3]} does not end"
    return found


def all_pages() -> dict[str, list[Block]]:
    """Return the blocks of each page that has any."""
    pages = {path.relative_to(ROOT).as_posix(): blocks_of(path) for path in paths()}
    return {page: blocks for page, blocks in pages.items() if blocks}


# -- what runs them --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A block or a command, the test that runs or checks it (empty: none), and why it is only checked.

    Nightly: its page takes minutes.
    """

    place: str
    kind: str
    text: str
    test: str
    reason: str = ""
    is_nightly: bool = False


def entries() -> Iterator[Entry]:
    """Yield an entry for each block, and one for each command."""
    from tests.docs import setups

    for page, blocks in all_pages().items():
        setup = setups.SETUPS.get(page)
        is_nightly = setup is not None and not setup.quick
        for block in blocks:
            test, reason = setup.test_of(block) if setup else ("", "")
            rows = [(each, *(setup.test_of(block, each) if setup else ("", ""))) for each in block.commands]
            if rows and all(why for _, _, why in rows):  # a transcript none of whose commands can run
                test, reason = rows[0][1:]
            yield Entry(block.place, "block", block.lines[0] if block.lines else "", test, reason, is_nightly)
            for command, its_test, its_reason in rows:
                yield Entry(f"{page}:{command.line}", "command", command.text, its_test, its_reason, is_nightly)


def main() -> int:
    """Print the numbers; the exit status is 1 if something is run by no test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="a line for each block and command")
    asked = parser.parse_args()
    rows = list(entries())
    for row in rows:
        state = "none" if not row.test else "checked" if row.reason else "run"
        if asked.all or state != "run":
            first = row.text.splitlines()[0] if row.text else ""
            print(f"{state:8} {row.place:26} {row.kind:8} {first[:90]}" + (f"  [{row.reason}]" if row.reason else ""))
    for kind in ("block", "command"):
        of_kind = [row for row in rows if row.kind == kind]
        n_checked = sum(bool(row.test and row.reason) for row in of_kind)
        n_run = sum(bool(row.test) for row in of_kind) - n_checked
        n_none = len(of_kind) - n_run - n_checked
        n_nightly = sum(row.is_nightly and bool(row.test) and not row.reason for row in of_kind)
        print(
            f"{kind}s: {len(of_kind)} shown, {n_run} run by a test ({n_nightly} of them nightly), "
            f"{n_checked} checked, {n_none} by none"
        )
    return int(any(not row.test for row in rows))


if __name__ == "__main__":
    sys.exit(main())
