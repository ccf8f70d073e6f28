"""Storage plugins in C and C++ keep the promises of every backend."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import hpcckpt as hc
from hpcckpt import errors, native
from hpcckpt.backends.base import ReadRequest
from hpcckpt.backends.plugin import backend
from hpcckpt.backends.plugin.fetching import plan_fetches
from hpcckpt.cli import main as cli
from hpcckpt.core.plan import StoredEntry, WriteItem
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.format import layout
from hpcckpt.format.manifest import encode
from hpcckpt.native import plugins
from hpcckpt.restoring.reader import open_step
from hpcckpt.rundir import discovery
from hpcckpt.testing.backends import BackendSuite
from tests.support.paths import TESTS

FAULTY = TESTS / "unit" / "native" / "plugins" / "faulty.cpp"
pytestmark = [
    pytest.mark.stack_b,
    pytest.mark.skipif("posix" not in plugins.available(), reason="the samples are not built"),
]


class TestPosix(BackendSuite):
    backend = "plugin:posix"
    counts = (3,)

    def damage(self, step: Path, name: str) -> None:
        """Change a byte in the middle of rank 0's file, where the large tensor is."""
        with (step / "data" / "rank-00000.posix").open("r+b") as file:
            file.seek(file.seek(0, 2) // 2)
            (byte,) = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte ^ 0x10]))


# -- a plugin that stores elsewhere, and does what it is told to do wrong -----------------------------


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compile and load the plugin; return the backend's name."""
    if "faulty" not in plugins.loaded():
        compiler = shutil.which("c++") or pytest.skip("needs a compiler")
        library = tmp_path_factory.mktemp("faulty") / "libfaulty.so"
        flags = ["-std=c++17", "-shared", "-fPIC", f"-I{Path(native.__file__).parent / 'include'}"]
        subprocess.run([compiler, *flags, str(FAULTY), "-o", str(library)], check=True)
        plugins.load(library)
    return "plugin:faulty"


def opened(run: Path, comm: Any, config: Any = "", **options: Any) -> hc.Checkpointer:
    return hc.Checkpointer(run, comm=comm, backend="plugin:faulty", backend_options={"config": config}, **options)


def states(step: int) -> dict[str, Any]:
    return {"x": np.full((500, 700), step, np.float32), "y": np.arange(9) * step, "own": hc.PerRank(np.full(3, step))}


def blank() -> dict[str, Any]:
    return {"x": np.zeros((500, 700), np.float32), "y": np.zeros(9, int), "own": hc.PerRank(np.zeros(3, int))}


@pytest.mark.counts(1, 2, 3)
@pytest.mark.threads
@pytest.mark.usefixtures("faulty")
class TestElsewhere:
    """What is in memory only: a separate process on each rank could not read the others'."""

    def test_a_plugin_that_leaves_no_file_saves_and_restores_on_other_ranks(self, ranks: Any, run_dir: Path) -> None:
        def save(comm: Any) -> None:
            with opened(run_dir, comm) as ckpt:
                ckpt.save(1, states(1)).result()

        def restore(comm: Any) -> None:
            target = {key: value for key, value in blank().items() if key != "own"}
            with opened(run_dir, comm) as ckpt:
                ckpt.restore(target, strict=False)
            assert (target["x"] == 1).all()
            assert target["y"].tolist() == list(range(9))

        ranks(save)
        ranks.sub(2, restore)
        step = run_dir / "step-0000000001"
        assert sorted(os.listdir(step / "data")) == [f"rank-{rank:05d}.entries.json" for rank in range(ranks.size)]
        assert open_step(step).verify() == []

    @pytest.mark.parametrize(
        ("how", "error", "text"),
        [
            ("fail", errors.BackendError, "faulty.Save failed (code 7): the disk is tired"),
            ("throw", errors.BackendError, "faulty.Save failed (code -1): the network is away"),
            ("throw_int", errors.BackendError, "faulty.Save failed (code -2)"),
            ("silent", errors.BackendError, "faulty.Save failed (code 9): it gave no reason"),
            ("no_space", errors.NoSpaceError, "faulty.Save failed (code -3): write: No space left on device"),
        ],
    )
    def test_a_save_that_fails_on_one_rank_says_so_on_every_rank(
        self, ranks: Any, run_dir: Path, how: str, error: type[Exception], text: str
    ) -> None:
        bad = ranks.size - 1

        def body(comm: Any) -> str:
            with opened(run_dir, comm) as ckpt:
                ckpt.save(1, states(1)).result()
            with opened(run_dir, comm, f"save={how},rank={bad}") as ckpt:
                with pytest.raises(error) as caught:
                    ckpt.save(2, states(2)).result()
                assert ckpt.latest_step() == 1
            return str(caught.value)

        texts = ranks(body)
        assert texts == [texts[0]] * ranks.size
        assert text in texts[0]
        assert f"[rank {bad}]" in texts[0]

    @pytest.mark.parametrize("how", ["throw", "throw_int", "bad_alloc"])
    def test_a_constructor_that_throws_says_so_on_every_rank(self, ranks: Any, run_dir: Path, how: str) -> None:
        def body(comm: Any) -> str:
            with pytest.raises(errors.BackendError, match=r"faulty\.Create failed \(code -[12]\)") as caught:
                opened(run_dir, comm, f"create={how}")
            return str(caught.value)

        texts = ranks(body)
        assert texts == [texts[0]] * ranks.size

    def test_a_plugin_that_is_missing_says_so_on_every_rank(self, ranks: Any, run_dir: Path) -> None:
        def body(comm: Any) -> str:
            with pytest.raises(errors.BackendNotFoundError, match=r"'nonesuch' not found; known: .*faulty") as caught:
                hc.Checkpointer(run_dir, comm=comm, backend="plugin:nonesuch")
            return str(caught.value)

        texts = ranks(body)
        assert texts == [texts[0]] * ranks.size

    @pytest.mark.parametrize("how", ["short", "wrong", "nothing", "lost"])
    def test_data_that_is_short_wrong_or_gone_is_named_on_every_rank(self, ranks: Any, run_dir: Path, how: str) -> None:
        def body(comm: Any) -> str:
            with opened(run_dir, comm) as ckpt:
                ckpt.save(1, states(1)).result()
            with opened(run_dir, comm, f"load={how}") as ckpt, pytest.raises(errors.CorruptError) as caught:
                ckpt.restore(blank(), step=1)
            return str(caught.value)

        texts = ranks(body)
        assert texts == [texts[0]] * ranks.size
        assert ("tensor 'x'" if how == "wrong" else "tensor '") in texts[0]
        assert ("it is gone" if how == "lost" else "checksum mismatch in what plugin:faulty loaded") in texts[0]

    def test_a_server_that_is_away_at_a_restore_is_no_damage(self, ranks: Any, run_dir: Path) -> None:
        def body(comm: Any) -> str:
            with opened(run_dir, comm) as ckpt:
                ckpt.save(1, states(1)).result()
            with opened(run_dir, comm, "load=fail") as ckpt:
                with pytest.raises(errors.BackendError, match=r"faulty\.Load failed \(code 8\)") as caught:
                    ckpt.restore(blank())
                assert ckpt.latest_step() == 1
            return str(caught.value)

        assert len(set(ranks(body))) == 1

    @pytest.mark.parametrize(
        ("left", "text"),
        [
            ("a name", "left 'a name', which a manifest cannot name"),
            (".hidden", "left '.hidden', which a manifest cannot name"),
            ("folder", "left something that is not a plain file"),
            ("link", "left something that is not a plain file"),
            ("rank-00000.entries.json", "left data/rank-00000.entries.json, a reserved name"),
        ],
    )
    def test_what_a_plugin_may_not_leave_is_refused_by_name(
        self, ranks: Any, run_dir: Path, left: str, text: str
    ) -> None:
        def body(comm: Any) -> str:
            with opened(run_dir, comm, f"leave={left}") as ckpt:
                with pytest.raises(errors.BackendError) as caught:
                    ckpt.save(1, states(1)).result()
                assert ckpt.all_steps() == []
            return str(caught.value)

        assert all(text in each for each in ranks(body))

    def test_files_that_a_plugin_leaves_belong_to_the_step(self, ranks: Any, run_dir: Path) -> None:
        def body(comm: Any) -> None:
            with opened(run_dir, comm, "leave=notes.txt") as ckpt:
                ckpt.save(1, states(1)).result()

        ranks(body)
        step = run_dir / "step-0000000001"
        listed = {record.path: record.nbytes for record in discovery.read_manifest(step).files}
        assert listed["data/notes.txt"] == len("left behind")
        (step / "data" / "notes.txt").unlink()
        with pytest.raises(errors.CorruptError, match=r"notes\.txt is missing"):
            hc.load(step)


def test_files_of_a_plugin_are_synced_unless_it_says_that_it_does_so(
    faulty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = native.fsync
    monkeypatch.setattr(native, "fsync", lambda fd, path="": (synced.append(Path(path).name), fsync(fd, path)))
    options = {"faulty": {"config": "leave=notes.txt"}, "posix": {}}
    for name, chosen in options.items():
        with hc.Checkpointer(tmp_path / name, backend=f"plugin:{name}", backend_options=chosen) as ckpt:
            ckpt.save(1, {"x": np.ones(3)}).result()
    assert "notes.txt" in synced
    assert "rank-00000.posix" not in synced
    assert synced.count("rank-00000.entries.json") == 2


def test_a_plugin_that_stores_nothing_is_refused_unless_that_is_meant(ranks: Any, run_dir: Path) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(errors.OptionError, match=r"does not store what it is given.*unrestorable"):
            hc.Checkpointer(run_dir, comm=comm, backend="plugin:null")
        options = {"unrestorable": True}
        with hc.Checkpointer(run_dir, comm=comm, backend="plugin:null", backend_options=options) as ckpt:
            ckpt.save(1, states(1)).result()
            with pytest.raises(errors.CorruptError, match="null stores nothing"):
                ckpt.restore(blank(), step=1)

    ranks(body)


def test_a_plugin_sees_the_programs_own_memory(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    state = {"x": np.zeros(1000), "y": np.zeros((20, 30), np.float32)}
    options = {"unrestorable": True, "config": "here"}
    with hc.Checkpointer(tmp_path, backend="plugin:dummy", backend_options=options, async_save=False) as ckpt:
        ckpt.save(1, state).result()
    out = capfd.readouterr().out
    assert "[DUMMY] Initialization, config: here\n[DUMMY] Saving 2 tensors:\n" in out
    for array in state.values():
        assert f"  data={array.ctypes.data:#x} size={array.nbytes}\n" in out


def test_a_plugin_must_be_named(run_dir: Path) -> None:
    with pytest.raises(errors.OptionError, match="plugin:NAME"):
        hc.Checkpointer(run_dir, backend="plugin")
    for bad in ("plugin:../evil", "plugin:a b", "plugin:/tmp/x.so"):
        with pytest.raises(errors.BackendNotFoundError, match="C identifier"):
            hc.Checkpointer(run_dir, backend=bad)


@pytest.mark.parametrize("bad", [{"config": 7}, {"unrestorable": "yes"}, {"colour": "red"}])
def test_options_that_cannot_be_are_refused_by_name(run_dir: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(errors.OptionError, match=next(iter(bad))):
        hc.Checkpointer(run_dir, backend="plugin:posix", backend_options=bad)


def test_a_config_may_be_a_mapping_or_stand_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"unrestorable": True}
    monkeypatch.setenv("HPCCKPT_PLUGIN_CONFIG_DUMMY", "from the environment")
    hc.Checkpointer(tmp_path, backend="plugin:dummy", backend_options=options).close()
    hc.Checkpointer(tmp_path, backend="plugin:dummy", backend_options={**options, "config": {"a": [1]}}).close()
    assert capfd.readouterr().out.splitlines() == [
        "[DUMMY] Initialization, config: from the environment",
        '[DUMMY] Initialization, config: {"a": [1]}',
    ]


def test_steps_that_share_a_directory_leave_each_other_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    options = {"config": f"directory={elsewhere}"}
    with hc.Checkpointer(tmp_path / "run", backend="plugin:posix", backend_options=options) as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"x": np.full(10, step)}).result()
        for step in (1, 2):
            state = {"x": np.zeros(10, int)}
            ckpt.restore(state, step)
            assert state["x"].tolist() == [step] * 10


def test_a_step_can_be_inspected_without_its_plugin_and_its_config_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with hc.Checkpointer(
        tmp_path / "run", backend="plugin:posix", backend_options={"config": f"directory={elsewhere}"}
    ) as ckpt:
        ckpt.save(1, {"x": np.arange(10)}).result()
    step = tmp_path / "run" / "step-0000000001"
    assert [name.partition("-")[2] for name in os.listdir(elsewhere)] == ["rank-00000.posix"]
    assert str(elsewhere) not in (step / "manifest.json").read_text(encoding="utf-8")
    with pytest.raises(errors.CorruptError, match=r"is missing.*HPCCKPT_PLUGIN_CONFIG_POSIX is not set"):
        hc.load(step)
    verify = ["verify", str(step.parent), "--all"]
    assert cli(verify) == 3
    assert not (step.parent / layout.DAMAGED).exists()  # without the config it is not known whether it is damaged
    monkeypatch.setenv("HPCCKPT_PLUGIN_CONFIG_POSIX", f"directory={elsewhere}")
    assert hc.load(step)["x"].tolist() == list(range(10))
    (data,) = elsewhere.iterdir()
    data.rename(tmp_path / data.name)
    assert cli(verify) == 3
    assert (step.parent / layout.DAMAGED).exists()
    (tmp_path / data.name).rename(data)
    assert cli(verify) == 0
    monkeypatch.setattr(plugins, "_by_name", {})
    monkeypatch.setattr(plugins, "search_path", list)
    reader = open_step(step)
    assert list(reader.specs) == ["x"]
    with pytest.raises(errors.BackendNotFoundError, match="'posix' not found"):
        reader.load("x")


def test_a_library_that_differs_on_one_rank_is_refused(
    ranks: Any, run_dir: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ranks.size == 1:
        pytest.skip("one rank agrees with itself")
    counter = itertools.count()
    monkeypatch.setattr(backend, "_fingerprint", lambda _: (os.getpid(), next(counter)))

    def body(comm: Any) -> None:
        with hc.Checkpointer(run_dir, comm=comm, backend="plugin:posix") as ckpt:
            with pytest.raises(errors.BackendConflictError, match="is another library on rank"):
                ckpt.save(1, states(1)).result()
            assert ckpt.all_steps() == []

    ranks(body)


def test_a_library_may_be_removed_while_a_program_uses_it(faulty: str, run_dir: Path) -> None:
    file = Path(plugins.find(faulty.partition(":")[2]).origin)
    backend._crc_of.cache_clear()
    with hc.Checkpointer(run_dir, backend=faulty) as ckpt:
        file.rename(file.with_name("removed"))
        try:
            assert ckpt.save(1, states(1)).result().step == 1
        finally:
            file.with_name("removed").rename(file)


# -- the sidecar -----------------------------------------------------------------------------------


@pytest.fixture
def step(tmp_path: Path) -> Path:
    with hc.Checkpointer(tmp_path / "run", backend="plugin:posix") as ckpt:
        return Path(ckpt.save(1, {"x": np.arange(300_000), "y": np.ones(3)}).result().path)


def test_a_sidecar_that_is_damaged_anywhere_is_refused(step: Path) -> None:
    path = step / "data" / "rank-00000.entries.json"
    good = path.read_bytes()
    for place in range(0, len(good), 7):
        bad = bytearray(good)
        bad[place] ^= 0x20
        path.write_bytes(bad)
        with pytest.raises(errors.CorruptError, match="is damaged"):
            open_step(step)


def forge(step: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a sidecar, and have its checksum and the manifest agree with the change."""
    path = step / "data" / "rank-00000.entries.json"
    document = json.loads(path.read_bytes())
    change(document)
    text = json.dumps({**document, "crc32c": "00000000"}, separators=(",", ":")).encode()
    crc = native.crc32c(text)
    path.write_bytes(text[:11] + b"%08x" % crc + text[19:])
    manifest = discovery.read_manifest(step)
    files = [
        replace(file, nbytes=len(text), header_crc=crc) if file.path.endswith(".json") else file
        for file in manifest.files
    ]
    (step / "manifest.json").write_bytes(encode(replace(manifest, files=tuple(files)), native.crc32c))


FORGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another save": (lambda d: d.update(save_id="0" * 32), "save_id"),
    "another rank": (lambda d: d.update(rank=1), "rank"),
    "no entries": (lambda d: d.update(entries=None), "entries"),
    "odd entry": (lambda d: d["entries"].append(7), "must be an object"),
    "climbing name": (lambda d: d["entries"][0].update(tensor="../x"), "not allowed"),
    "huge span": (lambda d: d["entries"][0].update(span=[0, 1 << 50]), "span"),
    "few checksums": (lambda d: d["entries"][0].update(crc32c=""), "number of checksums"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_sidecar_that_says_what_cannot_be_is_refused(step: Path, case: str) -> None:
    change, text = FORGED[case]
    forge(step, change)
    with pytest.raises(errors.CorruptError, match=text):
        open_step(step)


def test_a_tensor_that_is_said_to_be_larger_than_any_memory_is_told_of(step: Path) -> None:
    """No file bounds it, for a plugin may store elsewhere: 256 tebibytes, with a checksum for each gibibyte."""
    n, n_blocks = 1 << 45, 1 << 18
    sizes = {"global_shape": [n], "shape": [n], "span": [0, n], "crc32c": "00000000" * n_blocks}
    forge(step, lambda document: document["entries"][0].update(sizes))
    manifest = discovery.read_manifest(step)
    tensors = tuple(replace(spec, shape=(n,)) if spec.name == "x" else spec for spec in manifest.tensors)
    changed = replace(manifest, tensors=tensors, block_bytes=1 << 30)
    (step / "manifest.json").write_bytes(encode(changed, native.crc32c))
    with pytest.raises(errors.HostMemoryError, match="does not fit into memory"):
        hc.load(step, "x")


# -- which bytes a plugin is asked for ---------------------------------------------------------------


@pytest.mark.parametrize("is_partial", [True, False])
@given(data=st.data())
def test_every_wanted_byte_is_fetched_once_in_whole_blocks(is_partial: bool, data: st.DataObject) -> None:
    block = data.draw(st.sampled_from([16, 24, 64]))
    dtype, size = data.draw(st.sampled_from([("uint8", 1), ("float64", 8), ("<U5", 20)]))
    count = data.draw(st.integers(1, 40))
    stored = np.random.default_rng(1).integers(0, 255, count * size, np.uint8)
    item = WriteItem(TensorSpec("x", dtype, (count,)), Extent.whole((count,)), 0, count)
    entry = StoredEntry(item, 0, "data/rank-00000.entries.json", 0, ())
    spans = data.draw(st.lists(st.tuples(st.integers(0, stored.size), st.integers(0, stored.size)), max_size=4))
    requests = [ReadRequest(entry, min(a, b), max(a, b), np.zeros(abs(a - b), np.uint8)) for a, b in spans]
    for fetch in plan_fetches(requests, block, is_partial=is_partial):
        assert fetch.start % block == fetch.start % size == fetch.nbytes % size == 0
        assert fetch.stop % block == 0 or fetch.stop == entry.nbytes
        assert is_partial or (fetch.start, fetch.stop) == (0, entry.nbytes)
        memory = fetch.memory()
        memory[:] = stored[fetch.start : fetch.stop]
        fetch.deliver(memory)
    for request in requests:
        assert np.array_equal(request.into, stored[request.start : request.stop])
