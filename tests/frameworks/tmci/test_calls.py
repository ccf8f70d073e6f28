"""The ops hand a plugin the variables' own memory: at once, in a function, and in a Session; and tell what it says."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hpcckpt.errors import BackendError, CorruptError, NoSpaceError, OptionError, StateError
from hpcckpt.native import abi
from hpcckpt.state.tf_hold import hold
from hpcckpt.tmci import calls, load_variables, save_variables

pytestmark = pytest.mark.one_case

DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 complex64 complex128"
FLOAT8 = [name for name in ("float8_e5m2", "float8_e4m3fn") if hasattr(tf.dtypes.experimental, name)]
SPARSE = tf.IndexedSlices(tf.ones((1, 3)), tf.constant([2]), tf.constant((64, 3)))


def variable(seed: int = 0, shape: tuple[int, ...] = (64, 3)) -> Any:
    return tf.Variable(np.random.default_rng(seed).normal(size=shape).astype("float32"))


def address(v: Any) -> int:
    return hold([v])[0].ctypes.data


def at_once(fn: Callable[[], Any]) -> Callable[[], Any]:
    return fn


WAYS = {"eager": at_once, "function": tf.function}


# -- whose memory it is -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_plugin_saves_from_the_variables_own_memory(spy: Any, way: str) -> None:
    variables = {f"v{n}": variable(n) for n in range(5)}
    WAYS[way](lambda: save_variables(variables, "spy"))()
    assert spy.addresses == [address(v) for v in variables.values()]
    assert spy.names == list(variables)


@pytest.mark.parametrize("way", WAYS)
def test_a_plugin_loads_into_the_variables_own_memory(spy: Any, way: str) -> None:
    v = variable()
    v.assign_add(tf.ones((64, 3)))  # so that there is no other reference to its buffer
    save_variables({"v": v}, "spy")
    before, expected = address(v), v.numpy()
    v.assign_sub(tf.ones((64, 3)))
    gc.collect()
    WAYS[way](lambda: load_variables({"v": v}, "spy"))()
    assert spy.addresses == [before] == [address(v)]
    assert v.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("is_resource", [True, False], ids=["resource", "reference"])
def test_in_a_session_too_it_is_the_variables_own_memory(spy: Any, is_resource: bool) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v = tf.compat.v1.get_variable("v", (3,), use_resource=is_resource)
        w = tf.compat.v1.get_variable("w", (2,), use_resource=True)
        save, load = save_variables([v, w], "spy"), load_variables([v, w], "spy")
        session.run(tf.compat.v1.global_variables_initializer())
        first = session.run(v + 0)
        # what is written to what the plugin was given is what the variable holds from then on
        spy.during = lambda: ctypes.memmove(spy.addresses[0], np.arange(3, dtype="f4").tobytes(), 12)
        session.run(save)
        spy.during = lambda: None
        assert session.run(v + 0).tolist() == [0, 1, 2]
        assert spy.names == ["v", "w"]
        spy.stored["v"] = first.tobytes()
        session.run(load)
        assert session.run(v + 0).tolist() == first.tolist()


@pytest.mark.parametrize("dtype", [*DTYPES.split(), *FLOAT8])
def test_a_plugin_sees_type_shape_and_bytes(spy: Any, dtype: str) -> None:
    kind = getattr(tf, dtype, None) or getattr(tf.dtypes.experimental, dtype)
    shapes: list[tuple[int, ...]] = [(), (0, 3), (2, 3)]
    variables = {str(shape): tf.Variable(tf.cast(tf.ones(shape), kind)) for shape in shapes}
    save_variables(variables, "spy")
    assert [(seen.dtype, seen.shape) for seen in spy.calls[-1][1]] == [(dtype, shape) for shape in shapes]
    assert spy.stored == {name: v.numpy().tobytes() for name, v in variables.items()}
    for v in variables.values():
        v.assign(tf.cast(tf.zeros(v.shape), kind))
    load_variables(variables, "spy")
    assert spy.stored == {name: v.numpy().tobytes() for name, v in variables.items()}


@pytest.mark.parametrize("way", WAYS)
def test_loading_leaves_alone_whoever_shares_the_buffer(spy: Any, way: str) -> None:
    x, y = variable(1), variable(2)
    y.assign(x)
    assert address(x) == address(y)
    held = hold([x])[0]
    before = held.tobytes()
    spy.stored["y"] = variable(3).numpy().tobytes()
    WAYS[way](lambda: load_variables({"y": y}, "spy"))()
    assert y.numpy().tobytes() == spy.stored["y"]
    assert x.numpy().tobytes() == before == held.tobytes()
    assert spy.addresses != [address(x)]


@pytest.mark.parametrize("way", WAYS)
def test_variables_with_sparse_updates_are_saved_and_loaded(spy: Any, way: str) -> None:
    v = variable()
    v.scatter_update(SPARSE)
    before = v.numpy()
    WAYS[way](lambda: save_variables({"v": v}, "spy"))()
    v.scatter_sub(SPARSE)
    WAYS[way](lambda: load_variables({"v": v}, "spy"))()
    assert v.numpy().tobytes() == before.tobytes() == spy.stored["v"]
    v.scatter_add(SPARSE)
    assert v.numpy().tobytes() != before.tobytes()


@pytest.mark.parametrize("way", WAYS)
def test_variables_elsewhere_go_by_way_of_the_host(spy: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = variable(1), variable(2)
    monkeypatch.setattr(calls, "_is_on_host", lambda v: v is here)  # as if the other were on an accelerator
    variables = {"there": there, "here": here, "also there": variable(3)}
    expected = {name: v.numpy().tobytes() for name, v in variables.items()}
    WAYS[way](lambda: save_variables(variables, "spy"))()
    assert spy.stored == expected
    for v in variables.values():
        v.assign(v * 0)
    WAYS[way](lambda: load_variables(variables, "spy"))()
    assert {name: v.numpy().tobytes() for name, v in variables.items()} == expected
    assert spy.names == list(variables)


def test_the_same_variable_may_be_handed_over_twice(spy: Any) -> None:
    v = variable()
    save_variables({"a": v, "b": v}, "spy")
    spy.stored["b"] = variable(1).numpy().tobytes()
    load_variables({"a": v, "b": v}, "spy")
    assert v.numpy().tobytes() in (spy.stored["a"], spy.stored["b"])


def test_a_save_goes_on_beside_updates(spy: Any) -> None:
    """While the plugin looks at the memory, an update takes other memory."""
    v = variable()
    before = v.numpy().tobytes()
    seen: list[bytes] = []

    def update() -> None:
        thread = threading.Thread(target=lambda: v.assign_add(tf.ones((64, 3))))
        thread.start()
        thread.join()
        seen.append(ctypes.string_at(spy.addresses[0], len(before)))

    spy.during = update
    save_variables({"v": v}, "spy")
    assert seen == [before]
    assert v.numpy().tobytes() != before


# -- failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["Save", "Load"])
@pytest.mark.parametrize(
    ("code", "reason", "kind", "text"),
    [
        (7, b"the disk is on fire", BackendError, "spy.{} failed (code 7): the disk is on fire"),
        (-1, b"what() of an exception", BackendError, "spy.{} failed (code -1): what() of an exception"),
        (1, b"", BackendError, "spy.{} failed (code 1): it gave no reason"),
        (1, "größer \xff".encode() + b"\xff\xe2\x82", BackendError, "spy.{} failed (code 1): größer ÿ\\xff\\xe2\\x82"),
        (abi.NO_SPACE, b"full", NoSpaceError, "spy.{} failed (code -3): full"),
        (abi.DAMAGED, b"torn", CorruptError, "spy.{} failed (code -4): torn"),
    ],
)
def test_what_a_plugin_says_of_its_failure_is_the_error(
    spy: Any, verb: str, code: int, reason: bytes, kind: type[Exception], text: str
) -> None:
    call = save_variables if verb == "Save" else load_variables
    spy.fails = code, reason
    with pytest.raises(kind) as raised:
        call({"v": variable()}, "spy")
    assert str(raised.value) == text.format(verb)
    assert type(raised.value) is kind
    spy.fails = None
    call({"v": variable()}, "spy")


def test_in_a_function_the_text_stands_in_tensorflows_error(spy: Any) -> None:
    v = variable()
    save = tf.function(lambda: save_variables({"v": v}, "spy"))
    spy.fails = 7, b"the disk is on fire"
    with pytest.raises(tf.errors.InternalError, match=r"spy\.Save failed \(code 7\): the disk is on fire"):
        save()
    with pytest.raises(StateError, match=r"^s: string cannot be handed to a plugin; convert it$"):
        save_variables({"s": tf.Variable(["text"])}, "spy")  # the failure above is not told once more


def test_a_plugin_that_cannot_be_opened_says_why(spy: Any) -> None:
    spy.is_broken, spy.fails = True, (3, b"no such server")
    with pytest.raises(BackendError, match=r"spy\.Create failed \(code 3\): no such server"):
        save_variables({"v": variable()}, "spy", "where")
    assert spy.configs == ["where"]


def test_a_variable_without_a_value_is_named(spy: Any) -> None:
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    empty = UninitializedVariable(shape=(3,), dtype=tf.float32, name="empty")
    for call in (save_variables, load_variables):
        with pytest.raises(StateError, match=r"^empty: has no value yet; initialize it$"):
            call([empty], "spy")
    assert spy.calls == []


def test_two_variables_of_one_name_are_refused(spy: Any) -> None:
    v, w = tf.Variable(1.0, name="twin"), tf.Variable(2.0, name="twin")
    with pytest.raises(StateError, match="several variables are called twin: pass them as a dict"):
        save_variables([v, w], "spy")


def test_a_backend_in_python_does_not_take_variables() -> None:
    for call in (save_variables, load_variables):
        with pytest.raises(OptionError, match=r"^'rankfile' is a backend in Python, .* use hpcckpt\.Checkpointer"):
            call({"v": variable()}, "rankfile", {"path": "somewhere"})


# -- instances ------------------------------------------------------------------------------------------


def test_one_instance_serves_all_calls_of_one_configuration(spy: Any) -> None:
    v = variable()
    for config in ("a", "b", "a", "a"):
        save_variables({"v": v}, "spy", config)
    load_variables({"v": v}, "spy", "b")
    assert spy.configs == ["a", "b"]
    assert spy.n_alive == 2
    calls.close_all()
    assert spy.n_alive == 0


def test_few_instances_stay_open_beside_those_that_graphs_refer_to(spy: Any) -> None:
    v = variable()
    in_graph = tf.function(lambda: save_variables({"v": v}, "spy", "graph"))
    in_graph()
    for number in range(3 * calls.MAX_OPEN):
        save_variables({"v": v}, "spy", str(number))
    assert spy.n_alive == calls.MAX_OPEN + 1
    in_graph()
    assert spy.configs.count("graph") == 1


def test_a_graph_that_outlives_its_plugin_is_refused_and_nothing_is_called(spy: Any) -> None:
    v = variable()
    save = tf.function(lambda: save_variables({"v": v}, "spy"))
    save()
    calls.close_all()
    with pytest.raises(tf.errors.FailedPreconditionError, match="this plugin is not open"):
        save()
    assert len(spy.calls) == 1


@pytest.mark.parametrize(("features", "most_inside"), [(0, 1), (abi.FEATURES["concurrent"], 2)])
def test_threads_enter_a_plugin_one_by_one_unless_it_allows_more(
    make_spy: Any, features: int, most_inside: int
) -> None:
    spy = make_spy(features=features)
    inside: list[int] = []
    n_inside = 0
    is_begun = False
    together = threading.Barrier(most_inside, timeout=60)

    def count() -> None:
        nonlocal n_inside
        n_inside += 1
        if is_begun and most_inside > 1:
            together.wait()
        else:
            time.sleep(0.05)
        inside.append(n_inside)
        n_inside -= 1

    spy.during = count
    v = variable()
    save_variables({"v": v}, "spy")
    is_begun = True
    threads = [threading.Thread(target=lambda: save_variables({"v": v}, "spy")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(inside) == most_inside


def test_a_plugin_is_told_which_rank_it_serves(spy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    save_variables({"v": variable()}, "spy")
    monkeypatch.setattr(calls, "launched_rank", lambda: 2)
    monkeypatch.setattr(calls, "launched_size", lambda: 5)
    save_variables({"v": variable()}, "spy")
    assert spy.ranks == [(0, 1), (2, 5)]
