"""The power-loss campaign in short form, and whether it would see a fault: its model, its recorder, its teeth."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign.powerloss.disk import WHOLE, Content, Disk, Part, whole
from tests.campaign.powerloss.losses import Model, states
from tests.campaign.powerloss.mutants import mutate, roles
from tests.campaign.powerloss.recording import memory_directory, reason_to_skip, record, recorder
from tests.campaign.powerloss.scenarios import SCENARIOS
from tests.campaign.powerloss.trace import PAGE, ROOT, Op, Trace, UnknownOperationError, build_trace, look_at

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "can be recorded"),
]


def test_short_form(short_form):
    short_form("powerloss", count=170)


# -- the recorder --------------------------------------------------------------------------------


def tree_of(root: int, entries, contents) -> dict[str, tuple[int, bytes | None]]:
    """Return path -> (which of the tree's nodes, bytes), so that hard links show."""
    found, numbers = {}, {}

    def walk(node: int, where: str) -> None:
        for name, child in sorted(entries.get(node, {}).items()):
            number = numbers.setdefault(child, len(numbers))
            found[where + name] = (number, None if child in entries else contents(child))
            walk(child, f"{where}{name}/")

    walk(root, "")
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_log_is_complete(name):
    """All operations, applied to the tree that was there, give the tree that the job really left."""
    recording = record(name)
    disk = Disk(recording.trace, whole(recording.trace.ops))
    replayed = tree_of(ROOT, disk.entries, lambda node: bytes(disk.content(node)))
    real = tree_of(recording.after.root, recording.after.entries, recording.after.contents.get)
    assert replayed == real
    assert any("step-" in path for path in real)


def recorded(script: str, where: Path) -> Trace:
    """Run a script, whose directory ``d`` is watched, and return what it did."""
    disk = where / "disk"
    disk.mkdir()
    start = f"import ctypes, os; d = {str(disk)!r}; c = ctypes.CDLL(None)"
    log = f"assert c.powerloss_start(d.encode(), {str(where / 'log')!r}.encode()) == 0"
    before = look_at(disk)
    environment = os.environ | {"LD_PRELOAD": str(recorder())}
    subprocess.run([sys.executable, "-c", f"{start}\n{log}\n{script}"], env=environment, check=True, timeout=300)
    return build_trace(before, (where / "log").read_bytes())


def test_the_recorder_sees_every_way_to_write():
    script = """
import shutil
fd = os.open(d + "/a", os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b"one"); os.writev(fd, [b"", b"two"]); os.pwritev(fd, [b"T"], 3); os.pwrite(fd, b"O", 0)
os.ftruncate(fd, 5); os.posix_fallocate(fd, 0, 9); os.fsync(fd); os.fdatasync(fd)
with open(d + "/a", "ab") as file: file.write(b"end")
with open(d + "/b", "w") as file: file.write("lost")
with open(d + "/b", "w") as file: file.write("text")
os.truncate(d + "/b", 3)
os.makedirs(d + "/c/e"); os.link(d + "/a", d + "/c/f")
os.rename(d + "/b", d + "/c/b"); os.replace(d + "/c/b", d + "/c/f")
shutil.rmtree(d + "/c"); os.mkdir(d + "/g")
"""
    with memory_directory() as where:
        trace = recorded(script, where)
        real = look_at(where / "disk")
    disk = Disk(trace, whole(trace.ops))
    assert {path: bytes(disk.content(node)) for path, node in disk.walk() if node not in disk.entries} == {
        "a": b"OneTw\0\0\0\0end"
    }
    assert tree_of(real.root, real.entries, real.contents.get).keys() == {path for path, _ in disk.walk()} == {"a", "g"}
    assert [op.kind for op in trace.ops].count("sync") == 2


@pytest.mark.parametrize("script", [
    "os.symlink('there', d + '/link')",
    "os.open(d + '/file', os.O_WRONLY | os.O_CREAT | os.O_DSYNC)",
    "import mmap; fd = os.open(d + '/f', os.O_RDWR | os.O_CREAT); os.truncate(fd, 9); mmap.mmap(fd, 9)",
    "os.sync()",
])  # fmt: skip
def test_what_the_model_does_not_know_is_refused(script):
    with memory_directory() as where, pytest.raises(UnknownOperationError):
        recorded(script, where)


# -- the model -----------------------------------------------------------------------------------


class Script:
    """A small trace made by hand: a directory ``d`` (node 1) and a file ``old`` (node 2) in the watched one."""

    def __init__(self, content: bytes = b"") -> None:
        self.trace = Trace({ROOT: {"d": 1, "old": 2}, 1: {}}, {2: content})

    def do(self, kind: str, node: int = -1, *slots: tuple[int, str], data: bytes = b"", **rest: int) -> Script:
        op = Op(len(self.trace.ops), kind, node, slots, nbytes=rest.pop("nbytes", len(data)), data=data, **rest)
        self.trace.ops.append(op)
        return self

    def trees(self, moment: int | None = None) -> set[str]:
        """Return what may be there, as names, and contents of files that have any."""
        found = set()
        for state in states(Model(self.trace), 200, "seed"):
            if moment is not None and moment not in state.moments:
                continue
            disk = Disk(self.trace, state.choice)
            shown = [(path, b"" if node in disk.entries else bytes(disk.content(node))) for path, node in disk.walk()]
            found.add(
                " ".join(f"{path}={data.decode('latin-1')}" if data else path for path, data in shown if path != "d")
            )
        return found


def test_a_synced_file_may_still_have_no_name():
    script = Script().do("create", 3, (ROOT, "new")).do("write", 3, data=b"x").do("sync", 3)
    assert script.do("mark").trees(4) == {"old", "new=x old"}
    assert script.do("sync", ROOT).do("mark").trees(6) == {"new=x old"}


def test_a_name_that_was_synced_may_have_no_bytes():
    script = Script().do("create", 3, (ROOT, "new")).do("write", 3, data=b"x").do("sync", ROOT)
    assert {"new old", "new=x old"} <= script.do("mark").trees(4)
    assert all("new" in tree for tree in script.trees(4))


def test_a_rename_is_whole_and_needs_its_directory():
    script = Script(b"1").do("rename", 2, (ROOT, "old"), (ROOT, "new")).do("mark")
    assert script.trees() == {"old=1", "new=1"}
    assert script.do("sync", 2).do("mark").trees(4) == {"old=1", "new=1"}  # a file's sync is none of its name
    assert script.do("sync", ROOT).do("mark").trees(6) == {"new=1"}


def test_a_rename_between_directories_needs_both():
    script = Script(b"1").do("rename", 2, (ROOT, "old"), (1, "new"))
    assert script.do("sync", 1).do("mark").trees(3) == {"old=1", "d/new=1"}
    assert script.do("sync", ROOT).do("mark").trees(5) == {"d/new=1"}


def test_an_exchange_is_whole():
    script = Script(b"1").do("create", 3, (ROOT, "new")).do("sync", ROOT).do("write", 3, data=b"2").do("sync", 3)
    script.do("exchange", 3, (ROOT, "new"), (ROOT, "old")).do("mark")
    assert script.trees(6) == {"new=2 old=1", "new=1 old=2"}


def test_names_are_lost_in_any_order_but_one_name_in_its_own():
    script = Script(b"1").do("unlink", 2, (ROOT, "old")).do("create", 3, (ROOT, "a")).do("create", 4, (ROOT, "old"))
    assert script.do("mark").trees(4) == {"old=1", "a old=1", "", "a", "old", "a old"}


def test_links_are_names_of_their_own():
    script = Script(b"1").do("link", 2, (1, "new")).do("unlink", 2, (ROOT, "old")).do("sync", ROOT).do("mark")
    assert script.trees(4) == {"", "d/new=1"}  # synced gone here, not synced there: nothing keeps it


def test_pages_are_lost_in_any_subset():
    new = b"".join(letter * PAGE for letter in (b"a", b"b", b"c"))
    script = Script(b"." * 3 * PAGE).do("write", 2, data=new).do("mark")
    ours = {tree.partition("=")[2][::PAGE] for tree in script.trees() if len(set(tree)) < 12}
    assert {"...", "a..", ".b.", "..c", "ab.", "a.c", ".bc", "abc"} <= ours
    assert script.do("sync", 2).do("mark").trees(4) == {f"d old={new.decode()}".removeprefix("d ")}


def test_a_size_may_come_without_bytes_and_with_those_of_others():
    op = Op(0, "write", 2, nbytes=2 * PAGE, data=b"x" * 2 * PAGE)
    for part, wanted in [
        (Part(frozenset()), b""),
        (Part(frozenset(), grows=True), bytes(2 * PAGE)),
        (Part(frozenset(), b"ab", grows=True), b"ab" * PAGE),
        (Part(frozenset({0})), b"x" * PAGE),
        (Part(frozenset({1})), bytes(PAGE) + b"x" * PAGE),
        (Part(frozenset({0}), sector=512), b"x" * 512 + bytes(PAGE - 512)),
        (WHOLE, b"x" * 2 * PAGE),
    ]:
        content = Content()
        content.put(op, part)
        assert bytes(content) == wanted, part


def test_bytes_at_odd_places_leave_their_neighbours():
    content = Content(b"." * 10)
    content.put(Op(0, "write", nbytes=3, offset=4, data=b"abc"), WHOLE)
    content.put(Op(0, "write", nbytes=2 * PAGE, offset=PAGE - 1, data=b"y" * 2 * PAGE), Part(frozenset({0, 2})))
    assert bytes(content) == b"....abc..." + bytes(PAGE - 11) + b"y" + bytes(PAGE) + b"y" * (PAGE - 1)
    content.resize(5)
    content.resize(8)
    assert bytes(content) == b"....a\0\0\0"


# -- its teeth -----------------------------------------------------------------------------------

NEEDED = [
    ("first", ("parent of the run directory",)),
    ("retention", ("data file",)),
    ("retention", ("data directory",)),
    ("retention", ("manifest",)),
    ("retention", ("staging directory",)),
    ("retention", ("run directory, step published",)),
    ("retention", ("run directory, step retired",)),
    ("aside", ("run directory, steps moved aside",)),
    ("incremental", ("frozen file",)),
    ("unsynced", ("run directory, step retired",)),
    ("pinned", (".pins",)),
    ("pinned", ("run directory, nothing renamed",)),
    # Each of these makes up for the other.
    ("retention", ("retired directory, manifest gone", "data file, header made invalid")),
    ("overwrite", ("run directory, step exchanged", "run directory, step retired")),
    ("without-exchange", ("run directory, names given back", "run directory, step retired")),
]
"""A scenario, and syncs without which it loses something."""


@pytest.mark.parametrize(("name", "dropped"), NEEDED, ids=lambda value: value if isinstance(value, str) else value[0])
def test_an_engine_without_a_sync_is_found_out(name, dropped):
    with memory_directory() as scratch:
        mutant = mutate(record(name), dropped, 1, scratch)
    assert mutant.n_broken, f"{mutant.n_states} states without a sync of {dropped}, and no promise broken"


def test_every_sync_that_jobs_make_has_been_left_out():
    """A sync that is new needs a line above, or a reason here."""
    known = {role for _, dropped in NEEDED for role in dropped}
    known.add("staging directory, manifest gone")  # of a step that was replaced: swept if it is there again
    known.add("pin")  # an empty one holds too, whatever save is there
    known.add("run directory, files used again")  # what was published and retired before was synced before
    found = {role for name in SCENARIOS for role in roles(record(name)).values()}
    assert found <= known, found - known
