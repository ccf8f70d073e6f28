"""What a plugin is given, what becomes of what it returns or throws, and which threads are in it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hpcckpt.errors import BackendError, ClosedError, CorruptError, NoSpaceError
from hpcckpt.native import abi, plugins
from hpcckpt.native.plugins import LoadedBackend, PluginContext, PluginTensor

pytestmark = pytest.mark.usefixtures("no_plugins")
HERE = PluginContext()


@pytest.fixture
def library(compile_plugin: Callable[..., Path]) -> Path:
    return compile_plugin("faulty.cpp", "second_file.cpp", name="faulty")


@pytest.fixture
def backends(library: Path) -> dict[str, LoadedBackend]:
    return {backend.name: backend for backend in plugins.load(library)}


@pytest.fixture
def count(library: Path) -> Callable[[], int]:
    gc.collect()
    return ctypes.CDLL(str(library)).instances_alive


def tensor_of(array: np.ndarray, name: str = "x", **extra: object) -> PluginTensor:
    return PluginTensor(name, array.dtype.name, array.shape, array.ctypes.data, array.nbytes, owner=array, **extra)


FAILURES = {
    "fail": (BackendError, "faulty.Save failed (code 7): the disk is tired"),
    "fail_0": (BackendError, "faulty.Save failed (code 1): a failure with code 0"),
    "silent": (BackendError, "faulty.Save failed (code 9): it gave no reason"),
    "throw": (BackendError, "faulty.Save failed (code -1): the network is away"),
    "throw_int": (BackendError, "faulty.Save failed (code -2): something was thrown that is not a std::exception"),
    "no_space": (NoSpaceError, "faulty.Save failed (code -3): write: No space left on device"),
    "long": (BackendError, "faulty.Save failed (code 1): " + "x" * (abi.ERROR_BYTES - 1)),
    "binary": (BackendError, "faulty.Save failed (code 1): \\xe9t\\xe9 \\xff\\x01"),
}


@pytest.mark.parametrize("way", FAILURES)
def test_what_save_returns_or_throws_is_an_error_with_its_text(backends: dict[str, LoadedBackend], way: str) -> None:
    expected, text = FAILURES[way]
    with backends["faulty"].create(f"save={way}") as instance, pytest.raises(expected) as caught:
        instance.save(HERE, [])
    assert str(caught.value) == text
    assert type(caught.value) is expected


def test_an_instance_goes_on_after_a_failure(backends: dict[str, LoadedBackend]) -> None:
    with backends["faulty"].create("save=fail,rank=1") as instance:
        with pytest.raises(BackendError):
            instance.save(PluginContext(rank=1), [])
        instance.save(PluginContext(rank=0), [])


LOADS = {
    "fail": (BackendError, "faulty.Load failed (code 8): the server is away"),
    "throw": (BackendError, "faulty.Load failed (code -1): the network is away"),
    "lost": (CorruptError, "faulty.Load failed (code -4): it is gone"),
}


@pytest.mark.parametrize("way", LOADS)
def test_what_load_returns_or_throws_is_an_error_with_its_text(backends: dict[str, LoadedBackend], way: str) -> None:
    expected, text = LOADS[way]
    with backends["faulty"].create(f"load={way}") as instance, pytest.raises(expected) as caught:
        instance.load(HERE, [tensor_of(np.zeros(3))])
    assert str(caught.value) == text


CONSTRUCTORS = {
    "create=throw": "faulty.Create failed (code -1): no licence for this host",
    "create=throw_int": "faulty.Create failed (code -2): something was thrown",
    "create=bad_alloc": "faulty.Create failed (code -1): std::bad_alloc",
    "colour=red": "faulty.Create failed (code -1): there is no option 'colour'",
}


@pytest.mark.parametrize("config", CONSTRUCTORS)
def test_a_constructor_that_throws_is_an_error_and_leaves_nothing(
    backends: dict[str, LoadedBackend], count: Callable[[], int], config: str
) -> None:
    before = count()
    with pytest.raises(BackendError) as caught:
        backends["faulty"].create(config)
    assert CONSTRUCTORS[config] in str(caught.value)
    assert count() == before


def test_instances_end_once_when_closed_or_forgotten(
    backends: dict[str, LoadedBackend], count: Callable[[], int]
) -> None:
    before = count()
    instances = [backends["faulty"].create() for _ in range(5)]
    assert count() == before + 5
    instances[0].close()
    instances[0].close()
    assert count() == before + 4
    del instances
    gc.collect()
    assert count() == before


def test_a_closed_instance_is_refused(backends: dict[str, LoadedBackend]) -> None:
    instance = backends["faulty"].create()
    instance.close()
    with pytest.raises(ClosedError, match="'faulty' is closed"):
        instance.save(HERE, [])


def test_what_was_saved_is_loaded(backends: dict[str, LoadedBackend]) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    back = np.zeros_like(values)
    context = PluginContext(save_id="calls")
    with backends["faulty"].create() as instance:
        instance.save(context, [tensor_of(values)])
        instance.load(context, [tensor_of(back)])
    assert (values == back).all()


# -- what it is given ------------------------------------------------------------------------------


def echoed(
    backends: dict[str, LoadedBackend], path: Path, context: PluginContext, *tensors: PluginTensor
) -> list[list[str]]:
    with backends["echo"].create(str(path)) as instance:
        instance.save(context, tensors)
    return [line.split("|") for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_plugin_sees_the_tensors_own_memory_and_all_that_is_known_of_them(
    backends: dict[str, LoadedBackend], tmp_path: Path
) -> None:
    whole, part, scalar = np.zeros((2, 3), np.float32), np.zeros((4, 5), np.int16), np.zeros((), np.float64)
    context = PluginContext("/some/where", "abc123", 42, 3, 8)
    told = echoed(
        backends, tmp_path / "out", context,
        tensor_of(whole, "model/ünï"),
        PluginTensor("part", "int16", (4, 5), part[1].ctypes.data, 10, (10, 20), (6, 15), 5, kind="sharded"),
        tensor_of(scalar, "scalar", kind="per-rank"),
        PluginTensor("bf", "bfloat16", (7,), whole.ctypes.data, 14),
        PluginTensor("text", "<U5", (1,), whole.ctypes.data, 20, kind="root"),
        tensor_of(np.zeros((0, 3), np.uint8), "empty"),
    )  # fmt: skip
    at = str(whole.ctypes.data)
    assert told == [
        ["/some/where", "abc123", "42", "3", "8"],
        ["model/ünï", "float32", "11", "4", "0", "2,3,", "0,0,", "2,3,", "0", "6", at, "24", "1"],
        ["part", "int16", "3", "2", "2", "10,20,", "6,15,", "4,5,", "5", "5", str(part[1].ctypes.data), "10", "0"],
        ["scalar", "float64", "12", "8", "3", "", "", "", "0", "1", str(scalar.ctypes.data), "8", "1"],
        ["bf", "bfloat16", "15", "2", "0", "7,", "0,", "7,", "0", "7", at, "14", "1"],
        ["text", "<U5", "0", "20", "1", "1,", "0,", "1,", "0", "1", at, "20", "1"],
        ["empty", "uint8", "6", "1", "0", "0,3,", "0,0,", "0,3,", "0", "0", "0", "0", "1"],
    ]


def test_a_box_with_other_axes_than_its_tensor_is_refused(backends: dict[str, LoadedBackend]) -> None:
    with pytest.raises(ValueError, match=r"'x': .* differ in their axes"):
        backends["faulty"].create().save(HERE, [tensor_of(np.zeros(3), offset=(0, 0))])


def test_a_call_may_be_about_no_tensor_no_directory_and_no_save(
    backends: dict[str, LoadedBackend], tmp_path: Path
) -> None:
    assert echoed(backends, tmp_path / "out", PluginContext()) == [["", "", "-1", "0", "1"]]


@pytest.mark.parametrize("field", ["config", "directory", "save_id", "name"])
def test_text_that_c_would_cut_is_refused(backends: dict[str, LoadedBackend], field: str) -> None:
    given = {"config": "", "directory": "", "save_id": "", "name": "", field: "a\0b"}
    config, name = given.pop("config"), given.pop("name")
    with pytest.raises(ValueError, match=f"{field}: .* zero character"):
        backends["faulty"].create(config).save(PluginContext(**given), [tensor_of(np.zeros(1), name)])


def test_many_tensors_are_given_in_one_call(backends: dict[str, LoadedBackend], tmp_path: Path) -> None:
    array = np.zeros((2, 2, 2))
    told = echoed(backends, tmp_path / "out", HERE, *(tensor_of(array, f"t{number}") for number in range(5000)))
    assert [row[0] for row in told[1:]] == [f"t{number}" for number in range(5000)]
    assert {row[7] for row in told[1:]} == {"2,2,2,"}


def test_native_code_can_call_the_same_table_by_its_address(backends: dict[str, LoadedBackend]) -> None:
    backend = backends["faulty"]
    table = abi.BackendTable.from_address(backend.address)
    with backend.create("save=fail") as instance:
        error = ctypes.create_string_buffer(256)
        context = abi.Context(struct_size=ctypes.sizeof(abi.Context), directory=b"", save_id=b"", step=-1, n_ranks=1)
        assert abi.Call(table.save)(instance.address, ctypes.byref(context), error, 256) == 7
    assert error.value == b"the disk is tired"


# -- threads ---------------------------------------------------------------------------------------


def most_inside(library: Path, instance: plugins.Instance) -> int:
    lib = ctypes.CDLL(str(library))
    lib.most_inside_at_a_time()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: instance.save(HERE, []), range(4)))
    return lib.most_inside_at_a_time()


def test_one_thread_at_a_time_is_in_an_instance(library: Path, backends: dict[str, LoadedBackend]) -> None:
    assert most_inside(library, backends["slow"].create()) == 1


@pytest.fixture
def lib(library: Path) -> Iterator[ctypes.CDLL]:
    lib = ctypes.CDLL(str(library))
    yield lib
    lib.want(1)


def begin_to_save(lib: ctypes.CDLL, instance: plugins.Instance, *then: Callable[[], None]) -> threading.Thread:
    """Have a thread save that stays in the plugin until fewer threads are wanted there."""
    lib.want(99)
    worker = threading.Thread(target=lambda: [instance.save(HERE, []), *(do() for do in then)])
    worker.start()
    while not lib.inside():
        assert worker.is_alive(), "Python stood still while the plugin worked"
        time.sleep(0.001)
    return worker


def test_several_are_in_one_that_says_that_it_can(
    library: Path, lib: ctypes.CDLL, backends: dict[str, LoadedBackend]
) -> None:
    lib.want(2)
    assert most_inside(library, backends["slow_together"].create()) > 1


def test_python_goes_on_while_a_plugin_works(lib: ctypes.CDLL, backends: dict[str, LoadedBackend]) -> None:
    worker = begin_to_save(lib, backends["slow"].create())
    lib.want(1)
    worker.join(60)
    assert not worker.is_alive()


@pytest.mark.parametrize("name", ["slow", "slow_together"])
def test_closing_waits_for_the_call_that_is_under_way(
    lib: ctypes.CDLL, backends: dict[str, LoadedBackend], name: str
) -> None:
    instance = backends[name].create()
    ended: list[str] = []
    worker = begin_to_save(lib, instance, lambda: ended.append("saved"))
    threading.Timer(0.1, lib.want, [1]).start()
    instance.close()
    assert lib.inside() == 0
    worker.join(60)
    assert ended == ["saved"]


def is_interrupted(number: int, act: Callable[[], None]) -> bool:
    """Call a function; interrupt it, as Ctrl-C may, where it enters its n-th function of Python, if it comes so far."""
    entered = itertools.count()

    def interrupt(*_: object) -> None:
        if next(entered) == number:
            raise KeyboardInterrupt

    before = sys.gettrace()
    gc.disable()  # its finalizers are functions of Python too, and what they raise is lost
    sys.settrace(interrupt)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        gc.enable()
    return False


@pytest.mark.parametrize("name", ["slow", "slow_together"])
@pytest.mark.parametrize("verb", ["save", "close"])
def test_wherever_a_call_is_interrupted_others_get_in_and_the_instance_can_be_closed(
    lib: ctypes.CDLL, count: Callable[[], int], backends: dict[str, LoadedBackend], name: str, verb: str
) -> None:
    lib.want(1)

    def use(instance: plugins.Instance) -> None:
        with contextlib.suppress(ClosedError):
            instance.save(HERE, [])
        instance.close()

    for number in itertools.count():
        instance = backends[name].create()
        act = (lambda it: it.save(HERE, [])) if verb == "save" else plugins.Instance.close
        was_interrupted = is_interrupted(number, functools.partial(act, instance))
        other = threading.Thread(target=use, args=(instance,), daemon=True)
        other.start()
        other.join(60)
        assert not other.is_alive(), f"interrupted on its way into function {number}, it keeps others out"
        assert count() == 0
        if not was_interrupted:
            break
    assert number > 1


def test_instances_are_independent_of_each_other(lib: ctypes.CDLL, backends: dict[str, LoadedBackend]) -> None:
    lib.want(2)
    lib.most_inside_at_a_time()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: backends["slow"].create().save(HERE, []), range(3)))
    assert lib.most_inside_at_a_time() > 1
