"""The samples: null takes everything, dummy prints TMCI's lines, posix stores and gives back."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hpcckpt.errors import BackendError, CorruptError
from hpcckpt.native import plugins
from hpcckpt.native.plugins import PluginContext, PluginTensor

pytestmark = [
    pytest.mark.one_case,
    pytest.mark.usefixtures("no_plugins"),
    pytest.mark.skipif("posix" not in plugins.available(), reason="the samples are not built"),
]


def tensor_of(array: np.ndarray, name: str, **extra: object) -> PluginTensor:
    return PluginTensor(name, array.dtype.name, array.shape, array.ctypes.data, array.nbytes, owner=array, **extra)


def test_null_takes_everything_and_says_that_it_has_nothing() -> None:
    backend = plugins.find("null")
    assert "stores" not in backend.features
    with backend.create("whatever") as instance:
        instance.save(PluginContext(), [tensor_of(np.ones(5), "x")])
        with pytest.raises(CorruptError, match=r"null\.Load failed \(code -4\): null stores nothing"):
            instance.load(PluginContext(), [tensor_of(np.ones(5), "x")])


def test_dummy_prints_the_lines_that_tmcis_does(capfd: pytest.CaptureFixture[str]) -> None:
    arrays = [np.zeros((3, 4), np.float32), np.zeros(7)]
    tensors = [tensor_of(array, f"x{number}") for number, array in enumerate(arrays)]
    with plugins.find("dummy").create('{"some": "config"}') as instance:
        instance.save(PluginContext(), tensors)
        instance.load(PluginContext(), tensors)
    lines = [f"  data={arrays[0].ctypes.data:#x} size=48", f"  data={arrays[1].ctypes.data:#x} size=56"]
    assert capfd.readouterr().out.splitlines() == [
        '[DUMMY] Initialization, config: {"some": "config"}',
        "[DUMMY] Saving 2 tensors:", *lines,
        "[DUMMY] Loading 2 tensors:", *lines,
    ]  # fmt: skip


# -- posix -----------------------------------------------------------------------------------------

DTYPES = ["float32", "bool", "int8", "uint64", "complex128", "float16"]


def some(seed: int, shape: tuple[int, ...] = (37, 11), dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


@pytest.fixture
def posix() -> plugins.Instance:
    return plugins.find("posix").create()


@pytest.fixture
def saved(posix: plugins.Instance, tmp_path: Path) -> dict[str, np.ndarray]:
    """Save a set of tensors into the directory; return them."""
    arrays = {f"a/{dtype}": some(seed, dtype=dtype) for seed, dtype in enumerate(DTYPES)}
    arrays |= {"scalar": np.array(3.5), "empty": np.zeros((0, 3)), "one": np.ones(1, np.uint8)}
    posix.save(PluginContext(str(tmp_path), "id", 5), [tensor_of(array, name) for name, array in arrays.items()])
    return arrays


def load(posix: plugins.Instance, path: Path, name: str, into: np.ndarray, **extra: object) -> np.ndarray:
    posix.load(PluginContext(str(path), "id", 5), [tensor_of(into, name, **extra)])
    return into


def test_posix_gives_back_by_name_in_any_order(
    posix: plugins.Instance, saved: dict[str, np.ndarray], tmp_path: Path
) -> None:
    for name in sorted(saved, reverse=True):
        assert np.array_equal(load(posix, tmp_path, name, np.zeros_like(saved[name])), saved[name])
    everything = {name: np.zeros_like(array) for name, array in saved.items()}
    tensors = [tensor_of(array, name) for name, array in everything.items()]
    posix.load(PluginContext(str(tmp_path)), tensors)
    assert all(np.array_equal(everything[name], saved[name]) for name in saved)


def test_posix_tells_boxes_and_spans_of_one_tensor_apart(posix: plugins.Instance, tmp_path: Path) -> None:
    boxes = [((0, 0), some(1, (4, 5))), ((4, 0), some(2, (4, 5))), ((8, 0), some(3, (2, 5)))]
    tensors = [tensor_of(box, "x", global_shape=(10, 5), offset=offset) for offset, box in boxes]
    flat = some(4, (100,))
    halves = [
        PluginTensor("y", "float32", (100,), flat.ctypes.data, 160, first_element=0),
        PluginTensor("y", "float32", (100,), flat[40:].ctypes.data, 240, first_element=40),
    ]
    posix.save(PluginContext(str(tmp_path)), [*tensors, *halves])
    for offset, box in boxes:
        assert np.array_equal(load(posix, tmp_path, "x", np.zeros_like(box), global_shape=(10, 5), offset=offset), box)
    for start, stop in [(0, 40), (40, 100), (40, 41), (77, 99), (3, 3)]:
        part = np.zeros(stop - start, np.float32)
        wanted = PluginTensor("y", "float32", (100,), part.ctypes.data, part.nbytes, first_element=start)
        posix.load(PluginContext(str(tmp_path)), [wanted])
        assert np.array_equal(part, flat[start:stop])
    across = np.zeros(10, np.float32)
    with pytest.raises(CorruptError, match="has not these elements of y"):
        posix.load(
            PluginContext(str(tmp_path)),
            [PluginTensor("y", "float32", (100,), across.ctypes.data, 40, first_element=35)],
        )


def test_posix_keeps_a_file_for_each_rank(posix: plugins.Instance, tmp_path: Path) -> None:
    for rank in (0, 1, 12345):
        posix.save(PluginContext(str(tmp_path), rank=rank), [tensor_of(some(rank), "x")])
    assert sorted(os.listdir(tmp_path)) == ["rank-00000.posix", "rank-00001.posix", "rank-12345.posix"]
    back = np.zeros_like(some(0))
    posix.load(PluginContext(str(tmp_path), rank=12345), [tensor_of(back, "x")])
    assert np.array_equal(back, some(12345))


def test_a_second_save_replaces_the_first_whole(posix: plugins.Instance, tmp_path: Path) -> None:
    for seed in (1, 2):
        posix.save(PluginContext(str(tmp_path)), [tensor_of(some(seed), "x")])
    assert os.listdir(tmp_path) == ["rank-00000.posix"]
    assert np.array_equal(load(posix, tmp_path, "x", np.zeros_like(some(2))), some(2))


def test_a_save_that_fails_leaves_the_one_before(posix: plugins.Instance, tmp_path: Path) -> None:
    posix.save(PluginContext(str(tmp_path)), [tensor_of(some(1), "x")])
    nowhere = PluginTensor("x", "float32", (1000,), 8, 4000)  # not ours to read: EFAULT
    with pytest.raises(BackendError, match="Bad address"):
        posix.save(PluginContext(str(tmp_path)), [nowhere])
    assert os.listdir(tmp_path) == ["rank-00000.posix"]
    assert np.array_equal(load(posix, tmp_path, "x", np.zeros_like(some(1))), some(1))


def test_posix_stores_where_its_config_says(tmp_path: Path) -> None:
    with plugins.find("posix").create(f"directory={tmp_path}") as instance:
        instance.save(PluginContext("", "id"), [tensor_of(some(1), "x")])
        assert np.array_equal(load(instance, Path(), "x", np.zeros_like(some(1))), some(1))
    assert os.listdir(tmp_path) == ["id-rank-00000.posix"]


@pytest.mark.parametrize(
    ("config", "directory", "text"),
    [
        ("", "", "nowhere to store"),
        ("", "/nonexistent/there", "open /nonexistent/there"),
        ("colour=red", "", "'colour'"),
    ],
)
def test_posix_says_what_it_cannot_do(config: str, directory: str, text: str) -> None:
    with pytest.raises(BackendError, match=text):
        plugins.find("posix").create(config).save(PluginContext(directory), [])


@pytest.mark.parametrize("name", ["nonesuch", "a/float3"])
def test_what_was_not_saved_is_missing(
    posix: plugins.Instance, saved: dict[str, np.ndarray], tmp_path: Path, name: str
) -> None:
    with pytest.raises(CorruptError, match=f"has not these elements of {name}"):
        load(posix, tmp_path, name, np.zeros((37, 11), np.float32))


def test_another_dtype_or_shape_is_missing(
    posix: plugins.Instance, saved: dict[str, np.ndarray], tmp_path: Path
) -> None:
    for array in (np.zeros((37, 11), np.int32), np.zeros((11, 37), np.float32), np.zeros((37, 12), np.float32)):
        with pytest.raises(CorruptError, match="has not these elements"):
            load(posix, tmp_path, "a/float32", array)


def test_a_file_that_is_damaged_anywhere_but_in_the_data_is_refused(
    posix: plugins.Instance, saved: dict[str, np.ndarray], tmp_path: Path
) -> None:
    file = tmp_path / "rank-00000.posix"
    good = file.read_bytes()
    index_at = int.from_bytes(good[16:24], "little")
    places = [*range(40), *range(index_at, len(good), 7)]
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 0x41
        file.write_bytes(bad)
        with pytest.raises(CorruptError):
            load(posix, tmp_path, "one", np.zeros(1, np.uint8))
    for length in (*range(0, 100, 9), *range(len(good) - 50, len(good))):
        file.write_bytes(good[:length])
        with pytest.raises(CorruptError):
            load(posix, tmp_path, "one", np.zeros(1, np.uint8))
    file.unlink()
    with pytest.raises(CorruptError, match="is missing"):
        load(posix, tmp_path, "one", np.zeros(1, np.uint8))
