"""``make campaign``: runs campaigns, whole or in part, and reports.

    _cli.py                                         every campaign in full: REPORTS/report.md, .json
    _cli.py corruption --count 500 --seed 7         a part of one: REPORTS/part-corruption-….md, .json
    _cli.py --merge REPORTS/part-*.json             adds parts up: REPORTS/report.md, .json
    _cli.py corruption --seed 7 --only 123          one case again, in full view

Exits with 1 if anything was lost, wrong or hung.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaign import _report
from tests.campaign._common import DEFAULT_SEED, FAILURES, Campaign, Outcome, load, names
from tests.campaign._driver import BrokenCampaignError, run_cases
from tests.campaign._report import Tally

REPORTS = Path(__file__).resolve().parents[2] / "build" / "campaign"
_LINE_EVERY_S = 30.0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make campaign", description="Run fault campaigns, whole or in part.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(names())} (default: all)")
    parser.add_argument("--count", type=int, help="how many cases of each (default: all of them)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first case (default: 0)")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="another seed gives other cases (default: 1)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="run this case alone, and show what happens")
    parser.add_argument("--jobs", type=int, help="how many workers at once (default: what the campaign says)")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="when a case is hung (default: likewise)")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where cases work (default: temporary files)")
    parser.add_argument("--reports", type=Path, metavar="DIR", default=REPORTS, help="default: build/campaign")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="JSON", help="add the reports of parts up")
    parser.add_argument("--list", action="store_true", dest="is_list", help="say which campaigns there are")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Do what the command line says; return the exit code."""
    asked = _arguments(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit interrupts, and what ran is reported
    if asked.is_list:
        for campaign in map(load, names()):
            print(f"{campaign.name:12} {campaign.full:6}  {campaign.promise}")
        return 0
    if asked.merge:
        return _finish(asked.reports / "report", _report.merged(t for path in asked.merge for t in _report.read(path)))
    chosen = [load(name) for name in asked.names or names()]
    if asked.only is not None:
        return _run_one(chosen[0], asked)
    is_whole = not asked.names and asked.count is None and asked.first == 0
    tallies = []
    for campaign in chosen:
        tally = run_part(campaign, asked)
        tallies.append(tally)
        path = asked.reports / ("report" if is_whole else _part_name(tally))
        _report.write(path, tallies if is_whole else [tally])  # also of a run that is broken off later
        _say(f"{_summary(tally)}\n  report: {path}.md")
        if tally.note == _INTERRUPTED:
            return 130
    return int(any(tally.is_broken for tally in tallies))


_INTERRUPTED = "interrupted"


def run_part(campaign: Campaign, asked: argparse.Namespace) -> Tally:
    """Run some cases of a campaign."""
    tally = Tally.of(campaign)
    count = campaign.full - asked.first if asked.count is None else asked.count
    tally.commands = [f"make campaign ARGS='{campaign.name} --seed {asked.seed} --from {asked.first} --count {count}'"]
    reason = campaign.reason_to_skip() if campaign.reason_to_skip else ""
    if reason:
        _say(f"{campaign.name}: skipped, {reason}")
        tally.verdicts = {"skipped": count}
        return tally
    began = time.monotonic()
    started: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(asked.first, asked.first + count):
            started.append(number)
            yield number

    with _progress(campaign.name, count) as advance:

        def report(number: int, outcome: Outcome) -> None:
            tally.count(asked.seed, number, outcome)
            advance(tally)

        try:
            limits = {"jobs": asked.jobs, "timeout_s": asked.timeout, "scratch": asked.scratch}
            run_cases(campaign, asked.seed, numbers(), report, **limits)
        except KeyboardInterrupt:
            tally.note = _INTERRUPTED
        except BrokenCampaignError as error:
            tally.note = str(error)
    tally.seconds = time.monotonic() - began
    tally.spans = [[asked.seed, asked.first, started[-1] + 1]] if started else []
    return tally


def _part_name(tally: Tally) -> str:
    where = [f"-s{seed}-{first}-{end}" for seed, first, end in tally.spans]
    return f"part-{tally.campaign}{''.join(where)}"


def _run_one(campaign: Campaign, asked: argparse.Namespace) -> int:
    outcomes: list[Outcome] = []
    limits = {"timeout_s": asked.timeout, "scratch": asked.scratch}
    run_cases(campaign, asked.seed, [asked.only], lambda _, outcome: outcomes.append(outcome), **limits)
    for outcome in outcomes:
        print(f"{campaign.name} {asked.only} of seed {asked.seed}: {outcome.verdict}  {outcome.what}\n{outcome.text}")
    return int(any(outcome.verdict in FAILURES for outcome in outcomes))


def _finish(path: Path, tallies: Sequence[Tally]) -> int:
    _report.write(path, tallies)
    for tally in tallies:
        _say(_summary(tally))
    _say(f"report: {path}.md")
    return int(any(tally.is_broken for tally in tallies))


def _summary(tally: Tally) -> str:
    counts = ", ".join(f"{tally.verdicts.get(name, 0)} {name}" for name in ("good", "detected", *FAILURES))
    text = f"{tally.campaign}: {tally.run} of {tally.planned} run, {counts}, {tally.seconds:.0f} s"
    return text + (f"; {tally.note}" if tally.note else "")


# -- progress ------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _progress(name: str, count: int) -> Iterator[Callable[[Tally], None]]:
    """Show a bar on a terminal, and a line now and then where there is none."""
    if sys.stderr.isatty():
        from rich import progress
        from rich.console import Console

        text = progress.TextColumn("{task.description}")
        columns = (text, progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn())
        with progress.Progress(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(name, total=count)
            yield lambda tally: bars.update(task, advance=1, description=_label(tally))
        return
    last = time.monotonic()

    def advance(tally: Tally) -> None:
        nonlocal last
        if time.monotonic() - last > _LINE_EVERY_S:
            last = time.monotonic()
            _say(f"{_label(tally)}: {sum(tally.verdicts.values())} of {count}")

    yield advance


def _label(tally: Tally) -> str:
    return tally.campaign + (f" ({tally.n_failed} failed)" if tally.n_failed else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
