"""``hpcckpt doctor``: what is wrong here, and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcckpt.cli import launcher, options, output
from hpcckpt.cli.exit_codes import ExitCode
from hpcckpt.cli.parameter_types import PathType
from hpcckpt.cli.text import count_text
from hpcckpt.collective import launchers
from hpcckpt.collective.communicator import Communicator, SerialCommunicator, launched_rank

if TYPE_CHECKING:
    from hpcckpt.tools.doctor.all_ranks import RankFindings
    from hpcckpt.tools.doctor.finding import Finding, Level

SHORT_S = 300.0


@click.command("doctor")
@click.argument("directory", type=PathType(), required=False)
@click.option("--quick", "is_quick", is_flag=True, help="Start no other programs: under a second, for job scripts.")
@options.json_option
@options.quiet_option
def command(directory: Path | None, *, is_quick: bool, is_json: bool, is_quiet: bool) -> int:
    """Look for what is wrong, and say what to do about it.

    It looks at this installation, and with DIRECTORY, where checkpoints are or would be written, at that
    too: file system, locks, striping, space, quota, leftovers. Under mpirun, srun or aprun it looks at every
    rank's host, and says which ranks differ. Exits with 1 if it finds a problem: something that will make
    saving or restoring fail. -q shows only what needs attention.
    """
    connected = launcher.connect(is_doubtful=True) if launched_rank() is not None else None
    if connected is None and launched_rank() not in {None, 0}:
        return ExitCode.OK  # rank 0 reports that the ranks are not connected
    comm = connected or SerialCommunicator()
    found = _found(comm, directory, is_quick=is_quick)
    code = _report(found, comm.size, is_json=is_json, is_quiet=is_quiet) if comm.is_root else ExitCode.OK
    return comm.bcast(code)


# -- looking ---------------------------------------------------------------------------------------


def _found(comm: Communicator, directory: Path | None, *, is_quick: bool) -> list[RankFindings]:
    """Look everywhere, and return what was found on root. Collective."""
    from hpcckpt.tools.doctor import all_ranks, launch

    here = launch.place()
    found = all_ranks.gather(comm, here.host, lambda: _at_host(directory, is_quick=is_quick), lambda: _at_rank(comm))
    if comm.size > 1:
        places = comm.gather(here)
        found += [all_ranks.RankFindings(launch.hosts(places))] if places is not None else []
        found += [all_ranks.RankFindings(finding) for finding in _shared(comm, directory)]
    if comm.is_root:
        found += [all_ranks.RankFindings(_time_left(is_quick=is_quick))]
    return found


def _at_host(directory: Path | None, *, is_quick: bool) -> Iterator[Finding]:
    from hpcckpt.tools.doctor import backends, devices, hardware, mpi, scratch, software, storage, tf_builds

    with devices.asked(is_quick=is_quick) as findings_of_devices:
        yield from software.findings(is_quick=is_quick)
        yield from mpi.quick_findings() if is_quick else mpi.findings()
        if not is_quick:
            yield from tf_builds.findings()
        yield from hardware.findings()
        yield from backends.findings()
        yield from scratch.findings()
        if directory is not None:
            yield from storage.findings(directory, is_quick=is_quick)
        yield from findings_of_devices()  # last: they are found meanwhile


def _at_rank(comm: Communicator) -> Iterator[Finding]:
    from hpcckpt.tools.doctor import hardware, launch, mpi

    yield from launch.findings(comm.size, launchers.here())
    yield hardware.cores()
    if comm.size > 1:
        from hpcckpt.collective.mpi import thread_level

        yield mpi.thread_level(thread_level())


def _shared(comm: Communicator, directory: Path | None) -> Iterator[Finding]:
    """Yield whether all ranks see the directory, as far as it exists on root. Collective."""
    from hpcckpt.tools.doctor import shared_directory, storage

    if directory is None:
        return
    base = None
    if comm.is_root:
        with suppress(OSError):  # said by the look at storage; the others wait for an answer
            base = str(storage.existing_part(directory))
    base = comm.bcast(base)
    if base is not None:
        yield from shared_directory.findings(comm, Path(base))


def _time_left(*, is_quick: bool) -> Finding:
    """Say how long this job still has. Root only."""
    from hpcckpt.core.durations import duration_text
    from hpcckpt.errors import OptionError
    from hpcckpt.preemption.walltime import find_job_end, seconds_left
    from hpcckpt.tools.doctor.finding import Finding

    environ = {name: value for name, value in os.environ.items() if not is_quick or name not in _ASKING}
    try:
        found = find_job_end(environ=environ)
    except OptionError as error:
        return Finding("time left", "problem", str(error), "correct it, or unset it")
    warnings = "".join(f"; {text}" for text in found.warnings)
    left_s = seconds_left(found.end)
    if left_s is None:
        level: Level = "warning" if found.warnings else "note"
        remedy = "in a job: export HPCCKPT_JOB_END, or say walltime=, to have the last save made in time"
        return Finding("time left", level, f"nothing says when this job ends{warnings}", remedy)
    message = f"{duration_text(left_s)}, until {found.end}{warnings}"
    if left_s < SHORT_S:
        return Finding("time left", "warning", message, "ask for more: it is hardly enough to start, save and stop")
    return Finding("time left", "warning" if found.warnings else "ok", message)


_ASKING = ("SLURM_JOB_ID", "PBS_JOBID")  # with these the scheduler itself would be asked


# -- telling ---------------------------------------------------------------------------------------


def _report(found: Sequence[RankFindings], n_ranks: int, *, is_json: bool, is_quiet: bool) -> int:
    n_problems = sum(each.finding.level == "problem" for each in found)
    n_warnings = sum(each.finding.level == "warning" for each in found)
    if is_json:
        output.write_json({"ok": n_problems == 0, "n_ranks": n_ranks, "findings": [_as_json(each) for each in found]})
    else:
        _write([each for each in found if not is_quiet or each.finding.level in {"warning", "problem"}])
        output.log(f"{count_text(n_problems, 'problem')}, {count_text(n_warnings, 'warning')}", is_quiet=is_quiet)
    return ExitCode.ERROR if n_problems else ExitCode.OK


def _as_json(found: RankFindings) -> dict[str, Any]:
    finding = found.finding
    return {
        "topic": finding.topic, "level": finding.level, "message": finding.message, "remedy": finding.remedy,
        "ranks": list(found.ranks),
    }  # fmt: skip


def _write(found: Sequence[RankFindings]) -> None:
    from hpcckpt.tools.doctor.all_ranks import ranks_text

    width = max((len(each.finding.topic) for each in found), default=0)
    for finding, ranks in ((each.finding, each.ranks) for each in found):
        verdict = output.coloured(finding.level) + " " * (7 - len(finding.level))
        whose = f"[rank {ranks_text(ranks)}] " if ranks else ""
        output.write_line(f"{verdict}  {finding.topic.ljust(width)}  {whose}{finding.message}")
        if finding.remedy:
            output.write_line(f"{'':9}{'':{width}}  -> {finding.remedy}")
