"""What a page assumes, and how those of its blocks run that are not run as they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.docs import compare
from tests.docs.pages import Block, Command

if TYPE_CHECKING:
    from tests.docs.runner import Runner

RUNS = "tests/docs/test_pages.py::test_the_blocks_of_a_page_run"

Handler = Callable[["Runner", Block], None]
Hook = Callable[["Runner"], None]
Action = Callable[["Runner", str], None]


@dataclass(frozen=True, slots=True)
class Exempt:
    """A block or a command that cannot run in a test.

    Attributes
    ----------
    marker : str
        What its text contains.
    check : callable
        ``check(runner, text)``, the strongest check that is possible.
    reason : str
        Why it cannot run.
    """

    marker: str
    check: Callable[[Runner, str], None]
    reason: str


@dataclass(frozen=True, slots=True)
class Setup:
    """What a page assumes. A marker is a part of a block's or command's text, which stays in the page alone.

    Attributes
    ----------
    prepare : callable
        Called once, before the first block.
    before : pairs of marker and callable
        Called before the block of Python, or the command, whose text contains the marker.
    handlers : pairs of marker and callable
        What runs the block that contains the marker, in place of the usual.
    actions : pairs of marker and callable
        Called with each line that the command prints.
    filters : pairs of marker and pattern
        The page shows only those lines of the command's output in which the pattern is found.
    smaller : pairs of marker and options
        Options that are added to a command, which then takes fewer images or steps.
    exempt : sequence of Exempt
        What cannot run here.
    elsewhere : pairs of marker and test
        Blocks of this page that another test reads and runs; the marker ``""`` is all of them.
    needs : sequence of str
        Modules, and programs (``mpirun!``); without one of them the page is skipped.
    decimals : bool
        Whether digits of numbers with a decimal point must be those that are shown.
    varying : pairs of pattern and replacement
        What else differs from run to run.
    paths : dict
        Paths of a site, and what is in the working directory in their place.
    quick : bool
        Whether it takes less than a few seconds.
    """

    prepare: Hook = lambda runner: None
    before: Sequence[tuple[str, Hook]] = ()
    handlers: Sequence[tuple[str, Handler]] = ()
    actions: Sequence[tuple[str, Action]] = ()
    filters: Sequence[tuple[str, str]] = ()
    smaller: Sequence[tuple[str, str]] = ()
    exempt: Sequence[Exempt] = ()
    elsewhere: Sequence[tuple[str, str]] = ()
    needs: Sequence[str] = ()
    decimals: bool = True
    varying: Sequence[tuple[str, str]] = ()
    environment: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    quick: bool = False

    @property
    def all_varying(self) -> Sequence[tuple[str, str]]:
        """The patterns of this page."""
        return (*self.varying, *(() if self.decimals else compare.DECIMALS_LAST))

    def handler_of(self, block: Block) -> Handler | None:
        """Return what runs a block in place of the usual."""
        return next((handler for marker, handler in self.handlers if marker in block.text), None)

    def action_of(self, command: Command) -> Action | None:
        """Return what is done while a command runs."""
        return next((action for marker, action in self.actions if marker in command.text), None)

    def exempt_command(self, block: Block, command: Command) -> Exempt | None:
        """Return the exemption of a command; ``echo $?`` after one that is exempt is exempt too."""
        before = [each for each in block.commands if each.line < command.line]
        asks = command.text.strip() == "echo $?" and bool(before)
        return self.exempt_of(before[-1].text if asks else command.text)

    def exempt_of(self, text: str) -> Exempt | None:
        """Return the exemption of a block without commands, or of a command."""
        return next((each for each in self.exempt if each.marker in text), None)

    def hooks_of(self, text: str) -> list[Hook]:
        """Return what is done before a block or command."""
        return [hook for marker, hook in self.before if marker in text]

    def options_of(self, text: str) -> str:
        """Return the options that make a command smaller."""
        return "".join(f" {options}" for marker, options in self.smaller if marker in text)

    def here(self, text: str) -> str:
        """Return a text of the page with paths that exist here."""
        for path, ours in self.paths.items():
            text = text.replace(path, ours)
        return text

    def filtered(self, command: Command, lines: Sequence[str]) -> list[str]:
        """Return the lines of an output that the page shows."""
        keep = [pattern for marker, pattern in self.filters if marker in command.text]
        return [line for line in lines if all(re.search(pattern, line) for pattern in keep)]

    def test_of(self, block: Block, command: Command | None = None) -> tuple[str, str]:
        """Return the test that runs or checks a block, or a command of it, and why it only checks it."""
        for marker, test in self.elsewhere:
            if marker in block.text:
                return test, ""
        test = f"{RUNS}[{block.page}]"
        if self.handler_of(block) is None:
            exempt = self.exempt_command(block, command) if command else None
            if exempt := exempt or (None if block.commands else self.exempt_of(block.text)):
                return test, exempt.reason
            if block.kind in {"code", "output"}:
                return "", ""
        return test, ""
