"""``hpcckpt rm``: remove checkpoints by number."""

from __future__ import annotations

from pathlib import Path

import click

from hpcckpt.cli import options, output, prune
from hpcckpt.cli.text import count_text, readers_text
from hpcckpt.core.command_lines import command_line
from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import PinnedStepError
from hpcckpt.rundir import discovery, pins
from hpcckpt.rundir.leftovers import tree_nbytes
from hpcckpt.tools.prune import PrunePlan, Removal, carry_out, locked_to_remove


@click.command("rm")
@options.directory_argument
@click.argument("steps", nargs=-1, required=True, metavar="STEP...", shell_complete=options.complete_steps)
@options.metric_option
@options.dry_run_option
@options.yes_option
@options.json_option
@options.quiet_option
def command(
    directory: Path,
    steps: tuple[str, ...],
    metric: str | None,
    *,
    is_dry_run: bool,
    is_yes: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """Remove checkpoints from a run.

    Each STEP is a number, 'latest' or 'best'; damaged ones can be removed too. Pinned steps are refused. It takes the
    run's lock, and exits with 8 while a job is writing. 'hpcckpt prune' removes by rules, and what killed jobs left.
    """
    options.existing_run(directory)
    chosen = {options.find_silently(directory, step, metric).step for step in steps}
    plan = _plan(directory, chosen)
    if not is_dry_run and not is_yes:
        output.log(f"{_after(directory, chosen)}", is_quiet=is_quiet)
        number = count_text(len(chosen), "checkpoint")
        options.ask(f"Remove {number} ({nbytes_text(plan.nbytes)}) from {directory}?")
    failures = {}
    if not is_dry_run:
        with locked_to_remove(directory, lambda: _plan(directory, chosen), by="rm") as removed:
            plan = _plan(directory, chosen)  # one may have been pinned while the user thought about it
            failures = carry_out(directory, plan, {removal.path for removal in plan.removals}, by="rm")
            plan = PrunePlan(plan.kept, (*removed, *plan.removals))
    outcome = prune.PruneOutcome(directory, plan, failures, is_dry_run)
    prune.write_result(outcome, is_json=is_json, is_quiet=is_quiet)
    if not is_dry_run and not is_json:
        output.log(_after(directory, chosen), is_quiet=is_quiet)
    return prune.exit_code(outcome)


def _plan(directory: Path, chosen: set[int]) -> PrunePlan:
    """Return what goes.

    Raises
    ------
    PinnedStepError
        If a step is pinned.
    """
    pinned = sorted(chosen & pins.pinned_by_users(directory))
    if pinned:
        numbers = " ".join(map(str, pinned))
        raise PinnedStepError(
            f"step {numbers} is pinned: '{command_line('unpin', directory, *pinned)}' before it can be removed"
        )
    if files := pins.pins_of_readers(directory, chosen):
        raise PinnedStepError(readers_text(files))
    there = discovery.scan(directory)
    going = [Removal(info.path, tree_nbytes(info.path), info.step) for info in there if info.step in chosen]
    return PrunePlan(tuple(info.step for info in there if info.step not in chosen), tuple(going))


def _after(directory: Path, chosen: set[int]) -> str:
    """Return which step a restart uses when the chosen ones are gone."""
    from hpcckpt.tiers.scratch_dir import OWNER_FILE

    left = [info for info in discovery.scan(directory) if info.step not in chosen]
    restart = discovery.first_restorable(reversed(left))[0]
    has_scratch = (directory / OWNER_FILE).exists()
    copies = "; a job with scratch= also looks for copies of the removed steps there" if has_scratch else ""
    if restart is None:
        return f"nothing is left to resume from{copies}"
    return f"a restart would use step {restart.step}{copies}"
