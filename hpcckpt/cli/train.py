"""``hpcckpt train``: training from a configuration, on any number of ranks."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcckpt.cli import failures, options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.launcher import connect
from hpcckpt.cli.output import Column
from hpcckpt.cli.parameter_types import PathType
from hpcckpt.cli.text import count_text, metric_text
from hpcckpt.collective.communicator import launched_rank, launched_size
from hpcckpt.core.std_streams import write_message
from hpcckpt.errors import CollectiveError, ConfigError, HpcckptError
from hpcckpt.train.config_errors import TrainConfigError

if TYPE_CHECKING:
    from hpcckpt.collective.communicator import Communicator
    from hpcckpt.train.config.cycles import Cycle
    from hpcckpt.train.config.read import Document
    from hpcckpt.train.run.environment import CycleSummary


_Found = TypeVar("_Found")


class OnEveryRank(click.Command):
    """A verb that all ranks run, and of which rank 0 alone speaks where all would say the same."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the arguments; errors and help are printed once."""
        if _is_root():
            return super().make_context(*args, **extra)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return super().make_context(*args, **extra)
        except click.ClickException as error:
            raise SystemExit(error.exit_code) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run; an error that all ranks have is printed once, one that only this rank has ends the job."""
        try:
            return super().invoke(ctx)
        except (CollectiveError, ConfigError, click.ClickException) as error:
            if _is_root():
                raise
            raise SystemExit(error.exit_code) from None
        except Exception as error:
            if getattr(sys.excepthook, "aborts_job", False):
                sys.excepthook(type(error), error, error.__traceback__)
            raise


@click.command("train", cls=OnEveryRank)
@click.option(
    "-c",
    "--config",
    "path",
    type=PathType(str),
    required=True,
    metavar="FILE",
    help="JSON or Hjson; - is the standard input.",
)
@click.option("--run", "run_dir", type=PathType(file_okay=False), metavar="DIR",
              help="Run directory. By default runs/ and the name of FILE.")  # fmt: skip
@click.option("--resume", default="auto", show_default=True, metavar="auto|latest|best|STEP|never",
              help="Where to resume in a run that was interrupted; 2:500 is step 500 of the second cycle.")  # fmt: skip
@click.option("--overwrite", "is_overwriting", is_flag=True, help="With --resume never: move an earlier run aside.")
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE",
              help="Change a value: [1].optimizer.learning_rate=0.1. May be repeated.")  # fmt: skip
@click.option("--allow", multiple=True, metavar="ROOT",
              help="Trust a package, or one thing in it, to be named in FILE. May be repeated.")  # fmt: skip
@click.option("--print-config", "is_printing", is_flag=True, help="Print the effective cycles; train nothing.")
@click.option("--check", "is_checking", is_flag=True, help="Build everything; train nothing.")
@options.json_option
@options.quiet_option
def command(
    path: str,
    run_dir: Path | None,
    resume: str,
    sets: tuple[str, ...],
    allow: tuple[str, ...],
    *,
    is_overwriting: bool,
    is_printing: bool,
    is_checking: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """Train from a configuration file, on any number of ranks.

    FILE lists train cycles; each inherits what it leaves out from the one before. It is checked as a whole before
    anything is built, and runs no code that came with it: it may name Keras' own layers, losses and so on, and what
    is in hpcckpt.train; --allow adds packages that you trust.

    Run it alone or under mpirun, srun or aprun. Started again, it resumes where it was interrupted. Exits with 2 if the
    configuration is wrong, with 75 if it was asked to stop, has saved, and wants to be requeued.
    """
    if is_overwriting and resume != "never":
        raise click.UsageError(
            "--overwrite needs --resume never: only a run that begins again moves an earlier one aside"
        )
    if is_printing and (is_checking or resume != "auto"):
        raise click.UsageError("--print-config reads FILE alone: leave it out, or --check and --resume")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    source = "stdin" if path == "-" else path
    try:
        if not (is_checking or is_printing):
            from hpcckpt.preemption.signals import catching

            click.get_current_context().with_resource(catching())
        document, comm = _read(path)
        if not (is_checking or is_printing):
            complete = _from_root(
                comm, "look for a complete run", lambda: _complete(document, source, sets, run_dir, resume)
            )
            if complete is not None:
                return _write_complete(*complete, is_json=is_json, is_quiet=is_quiet)
        with output.stdout_for_json(is_json=is_json):  # what is allowed is imported
            cycles = _cycles(document, sets, allow, comm, is_checked=not is_printing)
        if is_printing:
            return _print(cycles)
        from hpcckpt.train.run.environment import Environment

        environment = Environment(run_dir, resume, allow, verbose=0 if is_quiet else 1, overwrite=is_overwriting)
        act = _check if is_checking else _train
        with _failures_of_training():
            return act(environment, cycles, source, is_json=is_json, is_quiet=is_quiet)
    except TrainConfigError as error:
        return _write_error(error.of_file(source), is_json=is_json)


def _is_root() -> bool:
    return launched_rank() in {None, 0}


# -- the configuration -----------------------------------------------------------------------------


def _read(path: str) -> tuple[Document, Communicator | None]:
    """Read the configuration on root; return it, and the ranks if there are several. Collective.

    Raises
    ------
    ConfigError
        If it cannot be read, the same on every rank.
    """
    try:
        from hpcckpt.train.config.cycles import cycles  # noqa: F401 - it needs the same packages
        from hpcckpt.train.config.read import read
    except ImportError as error:
        raise ConfigError(f"{error}; training from a configuration needs it: pip install 'hpcckpt[train]'") from error

    comm = connect() if launched_size() != 1 and launched_rank() is not None else None
    return _from_root(comm, "read the configuration", lambda: read(path)), comm


def _cycles(
    document: Document, sets: Sequence[str], allow: Sequence[str], comm: Communicator | None, *, is_checked: bool
) -> tuple[Cycle, ...]:
    """Return the cycles, checked as far as nothing need be built for it, on every rank. Collective.

    Raises
    ------
    ConfigError
        Listing everything that is wrong with it, the same on every rank.
    """
    from hpcckpt.train.config.cycles import cycles
    from hpcckpt.train.names.allow_list import Catalogue

    def check() -> tuple[Cycle, ...]:
        catalogue = Catalogue(allow)  # imports what is allowed: what it exports may be named
        return cycles(document, sets, catalogue=catalogue if is_checked else None)

    if comm is None or not is_checked:
        return check()
    from hpcckpt.train.run.build_cycle import together

    return together(comm, "check the configuration", check)


def _from_root(comm: Communicator | None, phase: str, act: Callable[[], _Found]) -> _Found:
    """Return what `act` returns on root, or raise what it raises there. Collective.

    An error of the configuration travels as data: it has one cause, and needs no rank before its text.
    """
    if comm is None:
        return act()

    def attempt() -> _Found | TrainConfigError:
        try:
            return act()
        except TrainConfigError as error:
            return error

    found = comm.on_root(phase, attempt)
    if isinstance(found, TrainConfigError):
        raise found
    return found


def _print(cycles: Sequence[Cycle]) -> int:
    from hpcckpt.train.config.cycles import effective

    if _is_root():
        output.write_json(effective(cycles))
    return ExitCode.OK


def _write_error(error: TrainConfigError, *, is_json: bool) -> int:
    """Log the problems of the configuration, the same on all ranks, from root; as JSON each problem by itself."""
    if not _is_root():
        return error.exit_code
    report = failures.log_error(error)
    if is_json:
        document = {"kind": report.kind, "message": report.message, "problems": error.problems}
        output.write_json({"error": document})
    return report.exit_code


@contextlib.contextmanager
def _failures_of_training() -> Iterator[None]:
    """Report exceptions of a model, a callback or TensorFlow with their traceback, as failures of the training."""
    try:
        yield
    except (HpcckptError, OSError, click.ClickException):
        raise
    except Exception as error:
        if launched_size() not in {None, 1}:
            raise  # it may be an error of this rank alone, which has to end the job
        write_message(traceback.format_exc())
        text = " ".join(str(error).split())[:500]
        raise click.ClickException(f"the training failed: {type(error).__name__}: {text}") from error


# -- a run that is complete ------------------------------------------------------------------------


def _complete(
    document: Document, source: str, sets: Sequence[str], run_dir: Path | None, resume: str
) -> tuple[Path, list[dict[str, list[float]]]] | None:
    """Return the run directory and the metrics of each cycle if nothing is left to train, else None. Root only.

    This is asked before TensorFlow is imported. Whatever is wrong is reported where the training would begin.
    """
    from hpcckpt.train.config.cycles import cycles, effective
    from hpcckpt.train.run import resume_point
    from hpcckpt.train.run.run_context import default_run_dir
    from hpcckpt.train.run.run_directory import TrainingDirectory, metrics_of

    try:
        whole = cycles(document, sets)
        directory = TrainingDirectory(Path(os.path.abspath(run_dir or default_run_dir(source))))
        wanted = resume_point.once(resume_point.parse(resume), directory)
        if not resume_point.is_complete(directory, whole, effective(whole), wanted):
            return None
        rows = directory.rows()
    except (HpcckptError, OSError):
        return None
    return directory.path, [metrics_of([row for row in rows if row.cycle == cycle.index + 1]) for cycle in whole]


def _write_complete(
    run_dir: Path, histories: Sequence[Mapping[str, list[float]]], *, is_json: bool, is_quiet: bool
) -> int:
    """Report that a run is complete, from root."""
    if _is_root():
        text = f"hpcckpt: complete cycles={len(histories)} in {run_dir}: nothing is left to train"
        output.log(text, is_quiet=is_quiet)
        _write_histories(histories, is_json=is_json, is_quiet=is_quiet)
    return ExitCode.OK


# -- training, and its dry run ---------------------------------------------------------------------


def _check(environment: Any, cycles: Sequence[Cycle], source: str, *, is_json: bool, is_quiet: bool) -> int:
    """Build everything, and say what would be trained. Collective."""
    with output.stdout_for_json(is_json=is_json):
        found = environment.check(cycles, source)
    if not _is_root():
        return ExitCode.OK
    if is_json:
        output.write_json({"ok": True, "cycles": found})
    else:
        output.write_table(_BUILT, [_built_cells(each) for each in found])
    warnings = [f"cycle {each.number}: {text}" for each in found for text in each.warnings]
    for text in warnings:
        output.log(f"hpcckpt: warning: {text}", is_quiet=is_quiet)
    if not is_json:
        outcome = count_text(len(warnings), "warning") if warnings else "nothing wrong"
        output.log(f"{count_text(len(cycles), 'cycle')}, {outcome}", is_quiet=is_quiet)
    return ExitCode.OK


_BUILT = (
    Column("CYCLE", is_number=True), Column("MODEL"), Column("PARAMETERS", is_number=True),
    Column("TRAINED", is_number=True), Column("EPOCHS", is_number=True), Column("BATCHES", is_number=True),
    Column("VALID", is_number=True), Column("RANKS", is_number=True), Column("FROZEN"),
)  # fmt: skip


def _built_cells(each: CycleSummary) -> list[str]:
    numbers = (each.parameters, each.trained, each.epochs, each.batches, each.valid_batches, each.ranks)
    cells = ["-" if number is None else f"{number:,}" for number in numbers]
    return [str(each.number), each.model, *cells, ", ".join(each.frozen)]


def _train(environment: Any, cycles: Sequence[Cycle], source: str, *, is_json: bool, is_quiet: bool) -> int:
    """Train, and write what came of it. Collective."""
    with output.stdout_for_json(is_json=is_json):
        found = [each.history for each in environment.run(cycles, source)]
    histories = [{name: [float(value) for value in values] for name, values in each.items()} for each in found]
    if _is_root():
        _write_histories(histories, is_json=is_json, is_quiet=is_quiet)
    return ExitCode.OK


def _write_histories(histories: Sequence[Mapping[str, list[float]]], *, is_json: bool, is_quiet: bool) -> None:
    if is_json:
        output.write_json({"cycles": [{"cycle": i, "history": each} for i, each in enumerate(histories, 1)]})
    elif not is_quiet:
        _write(histories)


def _write(histories: Sequence[Mapping[str, list[float]]]) -> None:
    """Write a line for each cycle: how long it was, and what its metrics were in the end."""
    names = list(dict.fromkeys(name for each in histories for name in each))
    columns = [Column("CYCLE", is_number=True), Column("EPOCHS", is_number=True)]
    columns += [Column(name.upper(), is_number=True) for name in names]
    rows = []
    for number, each in enumerate(histories, 1):
        epochs = max(map(len, each.values()), default=0)
        last = [metric_text(each[name][-1] if each.get(name) else None) for name in names]
        rows.append([str(number), str(epochs), *last])
    output.write_table(columns, rows)
