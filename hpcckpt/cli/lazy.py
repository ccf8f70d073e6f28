"""The group of verbs, each loaded when it is used; those of other packages come by entry point.

A package adds a verb by an entry point in the group ``hpcckpt.commands`` that names a
``click.Command``.  One that cannot be loaded is shown as broken and breaks nothing else.
"""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from hpcckpt.cli.verbs import MEANT, SECTIONS, VERBS, Verb, find_verb
from hpcckpt.core.std_streams import write_message

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hpcckpt.commands"
FOREIGN = "Installed by other packages"


class BrokenCommand(click.Command):
    """Replaces a verb of another package that cannot be loaded.

    Parameters
    ----------
    name : str
        The verb.
    reason : str
        What is wrong, in one line.
    details : str
        The traceback, printed when it is run.
    """

    def __init__(self, name: str, reason: str, details: str = "") -> None:
        settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
        super().__init__(name, short_help=f"† broken: {reason}", context_settings=settings)
        self.reason = reason
        self.details = details

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ARG002 - click's signature
        """Fail with the reason, whatever the arguments."""
        if self.details:
            write_message(self.details)
        raise click.ClickException(f"the verb {self.name!r} cannot be loaded: {self.reason}")


class SuggestingGroup(click.Group):
    """A group that suggests the verb that a misspelt one may mean."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that the arguments begin with, or fail with a suggestion."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            meant = self.meant_by(args[0], self.list_commands(ctx))
            if not meant:
                raise
            text = f"{error.format_message()} Did you mean {' or '.join(map(repr, meant))}?"
            raise click.UsageError(text, error.ctx) from error

    def meant_by(self, word: str, verbs: list[str]) -> list[str]:
        """Return the verbs that a misspelt word may mean. Pure."""
        return [MEANT[word]] if MEANT.get(word) in verbs else difflib.get_close_matches(word, verbs, 2)


class LazyGroup(SuggestingGroup):
    """A group of verbs that are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return all verbs: the tool's own, then those of other packages."""
        return [*(verb.name for verb in VERBS), *foreign_verbs()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Load one verb; the tool's own come first, without a look at what else is installed."""
        verb = find_verb(cmd_name)
        if verb is not None:
            return load_own(verb)
        points = foreign_verbs().get(cmd_name)
        return load_foreign(cmd_name, points) if points else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by section, from the table; only other packages' verbs are loaded for it."""
        width = max(len(name) for name in self.list_commands(ctx))
        for section in SECTIONS:
            own = [(verb.name.ljust(width), verb.summary) for verb in VERBS if verb.section == section]
            _write_section(formatter, section, own)
        foreign = [(name, load_foreign(name, points)) for name, points in foreign_verbs().items()]
        _write_section(
            formatter,
            FOREIGN,
            [(name.ljust(width), command.get_short_help_str(limit=200)) for name, command in foreign],
        )


def _write_section(formatter: click.HelpFormatter, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


def load_own(verb: Verb) -> click.Command:
    """Import one of the tool's own verbs."""
    module, _, attribute = verb.target.partition(":")
    command: click.Command = getattr(importlib.import_module(module), attribute)
    return command


def foreign_verbs() -> dict[str, list[EntryPoint]]:
    """Return other packages' verbs by name, sorted, without loading any; names of the tool's own are taken."""
    from importlib.metadata import entry_points

    found: dict[str, list[EntryPoint]] = {}
    for point in sorted(set(entry_points(group=GROUP)), key=lambda point: (point.name, point.value)):
        if find_verb(point.name) is None:
            found.setdefault(point.name, []).append(point)
    return found


def load_foreign(name: str, points: Iterable[EntryPoint]) -> click.Command:
    """Return another package's verb, or one that fails with the reason if it cannot be loaded."""
    point, *others = points
    if others:
        origins = " and ".join(
            f"{each.dist.name if each.dist else 'unknown'} ({each.value})" for each in (point, *others)
        )
        return BrokenCommand(name, f"provided by {origins}; uninstall one of them")
    try:
        command = point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a foreign module must not stop the tool
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return BrokenCommand(name, reason, traceback.format_exc())
    if not isinstance(command, click.Command):
        return BrokenCommand(name, f"{point.value} is not a click command")
    return command


def is_parallel(name: str) -> bool:
    """Return True if all ranks run this verb; another package sets ``command.is_parallel = True``."""
    verb = find_verb(name)
    if verb is not None:
        return verb.is_parallel
    points = foreign_verbs().get(name)
    return points is not None and bool(getattr(load_foreign(name, points), "is_parallel", False))
