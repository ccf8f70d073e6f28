"""``hpcckpt advise``: how often to save in a run, from what its saves cost and how often jobs die."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.output import Column
from hpcckpt.cli.parameter_types import PathType
from hpcckpt.errors import OptionError

N_FAILURES = 1000
SEED = 20061
_SOURCES = {
    "given": "as you say",
    "journal": "as the run's journal tells",
    "assumed": "assumed",
}


@click.command("advise")
@options.directory_argument
@click.option("--mtbf", metavar="DURATION", help="Mean time between failures of the whole job: 24h, 90m, 2-12:00:00.")
@click.option(
    "--cost", metavar="DURATION", help="What a save costs the program; by default as measured in the journal."
)
@click.option("--restart", metavar="DURATION", help="How long a restart takes; the journal has only its restore.")
@click.option(
    "--simulate", "is_simulating", is_flag=True, help=f"Check the advice against {N_FAILURES:,} drawn failures."
)
@click.option("--plot", "plot", type=PathType(dir_okay=False), metavar="FILE.png",
              help="Draw what each interval loses, in place of an earlier picture.")  # fmt: skip
@options.json_option
@options.quiet_option
def command(
    directory: Path,
    mtbf: str | None,
    cost: str | None,
    restart: str | None,
    plot: Path | None,
    *,
    is_simulating: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """Recommend how often to save, and compare intervals.

    The cost of a save is how long it delayed the program, or by how much steps were slower during it, as measured in
    the run's journal; the interval is Daly's. Without --mtbf the time between failures is that of the journal, if three
    jobs have died; else 24 hours are assumed.
    """
    from hpcckpt.tools.report.advice import advise
    from hpcckpt.tools.report.read_history import read_run_history
    from hpcckpt.tools.report.statistics import figures_of

    options.existing_run(directory)
    figures = figures_of(read_run_history(directory))
    advice = advise(figures, _seconds("--mtbf", mtbf), _seconds("--restart", restart), _seconds("--cost", cost))
    simulated = _simulate(advice) if is_simulating else None
    if plot is not None:
        _draw(advice, plot)
    if is_json:
        output.write_json({"directory": str(directory), **asdict(advice), "simulated": simulated})
    else:
        _write(advice, simulated, has_told_restart=restart is not None, is_quiet=is_quiet)
    return ExitCode.OK


def _seconds(option: str, text: str | None) -> float | None:
    from hpcckpt.core.durations import duration_s

    try:
        return None if text is None else duration_s(text)
    except OptionError as error:
        raise OptionError(f"{option}: {error}") from error


def _simulate(advice: Any) -> dict[str, Any]:
    """Return what failures that are drawn say of the advised interval and of the best one."""
    from hpcckpt.tools.report.simulate_failures import failures, simulated_loss, simulated_optimum

    times = failures(advice.mtbf_s, N_FAILURES, SEED)
    best = simulated_optimum(times, advice.cost_s, advice.interval_s, advice.restart_s)
    own = float(simulated_loss([advice.interval_s], times, advice.cost_s, advice.restart_s)[0])
    return {
        "n_failures": N_FAILURES,
        "lost": own,
        "best_interval_s": best.interval_s,
        "best_lost": best.lost,
        "above_best": own / best.lost - 1.0,
    }


def _draw(advice: Any, path: Path) -> None:
    from hpcckpt.tools.report.advice_plot import draw_advice
    from hpcckpt.tools.report.figure_files import write_whole

    if path.suffix.lower() != ".png":
        raise OptionError(f"--plot: {str(path)!r} – a file that ends in .png")
    write_whole(path, draw_advice(advice))


def _write(advice: Any, simulated: dict[str, Any] | None, *, has_told_restart: bool, is_quiet: bool) -> None:
    from hpcckpt.tools.report.text import duration_words, percent_words

    what = "restart" if has_told_restart else "restore"  # the journal knows nothing of the start of a job
    fields = [
        ("a save costs", duration_words(advice.cost_s)),
        ("a failure every", f"{duration_words(advice.mtbf_s)} ({_SOURCES[advice.mtbf_source]})"),
        (f"a {what} takes", duration_words(advice.restart_s) if advice.restart_s else "- (not measured)"),
        ("save every", _in_words(advice.advised, duration_words(advice.interval_s))),
        ("in a program", f'every_n_minutes={advice.interval_s / 60:.3g}, or "auto" with mtbf={advice.mtbf_s:.0f}'),
        ("time lost", f"{percent_words(advice.advised.lost)} of the time"),
    ]
    if advice.now is not None:
        fields.append(
            ("at present", f"every {_in_words(advice.now, duration_words(advice.now_s))}: {_compared(advice)}")
        )
    if simulated is not None:
        lost, above = percent_words(simulated["lost"]), percent_words(simulated["above_best"])
        text = f"{lost} lost, {above} more than the best of all"
        fields.append((f"{N_FAILURES:,} failures", f"{text} ({duration_words(simulated['best_interval_s'])})"))
    output.write_fields(fields)
    output.write_line("")
    output.write_table(_COLUMNS, [_cells(choice) for choice in advice.choices])
    for warning in advice.warnings:
        output.log(f"note: {warning}", is_quiet=is_quiet)


def _in_words(choice: Any, duration: str) -> str:
    return duration if choice.steps is None else f"{duration} (about {choice.steps:,} steps)"


def _compared(advice: Any) -> str:
    from hpcckpt.tools.report.text import percent_words

    more = advice.now.lost - advice.advised.lost
    return f"{percent_words(advice.now.lost)} lost" + (f", {percent_words(more)} more" if more > 5e-5 else ", as good")


_COLUMNS = (
    Column("INTERVAL", is_number=True), Column("STEPS", is_number=True), Column("LOST", is_number=True),
    Column("SAVING", is_number=True), Column("TRAINED AGAIN", is_number=True), Column(""),
)  # fmt: skip


def _cells(choice: Any) -> list[str]:
    from hpcckpt.tools.report.text import duration_words, percent_words

    steps = "-" if choice.steps is None else f"{choice.steps:,}"
    parts = [percent_words(part) for part in (choice.lost, choice.saving, choice.again)]
    mark = {"advised": "advised *", "young": "Young", "now": "at present"}.get(choice.what, "")
    return [duration_words(choice.interval_s), steps, *parts, mark]
