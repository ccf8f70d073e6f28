"""``hpcckpt report``: what became of a run, as one HTML page and as a picture."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from hpcckpt.cli import options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.parameter_types import PathType
from hpcckpt.errors import OptionError


@click.command("report")
@options.directory_argument
@click.option("-o", "--out", type=PathType(dir_okay=False), metavar="FILE.html",
              help="Where to write the page; replaces an old one. By default report.html; - is stdout.")  # fmt: skip
@click.option("--png", type=PathType(dir_okay=False), metavar="FILE.png", help="Draw a picture too.")
@options.metric_option
@options.json_option
@options.quiet_option
def command(
    directory: Path, out: Path | None, png: Path | None, metric: str | None, *, is_json: bool, is_quiet: bool
) -> int:
    """Write what became of a run as one HTML page.

    Time line, stall, bandwidth, size and fate of each step, restarts, failures and metrics, from the run's journal and
    its steps. The page needs no network and no other file. With --json the figures and all events are printed instead,
    and the page is written only where -o says so.
    """
    from hpcckpt.tools.report.read_history import read_run_history

    if png is not None and png.suffix.lower() != ".png":
        raise OptionError(f"--png: {str(png)!r} – a file that ends in .png")
    if is_json and str(out) == "-":
        raise click.UsageError("--json and -o - both want the standard output")
    if png is not None and out is not None and png.resolve() == out.resolve():
        raise click.UsageError(f"--png and -o both name {out}: give the page another name")
    options.existing_run(directory)
    page = Path("report.html") if out is None and not is_json else out
    for file in (png, page):
        if file is not None and str(file) != "-":
            options.file_to_write(file)
    history = read_run_history(directory, options.read_metric(metric), has_usage=True)
    written = []
    if png is not None:
        from hpcckpt.tools.report.figure_files import write_whole
        from hpcckpt.tools.report.picture import picture_of

        write_whole(png, picture_of(history))
        written.append(png)
    if page is not None:
        written += _write_page(history, page)
    if is_json:
        from hpcckpt.tools.report.statistics import figures_of

        output.write_json({**asdict(history), "figures": asdict(figures_of(history)), "written": written})
    else:
        for path in written:
            output.log(f"wrote {path}", is_quiet=is_quiet)
    return ExitCode.OK


def _write_page(history: object, out: Path) -> list[Path]:
    from hpcckpt.tools.report.figure_files import write_whole
    from hpcckpt.tools.report.history import RunHistory
    from hpcckpt.tools.report.html_page import page_of

    assert isinstance(history, RunHistory)
    page = page_of(history, time.time())
    if str(out) == "-":
        click.echo(page, nl=False)
        return []
    write_whole(out, page.encode("utf-8"))
    return [out]
