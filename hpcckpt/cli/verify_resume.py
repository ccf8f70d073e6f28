"""``hpcckpt verify-resume``: whether a training that is killed and resumed ends as one that was never killed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.output import Column
from hpcckpt.cli.parameter_types import FiniteRange, PathType
from hpcckpt.cli.text import count_text, number_text

if TYPE_CHECKING:
    from hpcckpt.tools.verify_resume import ProgramRun, VerifyResult


@click.command("verify-resume", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides when it is killed.")
@click.option("--kills", "n_kills", type=click.IntRange(min=1), default=1, show_default=True, help="How often.")
@click.option(
    "--kill-after", type=click.IntRange(min=0), metavar="STEP", help="Kill after this step, not a random one."
)
@click.option("--env", "variable", default="HPCCKPT_RUN", show_default=True, help="Variable for the run directory.")
@click.option("--rtol", type=FiniteRange(min=0.0), default=0.0, show_default=True, help="As for diff.")
@options.only_option
@click.option(
    "--losses", type=PathType(str), multiple=True, metavar="FILE", help="CSV or JSON lines whose numbers must be equal."
)
@click.option(
    "--file", "files", type=PathType(str), multiple=True, metavar="FILE", help="A file that must be equal in the end."
)
@click.option("--timeout", "timeout_s", type=FiniteRange(min=0.0), metavar="SECONDS", help="When a run is hung.")
@click.option("--work", type=PathType(), help="Where both runs work; kept. By default temporary.")
@options.json_option
@options.quiet_option
def command(
    words: tuple[str, ...],
    seed: int,
    n_kills: int,
    kill_after: int | None,
    variable: str,
    rtol: float,
    patterns: tuple[str, ...],
    losses: tuple[str, ...],
    files: tuple[str, ...],
    timeout_s: float | None,
    work: Path | None,
    *,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """Check that a killed training ends the same.

    It is run straight through, and again, killed and resumed; then both are compared.

    The command gets its run directory where it has '{run}' among its arguments, and in the environment variable
    HPCCKPT_RUN. It must resume by itself when it is started again, and keep its last checkpoint. Files are named
    relative to the run directory, or with '{run}'. It is killed with all its processes, by SIGKILL; exit code 75 means
    that it wants to be started again. Exits with 5 if anything differs.
    """
    from hpcckpt.tools.verify_resume import VerifySettings, verify

    place = _fresh(work)
    settings = VerifySettings(
        words, place, variable, seed, n_kills, kill_after, rtol, patterns, files, losses, timeout_s
    )
    is_over = False
    try:
        found = verify(settings, lambda text: output.log(f"verify-resume: {text}", is_quiet=is_quiet))
        is_over = found.is_same
    finally:
        if work is None and is_over:
            shutil.rmtree(place, ignore_errors=True)
        elif not is_over:
            output.log(f"verify-resume: what both runs left, and printed, is in {place}", is_quiet=is_quiet)
    if is_json:
        output.write_json(_document(found))
    else:
        _write(found)
    return ExitCode.OK if found.is_same else ExitCode.DIFFERENT


def _fresh(work: Path | None) -> Path:
    if work is None:
        return Path(tempfile.mkdtemp(prefix="hpcckpt-verify-resume-"))
    if work.exists() and (not work.is_dir() or any(work.iterdir())):
        raise click.UsageError(f"--work: {work} is not an empty directory")
    work.mkdir(parents=True, exist_ok=True)
    return work.resolve()


def _document(found: VerifyResult) -> dict[str, object]:
    return {
        "same": found.is_same,
        "step": found.step,
        "level": found.level,
        "runs": found.runs,
        "compared": found.compared,
        "notes": found.notes,
    }


_RUNS = (
    Column("RUN"), Column("EXIT", is_number=True), Column("SECONDS", is_number=True), Column("FROM", is_number=True),
    Column("SAVED"), Column("KILLED"),
)  # fmt: skip
_COMPARED = (
    Column("COMPARED"), Column("SAME", is_number=True), Column("OF", is_number=True), Column("MAX |D|", is_number=True),
)  # fmt: skip


def _write(found: VerifyResult) -> None:
    output.write_table(_RUNS, [_run_cells(run) for run in found.runs])
    output.write_line("")
    sizes = {each: number_text(each.max_abs) if each.max_abs is not None else "-" for each in found.compared}
    output.write_table(
        _COMPARED, [[each.what, str(each.n_same), str(each.n_all), sizes[each]] for each in found.compared]
    )
    output.write_line("")
    for text in [*(text for each in found.compared for text in each.differing), *found.notes]:
        output.write_line(f"  {text}")
    output.write_line(_verdict(found))


def _run_cells(run: ProgramRun) -> list[str]:
    saved = f"{count_text(len(run.seen), 'step')}, to {run.newest}" if run.seen else "nothing"
    killed = f"{run.kill.later_s:.3f} s after step {run.kill.after}" if run.kill is not None else ""
    began = "-" if run.began_at is None else str(run.began_at)
    return [run.name, str(run.code), f"{run.seconds:.1f}", began, saved, killed]


def _verdict(found: VerifyResult) -> str:
    level = f" (level {found.level})" if found.level else ""
    if not found.is_same:
        return f"DIFFERENT: the resumed run did not end as the straight one{level}"
    where = f" at step {found.step}" if found.step is not None else ""
    return f"same: the resumed run ended{where} as the straight one{level}"
