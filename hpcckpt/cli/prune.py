"""``hpcckpt prune``: retention by hand, and removing what killed jobs, older histories and damage have left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from hpcckpt.cli import elsewhere, options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.text import count_text
from hpcckpt.core.command_lines import command_line
from hpcckpt.core.options import Options
from hpcckpt.core.units import nbytes_text
from hpcckpt.errors import NoSpaceError, StepNotFoundError
from hpcckpt.rundir.leftovers import Kind, find_leftovers, usage_of
from hpcckpt.rundir.lock import RunLock
from hpcckpt.tools.prune import LEFT, PrunePlan, Removal, carry_out, locked_to_remove, plan_prune


@dataclass(frozen=True, slots=True)
class PruneOutcome:
    """What was removed from a run, or would be."""

    directory: Path
    plan: PrunePlan
    failures: Mapping[Path, str]
    is_dry_run: bool


@click.command("prune")
@options.directory_argument
@click.argument("steps", nargs=-1, metavar="")
@click.option("--keep-last", type=click.IntRange(min=1), metavar="N", help="Keep the newest N steps.")
@click.option(
    "--keep-best", metavar="METRIC", help="Keep the best besides: val_loss, max:accuracy, min:loss:3 (three)."
)
@click.option("--keep-period", type=click.IntRange(min=1), metavar="N", help="Keep steps divisible by N besides.")
@click.option("--aside", "has_aside", is_flag=True, help="Remove what was moved aside when a run went back (.aside-*).")
@click.option("--bad", "has_bad", is_flag=True, help="Remove damaged steps that were replaced (.bad-*).")
@options.dry_run_option
@options.yes_option
@options.json_option
@options.quiet_option
def command(
    directory: Path,
    steps: tuple[str, ...],
    keep_last: int | None,
    keep_best: str | None,
    keep_period: int | None,
    *,
    has_aside: bool,
    has_bad: bool,
    is_dry_run: bool,
    is_yes: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """Remove old checkpoints and what killed jobs left.

    Without options only the temporary directories of killed jobs are removed. With a --keep option, the
    newest step, pinned steps and damaged ones are kept whatever the options say.
    --aside and --bad remove what 'hpcckpt list' shows as moved aside, and as damaged and replaced.
    It takes the run's lock, and exits with 8 while a job is writing, with 4 if the checkpoints are in
    directories below.
    """
    if steps:
        instead = command_line("rm", directory, *steps)
        raise click.UsageError(f"prune removes by rules; to remove steps by number: {instead}")
    rules = _Rules(_options(keep_last, keep_best, keep_period), _kinds(has_aside=has_aside, has_bad=has_bad))
    options.existing_run(directory)
    plan = _plan(directory, rules, is_dry_run=is_dry_run)
    if not plan.removals and (places := elsewhere.hint(directory)):
        raise StepNotFoundError(f"no checkpoint in {directory}{places}")
    if is_dry_run or not plan.removals:
        write_result(PruneOutcome(directory, plan, {}, is_dry_run), is_json=is_json, is_quiet=is_quiet)
        return ExitCode.OK
    if not is_yes:
        _show(plan)
        options.ask(f"Remove {_count(plan)} from {directory}?")
    done = _act(directory, rules, plan)
    write_result(done, is_json=is_json, is_quiet=is_quiet)
    return exit_code(done)


@dataclass(frozen=True, slots=True)
class _Rules:
    """Which steps are kept, and which leftovers are removed."""

    keep: Options
    kinds: frozenset[Kind]


def _kinds(*, has_aside: bool, has_bad: bool) -> frozenset[Kind]:
    aside: set[Kind] = {"aside"} if has_aside else set()
    bad: set[Kind] = {"bad"} if has_bad else set()
    return LEFT | aside | bad


def _options(keep_last: int | None, keep_best: str | None, keep_period: int | None) -> Options:
    has_rule = keep_best is not None or keep_period is not None
    rules = Options(keep_last or (1 if has_rule else None), options.read_metric(keep_best, "--keep-best"), keep_period)
    return rules.check()


def _plan(directory: Path, rules: _Rules, *, is_dry_run: bool) -> PrunePlan:
    """Plan; under the lock if it is meant."""
    if is_dry_run:
        return plan_prune(directory, rules.keep, rules.kinds)
    try:
        with RunLock.take(directory):
            return plan_prune(directory, rules.keep, rules.kinds, holds_lock=True)
    except NoSpaceError:  # not even the lock can be written
        return plan_prune(directory, rules.keep, rules.kinds)


def _act(directory: Path, rules: _Rules, shown: PrunePlan) -> PruneOutcome:
    """Remove what was shown and may still go: while the user thought about it the lock was free."""
    allowed = {removal.path for removal in shown.removals}

    def plan(*, holds_lock: bool = False) -> PrunePlan:
        now = plan_prune(directory, rules.keep, rules.kinds, holds_lock=holds_lock)
        return PrunePlan(now.kept, tuple(removal for removal in now.removals if removal.path in allowed))

    with locked_to_remove(directory, plan) as removed:
        going = plan(holds_lock=True)
        failures = carry_out(directory, going, allowed)
        return PruneOutcome(directory, PrunePlan(going.kept, (*removed, *going.removals)), failures, is_dry_run=False)


def exit_code(done: PruneOutcome) -> int:
    """Return the exit code of a removal. Pure."""
    if not done.failures:
        return ExitCode.OK
    return ExitCode.PARTLY_DONE if len(done.failures) < len(done.plan.removals) else ExitCode.ERROR


def _count(plan: PrunePlan) -> str:
    n_steps = sum(removal.step is not None for removal in plan.removals)
    counts = Counter(_GROUPS.get(removal.kind, "left by killed jobs") for removal in plan.removals if removal.kind)
    parts = ([count_text(n_steps, "checkpoint")] if n_steps else []) + [f"{n} {words}" for words, n in counts.items()]
    return f"{' and '.join(parts)} ({nbytes_text(plan.nbytes)})"


_GROUPS: Mapping[Kind | None, str] = {"aside": "moved aside", "bad": "damaged and replaced"}


def _show(plan: PrunePlan) -> None:
    for removal in plan.removals:
        output.log(f"  {_name(removal)}  {nbytes_text(removal.nbytes)}")
    output.log(f"kept: {', '.join(map(str, plan.kept)) or 'none'}")


def _name(removal: Removal) -> str:
    return removal.path.name if removal.step is None else f"step {removal.step}"


def write_result(done: PruneOutcome, *, is_json: bool, is_quiet: bool) -> None:
    """Report what was removed, or would be, and what could not be."""
    for path, problem in done.failures.items():
        output.log(f"not removed: {path.name}: {problem}")
    if is_json:
        output.write_json(_document(done))
        return
    if not done.plan.removals:
        output.log(f"nothing to remove from {done.directory}", is_quiet=is_quiet)
        for each in usage_of(find_leftovers(done.directory)):
            if each.kind in {"aside", "bad"}:
                count = count_text(each.count, "directory", "directories")
                output.log(f"kept: {count} {each.words}, {nbytes_text(each.nbytes)}; removed by: {each.removed_by}")
        return
    for removal in done.plan.removals:
        if removal.path not in done.failures:
            verb = "would remove" if done.is_dry_run else "removed"
            output.write_line(f"{verb} {_name(removal)}  {nbytes_text(removal.nbytes)}")
    output.log(f"kept: {', '.join(map(str, done.plan.kept)) or 'none'}", is_quiet=is_quiet)


def _document(done: PruneOutcome) -> dict[str, object]:
    gone = [removal for removal in done.plan.removals if removal.path not in done.failures]
    return {
        "directory": done.directory,
        "dry_run": done.is_dry_run,
        "kept": done.plan.kept,
        "removed": gone,
        "nbytes": sum(removal.nbytes for removal in gone),
        "failed": [{"path": path, "problem": problem} for path, problem in done.failures.items()],
    }
