"""``hpcckpt copy``: checkpoints moved between directories, whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcckpt.cli import elsewhere, options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.launcher import connect
from hpcckpt.cli.parameter_types import PathType
from hpcckpt.cli.progress import byte_progress
from hpcckpt.cli.train import OnEveryRank
from hpcckpt.collective.communicator import SerialCommunicator, launched_rank, launched_size
from hpcckpt.core.command_lines import command_line
from hpcckpt.core.units import nbytes_text, parse_nbytes
from hpcckpt.errors import (
    CollectiveError,
    HpcckptError,
    OlderStepError,
    StepExistsError,
    StepNotFoundError,
    StorageError,
    UnreadableError,
)

if TYPE_CHECKING:
    from hpcckpt.collective.communicator import Communicator
    from hpcckpt.rundir.discovery import StepInfo

T = TypeVar("T")


class BandwidthType(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # it has none before click 8.2
    """Bytes per second: ``200M`` and ``200MiB/s`` are 200 * 2**20, ``200MB/s`` is 200 * 10**6."""

    name = "bandwidth"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of bytes."""
        try:
            rate = parse_nbytes(re.sub(r"/s$", "", str(value).strip(), flags=re.IGNORECASE))
        except ValueError:
            rate = 0.0
        if rate == 0:
            self.fail(f"{value!r} is no rate: write 200M, 200MiB/s (the same) or 200MB/s", param, ctx)
        return rate


@dataclass(frozen=True, slots=True)
class _Order:
    """What the command line asks for."""

    source: Path
    destination: Path
    jobs: int
    bandwidth: float | None
    is_replacing: bool
    is_dry_run: bool
    is_quiet: bool


@dataclass(frozen=True, slots=True)
class _Line:
    """What was done with one step, or would be: ``copied``, ``there`` or ``failed``; a step in ``--json``."""

    step: int
    state: str
    path: Path
    save_id: str = ""
    nbytes: int = 0
    written_nbytes: int = 0
    seconds: float = 0.0
    problem: str = ""
    kind: str = ""


@click.command("copy", cls=OnEveryRank)
@click.argument("source", type=PathType())
@click.argument("destination", type=PathType(file_okay=False))
@options.step_argument
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Threads of each rank.")
@click.option(
    "--bandwidth",
    type=BandwidthType(),
    metavar="RATE",
    help="Bytes per second to write at most: 200M, 1.5GiB/s, 200MB/s.",
)
@click.option(
    "--overwrite",
    "is_replacing",
    is_flag=True,
    help="Replace another save of this number, atomically; verify the same one, and copy it again if it is rotten.",
)
@options.metric_option
@options.dry_run_option
@options.json_option
@options.quiet_option
def command(
    source: Path,
    destination: Path,
    step: str | None,
    jobs: int,
    bandwidth: float | None,
    metric: str | None,
    *,
    is_replacing: bool,
    is_dry_run: bool,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """Copy checkpoints to another run directory, verified.

    STEP is a number, 'latest' (the default), 'best' or 'all'. A checkpoint arrives whole or not at all, and stays the
    same save; one that exists already is not copied, and a copy that was interrupted resumes. Every
    byte is read back and compared with the checksums of the save. Under mpirun, srun or aprun the ranks share the work.
    Exits with 3 if the source is damaged, with 6 if only some of 'all' could be copied, and with 8 while a job writes
    there.
    """
    comm = _ranks()
    if comm is None:
        return ExitCode.OK  # MPI does not connect the ranks: rank 0 does it all
    order = _Order(source, destination, jobs, bandwidth, is_replacing, is_dry_run, is_quiet)
    found = _alone(comm, lambda: comm.on_root("copy", lambda: _chosen(source, destination, step, metric)))
    lines = [_copy(comm, order, info, is_only=step != "all") for info in found]
    if comm.is_root:
        _write_result(order, lines, is_json=is_json)
    return _exit_code(lines)


def _ranks() -> Communicator | None:
    """Return the ranks that share the work; ``None`` on one that has no part in it. Collective."""
    if launched_rank() is None or launched_size() == 1:
        return SerialCommunicator()
    return connect() or (SerialCommunicator() if launched_rank() == 0 else None)


def _alone(comm: Communicator, act: Callable[[], T]) -> T:
    """Call a function; on one rank an error needs no rank before its text."""
    try:
        return act()
    except CollectiveError as error:
        if comm.size == 1 and isinstance(error.__cause__, Exception):
            raise error.__cause__ from None
        raise


def _chosen(source: Path, destination: Path, step: str | None, metric: str | None) -> list[StepInfo]:
    """Return the steps to copy, the oldest first: at any moment the newest there has all before it. Root only."""
    from hpcckpt.rundir import discovery

    options.run_to_write(destination)
    if step != "all":
        info = options.find(source, step, metric)
        options.readable(info)
        return [info]
    found = list(discovery.scan(options.existing(source)))
    if not found:
        raise StepNotFoundError(f"no step in {source}; see '{command_line('list', source)}'{elsewhere.hint(source)}")
    return found


# -- one step --------------------------------------------------------------------------------------


def _copy(comm: Communicator, order: _Order, info: StepInfo, *, is_only: bool) -> _Line:
    """Copy one step, or in a dry run only check it; a failure among several steps is reported. Collective."""
    if info.is_unread and not is_only:
        return _failed(comm, order, info, StorageError(info.problem))
    try:
        act = _planned if order.is_dry_run else _copied
        return _alone(comm, lambda: act(comm, order, info))
    except (OlderStepError, StepExistsError, UnreadableError) as error:
        if is_only:
            raise
        return _failed(comm, order, info, error)


def _failed(comm: Communicator, order: _Order, info: StepInfo, error: HpcckptError) -> _Line:
    """Log on root why a step was not copied. Independent."""
    if comm.is_root:
        output.log(f"hpcckpt: {error}")
    return _Line(info.step, "failed", order.destination / info.path.name, problem=str(error), kind=error.kind)


def _planned(comm: Communicator, order: _Order, info: StepInfo) -> _Line:
    from hpcckpt.tiers.copy import planned

    def plan() -> bool:
        return planned(info.path, order.destination, is_replacing=order.is_replacing)

    state = "copied" if comm.on_root(f"copy {info.path}", plan) else "there"
    assert info.manifest is not None
    nbytes = info.manifest.nbytes
    return _Line(info.step, state, order.destination / info.path.name, info.manifest.save_id, nbytes, 0)


def _copied(comm: Communicator, order: _Order, info: StepInfo) -> _Line:
    from hpcckpt.tiers.copy import Pace, Rules, copy_step

    rate = None if order.bandwidth is None else order.bandwidth / comm.size
    rules = Rules(order.jobs, Pace(rate), order.is_replacing)
    total = 2 * (info.manifest.nbytes if info.manifest else 0) // comm.size  # copied, then read back
    with byte_progress(f"step {info.step}", total, is_quiet=order.is_quiet or not comm.is_root) as advance:
        done = copy_step(comm, info.path, order.destination, rules, advance)
    state = "copied" if done.is_new else "there"
    return _Line(done.step, state, done.path, done.save_id, done.nbytes, done.written_nbytes, done.seconds)


# -- telling ---------------------------------------------------------------------------------------


def _exit_code(lines: Sequence[_Line]) -> int:
    kinds = [line.kind for line in lines if line.state == "failed"]
    if not kinds:
        return ExitCode.OK
    if len(kinds) < len(lines):
        return ExitCode.PARTLY_DONE
    is_damaged = not set(kinds) <= {StepExistsError.kind, StorageError.kind, UnreadableError.kind}
    return ExitCode.CORRUPT if is_damaged else ExitCode.ERROR


def _write_result(order: _Order, lines: Sequence[_Line], *, is_json: bool) -> None:
    if is_json:
        document = {"source": order.source, "destination": order.destination, "dry_run": order.is_dry_run}
        output.write_json({**document, "steps": lines})
        return
    for line in lines:
        if line.state == "there":
            verified = ", verified" if order.is_replacing and not order.is_dry_run else ""
            output.log(f"step {line.step} is in {order.destination} already{verified}", is_quiet=order.is_quiet)
        elif line.state == "copied":
            output.write_line(_sentence(order, line))


def _sentence(order: _Order, line: _Line) -> str:
    if order.is_dry_run:
        return f"would copy step {line.step} to {line.path} ({nbytes_text(line.nbytes)})"
    left = line.nbytes - line.written_nbytes
    resumed = f", of which {nbytes_text(left)} were there" if left else ""
    rate = nbytes_text(line.written_nbytes / max(line.seconds, 1e-9))
    return f"copied step {line.step} to {line.path} ({nbytes_text(line.nbytes)}{resumed}, crc32c verified, {rate}/s)"
