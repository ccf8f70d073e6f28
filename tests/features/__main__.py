"""Run the rows of the table of features as users of the originals would; report the results.

python -m tests.features                 all rows
python -m tests.features T1 K3           some
python -m tests.features --page          write the tables of docs/features.md
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.features import ktf, notebook, outline, tflms, tmci, tutorial  # noqa: F401 - they register rows
from tests.features.table import N_ROWS, PAGE, ROWS, NeedsError, Row, names, page
from tests.features.work import Session, Work
from tests.support.paths import ROOT

WHERE = ROOT / "build" / "coverage"
WIDTH = 110


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a row."""

    row: str
    feature: str
    verdict: str
    evidence: str
    seconds: float
    needs: list[tuple[str, str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested rows; return 1 if a row is partial, 2 if one is unknown."""
    asked = _arguments(arguments)
    if asked.page:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    unknown = [name for name in asked.rows if name not in ROWS]
    if unknown:
        print(f"there is no row {', '.join(unknown)}; rows are {', '.join(names())}", file=sys.stderr)
        return 2
    rows = [ROWS[name] for name in asked.rows or names()]
    where = asked.directory.absolute()
    shutil.rmtree(where, ignore_errors=True)
    session, began = Session(where), time.monotonic()
    with ThreadPoolExecutor(asked.jobs) as pool:
        outcomes = list(pool.map(lambda each: _run(session, each, is_kept=asked.keep), rows))
    report = _report(outcomes, time.monotonic() - began)
    (where / "report.md").write_text(report, encoding="utf-8")
    (where / "report.json").write_text(json.dumps([asdict(each) for each in outcomes], indent=1), encoding="utf-8")
    if not asked.keep:
        shutil.rmtree(session.shared)
    print(f"\n{report}\nfiles in {where}: report.md, report.json, logs")
    return 1 if any(each.verdict == "partial" for each in outcomes) else 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.features", description="Run the rows of docs/features.md.")
    parser.add_argument("rows", nargs="*", metavar="ROW", type=str.upper, help="which, such as T1 K3; default: all")
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(2, os.cpu_count() or 1),
        metavar="N",
        help="rows at a time (default: %(default)s)",
    )
    parser.add_argument("--directory", type=Path, default=WHERE, metavar="DIR", help="emptied; default: build/coverage")
    parser.add_argument("--keep", action="store_true", help="keep the directories in which rows ran")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/features.md, and run nothing")
    return parser.parse_args(arguments)


def _run(session: Session, row: Row, *, is_kept: bool) -> Outcome:
    """Run one row and print its result.

    An exception makes the row partial; `NeedsError` gives it the verdict ``needs``.
    """
    began, work = time.monotonic(), Work(session, row.name, session.directory / "rows" / row.name)
    try:
        verdict, evidence = row.verdict, row.check(work)
    except NeedsError as error:
        verdict, evidence = f"needs {error.what}", error.tried
        work.needs(error.what, error.tried)
    except AssertionError as error:
        verdict, evidence = "partial", str(error)
        if not evidence[:1].strip():
            evidence = f"{_place(error)}\n{evidence}"
    except Exception as error:  # noqa: BLE001 - a broken row counts as partial
        verdict, evidence = "partial", f"{type(error).__name__}: {error}"
        with work.log.open("a", encoding="utf-8") as log:
            log.write(traceback.format_exc())
    seconds = time.monotonic() - began
    if not is_kept:
        shutil.rmtree(work.directory, ignore_errors=True)
    short = evidence.splitlines()[0] if verdict != "partial" else evidence
    print(f"{row.name:<4} {verdict:<8} {seconds:6.1f} s  {short}", flush=True)
    return Outcome(row.name, row.feature, verdict, evidence, round(seconds, 1), work.missing)


def _place(error: AssertionError) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}: {last.line}"


def _report(outcomes: list[Outcome], seconds: float) -> str:
    counts = Counter(each.verdict for each in outcomes)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    lines = ["| row | feature | verdict | evidence | seconds |", "|---|---|---|---|---:|"]
    for each in outcomes:
        evidence = each.evidence.splitlines()[0][: WIDTH * 2].replace("|", "\\|") if each.evidence else ""
        lines.append(f"| {each.row} | {each.feature} | {each.verdict} | {evidence} | {each.seconds:.1f} |")
    lines += ["", _counted(counts, outcomes, seconds, commit)]
    missing = [(each.row, what, tried) for each in outcomes for what, tried in each.needs]
    if missing:
        lines += ["", "Parts that were not run on this machine:", "", "| row | needs | tried |", "|---|---|---|"]
        lines += [f"| {row} | {what} | {' '.join(tried.split())[: WIDTH * 2]} |" for row, what, tried in missing]
    return "\n".join(lines) + "\n"


def _counted(counts: Counter[str], outcomes: list[Outcome], seconds: float, commit: str) -> str:
    known = {name: counts.pop(name, 0) for name in ("better", "works", "partial")}
    parts = [f"{count} {name}" for name, count in [*known.items(), *sorted(counts.items())]]
    n_rows, n_all = len(outcomes), sum(N_ROWS.values())
    which = f"{n_rows} rows" if n_rows == n_all else f"{n_rows} of {n_all} rows"
    return f"{which}: {', '.join(parts)}. {seconds / 60:.1f} minutes at commit {commit}."


if __name__ == "__main__":
    sys.exit(main())
