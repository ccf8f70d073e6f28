"""A parametrized test is one case: its rows are subtests of it, each with its own fixtures, and reported by its name.

So are the tests of a file with the mark ``one_case``, which are the parts of one promise: many small facts about one
thing, or what one training or job shows, which then one worker of a parallel run starts once.  `gather` puts rows
together after everything else has selected and sorted them, so marks, the table of slow tests and ``-k`` select rows,
and ``pytest FILE::test[row]`` runs one.  Rows with a parameter of a wider scope stay separate in other files, since
they are run with the other tests of that parameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.scope import Scope
from _pytest.subtests import SubtestContext


def is_skipped(report: pytest.TestReport) -> bool:
    """Return whether a row was skipped, and not expected to fail. Pure."""
    return report.skipped and not hasattr(report, "wasxfail")


class Table(pytest.Item):
    """Rows that are one case. Passed if no row failed, skipped if all rows were skipped."""

    key = pytest.StashKey["Table"]()

    def __init__(self, *, rows: list[pytest.Function], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rows = rows
        self.nextitem: pytest.Item | None = None
        self.reports: dict[pytest.Item, list[pytest.TestReport]] = {row: [] for row in rows}
        for row in rows:
            row.stash[Table.key] = self
        self.add_marker(pytest.mark.timeout(0))  # each row has its own time-out
        if all("under_mpi" in row.keywords for row in rows):
            self.add_marker("under_mpi")

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return where the first row is, and the name of the case."""
        path, line, _ = self.rows[0].reportinfo()
        return path, line, self.nodeid.partition("::")[2].replace("::", ".")

    def run_protocol(self, nextitem: pytest.Item | None) -> None:
        """Run and report all rows, then the test."""
        self.nextitem = nextitem
        self.ihook.pytest_runtest_logstart(nodeid=self.nodeid, location=self.location)
        call = pytest.CallInfo.from_call(self.runtest, when="call", reraise=(KeyboardInterrupt, pytest.exit.Exception))
        self.ihook.pytest_runtest_logreport(report=self.ihook.pytest_runtest_makereport(item=self, call=call))
        self.ihook.pytest_runtest_logfinish(nodeid=self.nodeid, location=self.location)

    def runtest(self) -> None:
        """Run all rows; raise what becomes of the test."""
        for row, following in zip(self.rows, [*self.rows[1:], self.nextitem], strict=True):
            row.ihook.pytest_runtest_protocol(item=row, nextitem=following)
            if self.session.shouldfail or self.session.shouldstop:
                break
        failed = [self.label(row) for row, reports in self.reports.items() if any(each.failed for each in reports)]
        if failed:
            pytest.fail(f"{len(failed)} of {len(self.rows)} rows failed: {', '.join(failed)}", pytrace=False)
        skipped = [each for reports in self.reports.values() for each in reports if is_skipped(each)]
        if len(skipped) == len(self.rows):
            reasons = sorted({str(each.longrepr[2]) for each in skipped if isinstance(each.longrepr, tuple)})
            raise pytest.skip.Exception("; ".join(reasons).replace("Skipped: ", ""), _use_item_location=True)

    def label(self, row: pytest.Item) -> str:
        """Return what a row is called within the case: its parameters, or its own name."""
        name = row.nodeid.removeprefix(self.nodeid)
        return name[1:-1] if name.startswith("[") else name.partition("::")[2]

    def taken(self, row: pytest.Item, report: pytest.TestReport) -> pytest.TestReport:
        """Remember what became of a row; return its report as that of a subtest."""
        self.reports[row].append(report)
        fields = {name: value for name, value in vars(report).items() if name != "_id"}
        # A fixture that fails is an error, one that skips is a row that is skipped.
        fields |= {"nodeid": self.nodeid, "location": self.location}
        fields |= {"when": "call"} if report.skipped else {}
        return pytest.SubtestReport(**fields, context=SubtestContext(msg=self.label(row), kwargs={}))


def gather(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the items, with a table in place of the rows of each case that has several."""
    rows: dict[tuple[pytest.Collector, str], list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and (case := _case(item)):
            rows.setdefault(case, []).append(item)
    gathered: dict[pytest.Item, pytest.Item | None] = {}
    for (parent, name), each in rows.items():
        if len(each) > 1:
            gathered |= dict.fromkeys(each)
            gathered[each[0]] = Table.from_parent(parent, name=name, rows=each)
    return [item for item in (gathered.get(item, item) for item in items) if item is not None]


def _case(item: pytest.Function) -> tuple[pytest.Collector, str] | None:
    """Return the parent and the name of the case that an item is a row of, or None. Pure."""
    module = item.getparent(pytest.Module)
    if item.get_closest_marker("one_case") and module is not None:
        return module, item.path.stem.removeprefix("test_")
    callspec = getattr(item, "callspec", None)
    is_row = callspec is not None and set(callspec._arg2scope.values()) <= {Scope.Function}
    return (item.parent, item.originalname) if is_row else None
