"""``--set PATH=VALUE``: paths through names with dots, values as people write them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from hpcckpt.train.config.cycles import cycles, effective
from hpcckpt.train.config_errors import TrainConfigError, inside

pytestmark = pytest.mark.one_case

Make = Callable[..., dict[str, Any]]
ADAM = "tf.keras.optimizers.Adam"
BASE: list[dict[str, Any]] = [
    {
        "datasets": {"a.b": {}},
        "model": {"my.Net": {"base": {"lib.Base": {"sizes": [1, 2, 3]}}, "plain": {"a.b": 1, "a": {"c": 2}}}},
        "loss": "mse",
        "metrics": [{"lib.M": {"name": "m"}}, "accuracy"],
        "optimizer": {ADAM: {"learning_rate": 0.5}},
    },
    {"optimizer": {ADAM: {"learning_rate": 0.25}}, "seed": 7},
    {},
]


def after(*sets: str, base: Any = BASE) -> list[dict[str, Any]]:
    return effective(cycles(copy.deepcopy(base), sets))


def told(*sets: str) -> list[str]:
    with pytest.raises(TrainConfigError) as caught:
        after(*sets)
    return [str(problem) for problem in caught.value.problems]


def rates(found: list[dict[str, Any]]) -> list[Any]:
    return [cycle["optimizer"][ADAM].get("learning_rate") for cycle in found]


# -- paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [f"[1].optimizer.{ADAM}.learning_rate", "[1].optimizer.learning_rate",
                                  f'[1].optimizer."{ADAM}"."learning_rate"', "[1]optimizer.learning_rate"])  # fmt: skip
def test_a_path_goes_through_a_factory_with_or_without_its_name(path: str) -> None:
    assert rates(after(f"{path}=0.1")) == [0.5, 0.1, 0.1]


def test_without_a_number_all_cycles_get_it() -> None:
    assert rates(after("optimizer.learning_rate=0.1")) == [0.1, 0.1, 0.1]
    assert [cycle["seed"] for cycle in after("seed=3")] == [3, 3, 3]
    assert [cycle["seed"] for cycle in after("[0].seed=3")] == [3, 7, 7]


def test_what_a_cycle_inherits_is_copied_before_it_is_changed() -> None:
    assert rates(after("[2].optimizer.learning_rate=0.1")) == [0.5, 0.25, 0.1]
    found = after("[1].model.my.Net.base.lib.Base.sizes[1]=9")
    assert [cycle["model"]["my.Net"]["base"]["lib.Base"]["sizes"] for cycle in found] == [
        [1, 2, 3],
        [1, 9, 3],
        [1, 9, 3],
    ]


def test_a_default_can_be_changed_where_nothing_is_given() -> None:
    found = after("train_loop.num_epochs=3", "checkpoint.max_to_keep=5", "[1].lms.memory_budget=600 MiB")
    assert found[0]["train_loop"] == {"hpcckpt.train.KerasTrainLoop": {"num_epochs": 3}}
    assert [cycle["checkpoint"]["max_to_keep"] for cycle in found] == [5, 5, 5]
    assert [cycle["lms"] for cycle in found] == [None, {"memory_budget": "600 MiB"}, {"memory_budget": "600 MiB"}]


def test_changes_are_made_in_their_order() -> None:
    assert after("seed=1", "[0].seed=2", "[1].seed=null")[0]["seed"] == 2
    other, again = 'optimizer={"lib.Other": {}}', f'optimizer={{"{ADAM}": {{}}}}'
    assert rates(after(other, again, "optimizer.learning_rate=1.5")) == [1.5, 1.5, 1.5]


def test_items_of_lists_have_numbers() -> None:
    found = after("metrics[0].name=x", 'metrics[1]={"lib.N": {}}')[0]
    assert found["metrics"] == [{"lib.M": {"name": "x"}}, {"lib.N": {}}]


def test_the_longest_key_is_meant_and_quotes_decide() -> None:
    assert after("model.plain.a.b=5")[0]["model"]["my.Net"]["plain"] == {"a.b": 5, "a": {"c": 2}}
    assert after('model.plain."a".b=5')[0]["model"]["my.Net"]["plain"] == {"a.b": 1, "a": {"c": 2, "b": 5}}
    assert after('model.plain."x=y.z"=5')[0]["model"]["my.Net"]["plain"]["x=y.z"] == 5


def test_a_mapping_of_one_key_is_a_factory_only_where_it_is_one() -> None:
    base = [{**BASE[0], "checkpoint": {"backend_options": {"driver": "direct"}}}]
    found = after("checkpoint.max_to_keep=5", base=base)[0]["checkpoint"]
    assert (found["max_to_keep"], found["backend_options"]) == (5, {"driver": "direct"})


_KEYS = st.text("abc._=-", min_size=1, max_size=6).filter(lambda key: not re.fullmatch(r"[abc]\w*(\.\w+)+", key))
_PLAIN = st.recursive(
    st.integers() | st.text("xyz", max_size=3) | st.none(),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(_KEYS, inner, min_size=1, max_size=3),
    max_leaves=12,
)


def places_in(value: Any, path: str, quoted: bool) -> list[tuple[str, list[str | int]]]:
    """Return the paths of all parts of a value, as text and as keys."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    found: list[tuple[str, list[str | int]]] = []
    for key, item in items:
        text = f"{path}.{json.dumps(key)}" if quoted and isinstance(key, str) else inside(path, key)
        found += [(text, [key]), *((below, [key, *keys]) for below, keys in places_in(item, text, quoted))]
    return found


@given(st.dictionaries(_KEYS, _PLAIN, min_size=1, max_size=3), st.data())
def test_any_part_can_be_reached_by_its_quoted_path(arguments: dict[str, Any], data: st.DataObject) -> None:
    raw = [{"datasets": {"a.b": {}}, "model": {"my.Net": {"plain": arguments}}, "loss": None}]
    text, keys = data.draw(st.sampled_from(places_in(arguments, '[0].model."my.Net".plain', True)))
    expected: Any = copy.deepcopy(raw)
    holder = expected[0]["model"]["my.Net"]["plain"]
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = "new"
    assert effective(cycles(raw, [f"{text}=new"])) == effective(cycles(expected))


_WORDS = st.text("abcdef", min_size=1, max_size=5)
_WITH_FACTORIES = st.recursive(
    st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(_WORDS, inner, min_size=2, max_size=3)
        | st.builds(
            lambda a, b, kwargs: {f"{a}.{b}": kwargs}, _WORDS, _WORDS, st.dictionaries(_WORDS, inner, max_size=3)
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(_WORDS, _WITH_FACTORIES, min_size=1, max_size=3), st.data())
def test_the_places_in_messages_are_paths(arguments: dict[str, Any], data: st.DataObject) -> None:
    raw = [{"datasets": {"a.b": {}}, "model": {"my.Net": arguments}, "loss": None}]
    parts = [each for each in places_in(arguments, "[0].model.my.Net", False) if "." not in str(each[1][-1])]
    if not parts:
        return
    text, keys = data.draw(st.sampled_from(parts))
    holder = expected = copy.deepcopy(arguments)
    for key in keys[:-1]:
        holder = holder[key]  # type: ignore[index]
    holder[keys[-1]] = 12345  # type: ignore[index]
    found = effective(cycles(raw, [f"{text}=12345"]))
    assert found == effective(cycles([{**raw[0], "model": {"my.Net": expected}}]))


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("0.1", 0.1), ("1e-3", 0.001), (".5", 0.5), ("5.", 5.0), ("+3", 3), ("-2", -2), ("true", True),
     ("null", None), ("relu", "relu"), ('"3"', "3"), ("[1, 2]", [1, 2]), ("{a: 1, b: [2]}", {"a": 1, "b": [2]}),
     ("a=b", "a=b"), ("", ""), ("600 MiB", "600 MiB"), ("inf", "inf"), ("1_000", "1_000")],
)  # fmt: skip
def test_a_value_is_json_or_else_a_text(text: str, value: Any) -> None:
    found = after(f"model.x={text}")[0]["model"]["my.Net"]["x"]
    assert (found, type(found)) == (value, type(value))


# -- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("seed", "is no change; write PATH=VALUE"),
        ("=3", "is no change"),
        ("[5].seed=3", "there is no cycle [5]; the cycles are [0] to [2]"),
        ("sed=3", "there is no key 'sed'; did you mean 'seed'?"),
        ("optimizer.tf.keras.optimizers.Adan.learning_rate=3", f"[0].optimizer.{ADAM} has no 'tf'"),
        ("seed.x=3", "[0].seed is null, which has no parts"),
        ("metrics[7].name=x", "[0].metrics has no item [7]; it has 2, from [0]"),
        ("metrics.name=x", "[0].metrics is a list, which has no parts"),
        ("model[0]=x", "[0].model is a mapping, no list"),
        ("model.base.lib.Base.sizez[0]=1", "[0].model.my.Net.base.lib.Base has no 'sizez'; did you mean 'sizes'?"),
        ("model..x=3", "an empty part before"),
        ("model.=3", "the path ends with a dot"),
        ("seed=True", "True is a word of Python's; write true"),
        ("model.x={a: [1}", "the value:1:7: Found a punctuator"),
        ("model.x=1e999", "inf is no number"),
        (f"seed={'1' * 5000}", "the number cannot be read"),
        ('model."x=3', "begins with quotes that are not closed"),
    ],
)
def test_a_change_that_cannot_be_made(change: str, says: str) -> None:
    found = told(change)
    assert found[0].startswith("--set ")
    assert any(says in each for each in found), found


def test_all_changes_that_cannot_be_made_are_told_with_all_else_that_is_wrong() -> None:
    raw = [{**BASE[0], "optimiser": 3}]
    with pytest.raises(TrainConfigError) as caught:
        cycles(raw, ["sed=3", "[9].seed=1", "seed=-1"])
    assert [problem.where for problem in caught.value.problems] == [
        "--set sed=3", "--set [9].seed=1", "[0].seed", "[0].optimiser",
    ]  # fmt: skip


def test_a_part_that_only_some_cycles_have_needs_the_number_of_a_cycle(cycle: Make) -> None:
    raw = [cycle(optimizer={ADAM: {}}), {"optimizer": {"tf.keras.optimizers.SGD": {}}}]
    with pytest.raises(TrainConfigError, match=r"name the cycle") as caught:
        cycles(raw, [f"optimizer.{ADAM}.learning_rate=0.1"])
    assert "[1].optimizer" in str(caught.value)
