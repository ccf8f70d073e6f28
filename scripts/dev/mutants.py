"""Generated mutants of the engine, the same in two trees: what tests catch in the old one, they catch in the new one.

    mutants.py OLD NEW --list                       # the candidates per package, and the mutants that are chosen
    mutants.py OLD NEW --count 150 --out FILE       # run them; again with the same FILE: the rest of them
    mutants.py OLD NEW --from 90 --out FILE         # without the first 90, which ran elsewhere
    mutants.py OLD NEW --summary --out FILE         # what has been found

OLD and NEW are checkouts with environments, used for nothing else meanwhile: files in ``hpcckpt`` are changed and put
back.  A mutant changes one statement that is in functions of both trees, up to the names of modules, owners and
`RENAMED`.  The tests of its package (`TESTS`) run in OLD and, if they caught it (or with ``--both``), in NEW.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("saving", "restoring", "rundir", "tiers", "backends")
RENAMED = {
    "abandon": "abort", "alike": "signature", "answer": "outcome", "Answer": "SaveOutcome", "complaint": "problem",
    "conclude": "reduce", "design": "file_layout", "Fitted": "Resolved", "fitted": "resolved", "give_name": "commit",
    "Held": "Snapshot", "InFile": "LinkSource", "landed": "written", "let_go": "release",
    "look_ahead": "check_conflicts", "Matter": "CollectiveTask", "next_ticket": "next_slot", "Open": "DynamicPart",
    "regain": "reacquire", "tenure": "lock_token", "there": "existing", "Ticket": "StagingSlot", "ticket": "slot",
    "tickets": "slots", "tiers": "scratch_tier", "told": "reported", "unasked": "ignored", "Underway": "InFlightSave",
    "underway": "in_flight", "way": "conflicts", "Way": "Conflicts",
}  # fmt: skip
"""Identifiers of the old tree -> of the new one."""
OWNERS = frozenset({"cls", "queue", "run", "rundir", "self", "session", "staged", "this", "save"})
"""Names of the objects that own the state: as arguments they are left out, for functions became methods."""
LOGGING = frozenset({"debug", "info", "log", "warn", "warning"})
_PAIRS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)]
SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
TESTS: dict[str, tuple[str, ...]] = {
    "saving": (
        "unit/checkpointer/test_steps.py", "unit/saving/test_ranks_differ.py", "unit/checkpointer/test_round_trip.py",
        "faults/test_storage.py", "unit/rundir/test_recycling.py", "unit/tiers/test_tiers_nodes.py",
        "unit/saving/test_async.py", "faults/test_faults.py",
    ),
    "restoring": (
        "unit/restoring/test_loading.py", "unit/restoring/test_mismatch.py", "unit/checkpointer/test_round_trip.py",
        "unit/restoring/test_fallback.py", "unit/restoring/test_none_restorable.py", "unit/state/test_statedicts.py",
        "unit/restoring/test_scalars.py", "unit/restoring/test_reading.py", "unit/restoring/test_elastic.py",
    ),
    "rundir": (
        "unit/checkpointer/test_steps.py", "unit/rundir/test_workspace.py", "unit/rundir/test_links.py",
        "unit/rundir/test_retention.py", "faults/test_storage.py", "unit/rundir/test_journal.py",
        "unit/rundir/test_pins.py", "unit/rundir/test_collisions.py", "unit/restoring/test_none_restorable.py",
        "faults/test_lost_answers.py", "unit/rundir/test_damage_records.py", "unit/rundir/test_lock.py",
        "unit/restoring/test_reading.py",
    ),
    "tiers": (
        "unit/tiers/test_tiers.py", "faults/test_tiers_again.py", "unit/tiers/test_copying.py",
        "unit/tiers/test_tiers_nodes.py", "unit/tiers/test_tiers_owner.py", "unit/tiers/test_tiers_races.py",
        "unit/rundir/test_side_directories.py", "cli/test_copy.py", "faults/test_exit.py",
    ),
    "backends": (
        "unit/backends/test_safetensors.py", "unit/backends/test_known_headers.py", "unit/backends/test_backends.py",
        "unit/checkpointer/test_round_trip.py", "faults/test_storage.py", "faults/test_repair.py",
        "unit/rundir/test_recycling.py", "unit/backends/test_hdf5_files.py", "unit/backends/test_rankfile_format.py",
        "conformance/test_plugin_backend.py", "format/test_hdf5_hostile.py", "conformance/test_hdf5_suite.py",
    ),
}  # fmt: skip
"""The tests of each package, below ``tests/``: those that use most of it in the least time, the fastest first."""
OLD_DIRECTORIES = ("promises", "unit")
"""Where a tree of before the layout of tests by package has them, below ``tests/``, under the same names."""
MAX_PER_FUNCTION = 4
UNMUTATED_S = 900.0
"""Seconds for the tests without a mutant, which may be those of a mutant that hangs."""
FAILED = re.compile(r"(?:FAILED|ERROR) tests/(.+?)(?: - |$)")
"""A line of pytest's summary, with the test that failed."""


@dataclass(frozen=True)
class Site:
    """A place in a tree that can be mutated: the text at a position of a file, and what replaces it."""

    file: str
    line: int
    begin: int
    end: int
    text: str
    mutated: str

    def apply(self, tree: Path) -> bytes:
        """Replace the text, and return the file as it was."""
        path = tree / self.file
        before = path.read_bytes()
        if before[self.begin : self.end] != self.text.encode():
            raise AssertionError(f"{path}:{self.line} does not have {self.text!r}")
        path.write_bytes(before[: self.begin] + self.mutated.encode() + before[self.end :])
        compile(path.read_bytes(), str(path), "exec")
        return before


@dataclass(frozen=True)
class Mutant:
    """One mutation in two trees."""

    key: str
    package: str
    function: str
    operator: str
    old: Site
    new: Site


# -- statements and their mutations ----------------------------------------------------------------


class _Normal(ast.NodeTransformer):
    """Leaves of names what both trees have: the last part, in the new words, without the owner of the state."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        name = _renamed(node.attr)
        base = node.value
        while isinstance(base, ast.Attribute):
            base = base.value
        if isinstance(base, ast.Name):
            return ast.Name(name)
        return ast.Attribute(self.visit(node.value), name)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(_renamed(node.id))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = [arg for arg in node.args if not (isinstance(arg, ast.Name) and arg.id in OWNERS)]
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        return ast.keyword(_renamed(node.arg) if node.arg else None, self.visit(node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return self.generic_visit(ast.Assign([node.target], node.value or ast.Constant(None)))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:  # noqa: ARG002
        return ast.Constant("text")

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        is_message = isinstance(node.value, str) and " " in node.value
        return ast.Constant("text") if is_message else ast.Constant(node.value)


def _renamed(name: str) -> str:
    return RENAMED.get(name.lstrip("_"), name.lstrip("_"))


def _head(statement: ast.stmt) -> list[ast.AST]:
    """Return what of a statement is compared and mutated: all of it, or the head of one that has a body."""
    if isinstance(statement, ast.If | ast.While):
        return [statement.test]
    if isinstance(statement, ast.For):
        return [statement.target, statement.iter]
    if isinstance(statement, ast.With):
        return [item.context_expr for item in statement.items]
    is_simple = isinstance(
        statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete | ast.Expr | ast.Raise | ast.Return
    )
    return [statement] if is_simple else []


def _normal(statement: ast.stmt) -> str:
    parts = [ast.dump(_Normal().visit(copy.deepcopy(part)), annotate_fields=False) for part in _head(statement)]
    return f"{type(statement).__name__} {' '.join(parts)}".replace("Store()", "").replace("Load()", "")


def _mutations(statement: ast.stmt) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yield operator, node and what replaces it, in the order of the source."""
    if isinstance(statement, ast.If | ast.While):
        yield "negate", statement.test, ast.UnaryOp(ast.Not(), statement.test)
    if isinstance(statement, ast.Raise):
        yield "no raise", statement, ast.Pass()
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name = ast.unparse(statement.value.func).rpartition(".")[2]
        if name not in LOGGING:
            yield "no call", statement, ast.Pass()
    if isinstance(statement, ast.Assign | ast.Expr):
        yield "return", statement, ast.Return()
    for part in _head(statement):
        for node in _nodes(part):
            yield from _expression_mutations(node)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below it, but none in f-strings, where Python 3.11 has no positions."""
    yield node
    for below in () if isinstance(node, ast.JoinedStr) else ast.iter_child_nodes(node):
        yield from _nodes(below)


def _expression_mutations(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        swapped = SWAPPED.get(type(node.ops[0]))  # in: the comparison is negated
        changed = ast.Compare(node.left, [swapped()], node.comparators) if swapped else ast.UnaryOp(ast.Not(), node)
        yield "compare", node, changed
    elif isinstance(node, ast.BoolOp):
        yield "and or", node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "negate", node, node.operand
    elif isinstance(node, ast.IfExp):
        yield "negate", node, ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", node, ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "constant", node, ast.Constant(node.value + 1)


def _statements(body: list[ast.stmt], function: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Yield the statements that are in functions, with the name of the innermost one."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _statements(statement.body, statement.name)
            continue
        if function and not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            yield function, statement
        below = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        below += [handler.body for handler in getattr(statement, "handlers", [])]
        for each in below:
            yield from _statements(each, function)


def _sites(tree: Path, files: list[str]) -> dict[str, list[tuple[str, list[tuple[str, Site]]]]]:
    """Return the statements of files by their normal form: function, and operators with sites."""
    found = defaultdict(list)
    for file in files:
        source = (tree / file).read_bytes()
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))

        def site(node: Any, mutated: ast.AST, file: str = file, source: bytes = source, starts: Any = starts) -> Site:
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            text = ast.unparse(ast.fix_missing_locations(mutated))
            text = f"({text})" if isinstance(mutated, ast.expr) else text
            return Site(file, node.lineno, begin, end, source[begin:end].decode(), text)

        for function, statement in _statements(ast.parse(source).body):
            if _head(statement):
                sites = [(operator, site(node, to)) for operator, node, to in _mutations(statement)]
                found[_normal(statement)].append((function, sites))
    return found


def mutants(old: Path, new: Path) -> list[Mutant]:
    """Return all mutants of the packages whose statement is in both trees, once in each, or once in such a function."""
    files = {
        tree: sorted(str(path.relative_to(tree)) for path in (tree / "hpcckpt").rglob("*.py")) for tree in (old, new)
    }
    before = _sites(old, files[old])
    found = []
    for package in PACKAGES:
        after = _sites(new, [file for file in files[new] if file.startswith(f"hpcckpt/{package}/")])
        for normal, rows in after.items():
            for function, sites in rows:
                theirs = [row for row in before.get(normal, ()) if _renamed(row[0]) == _renamed(function)]
                ours = [row for row in rows if _renamed(row[0]) == _renamed(function)]
                if not theirs and len(rows) == 1:
                    theirs = before.get(normal, [])
                if len(theirs) != 1 or len(ours) != 1 or len(theirs[0][1]) != len(sites):
                    continue
                for number, ((operator, first), (other, second)) in enumerate(zip(theirs[0][1], sites, strict=True)):
                    if operator == other:
                        key = hashlib.sha256(f"{package} {function} {normal} {number}".encode()).hexdigest()[:12]
                        found.append(Mutant(key, package, function, operator, first, second))
    return found


def chosen(found: list[Mutant], seed: int, count: int) -> list[Mutant]:
    """Return `count` mutants: packages and operators in turn, at most one of a statement and four of a function."""
    rng = random.Random(seed)
    left = sorted(found, key=lambda mutant: mutant.key)
    rng.shuffle(left)
    taken: list[Mutant] = []
    lines: set[tuple[str, int]] = set()
    per_function: Counter[tuple[str, str]] = Counter()
    n_operator: Counter[tuple[str, str]] = Counter()
    packages = list(PACKAGES)
    while packages and len(taken) < count:
        package = packages.pop(0)
        free = [
            each
            for each in left
            if each.package == package
            and (each.new.file, each.new.line) not in lines
            and per_function[each.new.file, each.function] < MAX_PER_FUNCTION
        ]
        if not free:
            continue
        best = min(free, key=lambda each: n_operator[package, each.operator])  # the first of those: they are shuffled
        taken.append(best)
        lines.add((best.new.file, best.new.line))
        per_function[best.new.file, best.function] += 1
        n_operator[package, best.operator] += 1
        packages.append(package)
    return taken


# -- running ---------------------------------------------------------------------------------------


def test_in(tree: Path, test: str) -> str | None:
    """Return the name of a test in a tree, below ``tests/``, or None; `test` may have the path of the other tree."""
    path, *case = test.split("::", 1)
    name = Path(path).name
    known = (each for tests in TESTS.values() for each in tests if Path(each).name == name)
    for each in (path, *known, *(f"{directory}/{name}" for directory in OLD_DIRECTORIES)):
        if (tree / "tests" / each).is_file():
            return "::".join([each, *case])
    return None


def run_tests(tree: Path, tests: tuple[str, ...], limit_s: float, *, or_none: bool = False) -> dict[str, Any]:
    """Run tests in a tree until one fails; return how that ended, and the seconds; `or_none`: there may be none."""
    tests = tuple(test for test in (test_in(tree, each) for each in tests) if test)
    command = ["nice", "scripts/dev/in-venv.sh", "python", "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, "-m", "not slow", *(f"tests/{test}" for test in tests)],
        cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit_s)
        code, by = (
            process.returncode,
            [line for line in output.splitlines() if re.match(r"(FAILED|ERROR) tests/", line)],
        )
    except subprocess.TimeoutExpired:
        output, code, by = "", 1, [f"ended after {limit_s:.0f} s"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if code in {4, 5} and or_none:
        return {"result": "not run"}
    if code in {4, 5}:
        raise SystemExit(f"{tree}: pytest cannot run {tests}:\n{output[-2000:]}")
    seconds = round(time.monotonic() - began, 1)
    result = "caught" if code else "survived"
    return {"result": result, "by": by[0] if by else output[-200:] if code else "", "seconds": seconds}


def run_same_test(tree: Path, by: str, limit_s: float) -> dict[str, Any]:
    """Run the test that caught the mutant in the other tree, if it is in this one by the same name."""
    failed = FAILED.match(by)
    if failed is None or test_in(tree, failed[1]) is None:
        return {"result": "not run"}
    return run_tests(tree, (failed[1],), limit_s, or_none=True)


@functools.cache
def require_pass(tree: Path, tests: tuple[str, ...], limit_s: float) -> None:
    """End the program if the tests that caught a mutant fail without it too; each is run once."""
    found = run_tests(tree, tests, limit_s)
    if found["result"] == "caught":
        raise SystemExit(f"{tree}: without a mutant the tests fail too: {found['by']}")


def run_mutant(mutant: Mutant, old: Path, new: Path, limit_s: float, *, both: bool) -> dict[str, Any]:
    """Run the tests on a mutant in both trees; each file is put back as it was, with its time."""
    row: dict[str, Any] = {"key": mutant.key, "package": mutant.package, "operator": mutant.operator}
    row["commits"] = commits(old, new)
    for name, tree, site in (("old", old, mutant.old), ("new", new, mutant.new)):
        if name == "new" and row["old"]["result"] == "survived" and not both:
            row["new"] = {"result": "not run"}
            break
        status = (tree / site.file).stat()
        before = site.apply(tree)
        try:
            result = run_same_test(tree, row.get("old", {}).get("by", ""), limit_s)
            if result["result"] != "caught":
                result = run_tests(tree, TESTS[mutant.package], limit_s)
        finally:
            (tree / site.file).write_bytes(before)
            os.utime(tree / site.file, ns=(status.st_atime_ns, status.st_mtime_ns))
        if result["result"] == "caught":
            failed = FAILED.match(result["by"])
            require_pass(tree, (failed[1],) if failed else TESTS[mutant.package], max(limit_s, UNMUTATED_S))
        where = {"at": f"{site.file}:{site.line}", "text": site.text, "mutated": site.mutated}
        row[name] = where | result
    return row


def rows_in(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of results, none if there is no file."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def summary(rows: list[dict[str, Any]]) -> str:
    """Return what was found: how many were caught in each tree, by package, and which only before."""
    text = []
    for package in PACKAGES:
        counts = Counter((row["old"]["result"], row["new"]["result"]) for row in rows if row["package"] == package)
        text.append(f"{package:10} {', '.join(f'{a} -> {b}: {n}' for (a, b), n in sorted(counts.items()))}")
    lost = [row for row in rows if row["old"]["result"] == "caught" and row["new"]["result"] == "survived"]
    text += [f"LOST {row['key']} {row['operator']}: {row['new']['at']} {row['new']['text']!r}" for row in lost]
    return "\n".join([*text, f"{len(rows)} mutants, {len(lost)} caught before and not after"])


def git(tree: Path, *words: str) -> str:
    """Return what git prints in a tree."""
    return subprocess.run(["git", *words], cwd=tree, capture_output=True, text=True, check=True).stdout.strip()


def commits(old: Path, new: Path) -> str:
    """Return the commits of the two trees."""
    return " ".join(git(tree, "rev-parse", "--short", "HEAD") for tree in (old, new))


def require_clean(tree: Path) -> None:
    """End the program if files of the package differ from the commit: a mutant may be left there."""
    if git(tree, "status", "--porcelain", "hpcckpt"):
        raise SystemExit(f"{tree} has changes in hpcckpt (a mutant that was not put back?): git checkout -- hpcckpt")


def main() -> int:
    """Choose mutants, and run those that have no result yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--from", dest="start", type=int, default=0, metavar="N", help="leave out the first N of them")
    parser.add_argument("--out", type=Path, default=Path("build/mutants.jsonl"))
    parser.add_argument("--limit", type=float, default=300, help="seconds for the tests of one mutant in one tree")
    parser.add_argument("--both", action="store_true", help="run in NEW too what survives in OLD")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    parser.add_argument("--summary", action="store_true", help="print the results, and run nothing")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a mutant is put back
    old, new = args.old.resolve(), args.new.resolve()
    if args.summary:
        print(summary(rows_in(args.out)))
        return 0
    require_clean(old)
    require_clean(new)
    found = mutants(old, new)
    wanted = chosen(found, args.seed, args.count)[args.start :]
    if args.list:
        for mutant in wanted:
            print(f"{mutant.key} {mutant.operator:9} {mutant.new.file}:{mutant.new.line}: {mutant.new.text!r}"
                  f" -> {mutant.new.mutated!r}  (was {mutant.old.file}:{mutant.old.line})")  # fmt: skip
        print(f"candidates: {dict(Counter(mutant.package for mutant in found))}; chosen: {len(wanted)}")
        return 0
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done = {row["key"] for row in rows_in(args.out)}
    if {row["commits"] for row in rows_in(args.out)} - {commits(old, new)}:
        raise SystemExit(f"{args.out} has results of other commits: another --out begins again")
    for mutant in wanted:
        if mutant.key in done:
            continue
        row = run_mutant(mutant, old, new, args.limit, both=args.both)
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row["key"], mutant.package, mutant.new.file, row["old"], row["new"], flush=True)
    rows = [row for row in rows_in(args.out) if row["key"] in {mutant.key for mutant in wanted}]
    print(summary(rows))
    return int(any(row["old"]["result"] == "caught" and row["new"]["result"] == "survived" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
