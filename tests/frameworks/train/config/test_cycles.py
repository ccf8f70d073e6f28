"""Cycles inherit whole values, key by key; what is wrong is told at once, each with its place."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hpcckpt.lms.settings import LmsSettings
from hpcckpt.train.config import schema
from hpcckpt.train.config.cycles import CheckpointSettings, Cycle, cycles, effective
from hpcckpt.train.config.factories import Factory
from hpcckpt.train.config.read import read
from hpcckpt.train.config_errors import TrainConfigError

pytestmark = pytest.mark.one_case

Make = Callable[..., dict[str, Any]]


def told(config: Any) -> list[str]:
    with pytest.raises(TrainConfigError) as caught:
        cycles(config)
    return [str(problem) for problem in caught.value.problems]


# -- inheriting ------------------------------------------------------------------------------------


def test_the_complex_sample_inherits_what_it_leaves_out(seeds: Path) -> None:
    first, second = cycles(read(seeds / "complex.json"))
    assert (second.datasets, second.model, second.loss, second.metrics) == (
        first.datasets, first.model, first.loss, first.metrics,
    )  # fmt: skip
    assert second.optimizer.kwargs == {"learning_rate": 0.00025}
    assert second.train_loop.kwargs["num_epochs"] == 5
    assert "freeze_submodels" not in second.train_loop.kwargs  # the whole value is replaced, nothing is merged


def test_the_defaults(seeds: Path) -> None:
    (cycle,) = cycles(read(seeds / "simple.json"))
    assert (cycle.optimizer.name, cycle.optimizer.kwargs) == ("tf.keras.optimizers.Adam", {})
    assert (cycle.train_loop.name, cycle.train_loop.kwargs) == ("hpcckpt.train.KerasTrainLoop", {})
    assert (cycle.metrics, cycle.lms, cycle.distributed, cycle.seed) == ((), None, "auto", None)
    assert cycle.checkpoint == CheckpointSettings()


def test_null_takes_a_key_back_to_its_default(cycle: Make) -> None:
    first = cycle(
        metrics=["accuracy"], optimizer={"tf.keras.optimizers.SGD": {}}, checkpoint={"max_to_keep": 9}, lms={}, seed=3,
        distributed="none", train_loop={"MyLoop": {}},
    )  # fmt: skip
    _, second = cycles([first, dict.fromkeys(schema.DEFAULTS)])
    (plain,) = cycles([cycle()])
    assert all(getattr(second, name) == getattr(plain, name) for name in ("metrics", "checkpoint", "lms", "seed"))
    assert second.optimizer.name == "tf.keras.optimizers.Adam"
    assert second.train_loop.name == "hpcckpt.train.KerasTrainLoop"
    assert second.distributed == "auto"


def test_a_loss_may_be_none_but_must_be_said(cycle: Make) -> None:
    assert cycles([cycle(loss=None)])[0].loss is None
    assert told([cycle(loss=...)])[0].startswith("[0].loss: is missing; the first cycle must say it: ")


def test_an_empty_later_cycle_repeats_the_one_before(cycle: Make) -> None:
    first, second = cycles([cycle(seed=3), {}])
    assert (first.index, second.index) == (0, 1)
    assert effective([first]) == effective([second])


_FACTORIES = st.builds(
    lambda name, value: {f"lib.{name}": {"argument": value}}, st.sampled_from("ABC"), st.integers() | st.text()
)
_OWN = {
    "datasets": _FACTORIES,
    "model": _FACTORIES,
    "loss": _FACTORIES | st.sampled_from(["mse", "mae"]),
    "metrics": st.lists(_FACTORIES | st.just("accuracy"), max_size=2),
    "optimizer": _FACTORIES,
    "train_loop": _FACTORIES,
    "lms": st.fixed_dictionaries({"memory_budget": st.integers(0, 1 << 40)}),
    "distributed": st.sampled_from(["auto", "none", "horovod", "mpi4py"]),
    "seed": st.integers(0, 2**32 - 1),
}
_CHECKPOINT = st.fixed_dictionaries({}, optional={"max_to_keep": st.integers(1, 9), "async_save": st.booleans()})
_MUST = ("datasets", "model", "loss")
_FIRST = st.fixed_dictionaries(
    {name: _OWN[name] for name in _MUST}, optional={n: _OWN[n] for n in _OWN if n not in _MUST}
)
_LATER = st.fixed_dictionaries({}, optional=_OWN)
_RAW = st.builds(lambda first, later: [first, *later], _FIRST, st.lists(_LATER, max_size=4))


@given(_RAW)
def test_each_key_is_that_of_the_last_cycle_that_gives_it(raw: list[dict[str, Any]]) -> None:
    found = effective(cycles(raw))
    assert len(found) == len(raw)
    for i, cycle in enumerate(found):
        for name, value in cycle.items():
            giving = [each[name] for each in raw[: i + 1] if name in each]
            expected = giving[-1] if giving else schema.DEFAULTS[name]
            assert value == (expected if name != "checkpoint" else schema.CheckpointKeys().model_dump())


@given(_RAW, _CHECKPOINT)
def test_the_effective_configuration_says_the_same_and_leaves_nothing_out(
    raw: list[dict[str, Any]], checkpoint: dict[str, Any]
) -> None:
    whole = effective(cycles([{**raw[0], "checkpoint": checkpoint}, *raw[1:]]))
    assert all(list(each) == list(schema.CycleKeys.model_fields) for each in whole)
    assert effective(cycles(json.loads(json.dumps(whole)))) == whole
    assert effective(cycles([whole[-1]])) == [whole[-1]]  # each means itself


def test_the_effective_configuration_keeps_nested_factories_and_references(seeds: Path, cycle: Make) -> None:
    first = effective(cycles(read(seeds / "complex.json")))[0]
    raw = read(seeds / "complex.json").raw[0]
    assert {name: first[name] for name in raw} == raw
    reference = cycle(model={"tf.keras.Sequential": {"layers": [{"a.B": {"activation": {"@": "tf.nn.relu"}}}]}})
    assert effective(cycles([reference]))[0]["model"] == reference["model"]


# -- what is given from Python ---------------------------------------------------------------------


def test_values_of_python_become_plain(cycle: Make) -> None:
    arguments = {"shape": (8, 8), "rate": np.float32(0.5), "n": np.int64(3), "path": Path("a/b"), "on": np.bool_(1)}
    (found,) = cycles([cycle(model={"my.Model": arguments})])
    assert found.model.kwargs == {"shape": [8, 8], "rate": 0.5, "n": 3, "path": "a/b", "on": True}
    assert json.dumps(effective([found]))


def test_one_mapping_is_one_cycle(cycle: Make) -> None:
    assert effective(cycles(cycle())) == effective(cycles([cycle()]))


def test_cycles_pass_through(cycle: Make) -> None:
    whole = cycles([cycle()])
    assert cycles(whole) is whole or cycles(whole) == whole
    assert all(isinstance(each, Cycle) for each in cycles(list(whole)))


def test_what_is_given_is_not_changed(cycle: Make) -> None:
    raw = [cycle(seed=1), {"seed": 2}]
    before = json.dumps(raw)
    cycles(raw, ["seed=5", "[1].optimizer.learning_rate=1.0", "model.tf.keras.Sequential.layers=[]"])
    assert json.dumps(raw) == before


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "a object cannot be in a configuration"),
        ({1: 2}, "the key 1 is no text"),
        (float("nan"), "nan is no number"),
        ({"a", "b"}, "a set cannot be in a configuration"),
        (np.zeros(3), "a ndarray cannot be in a configuration"),
        (lambda: 0, "a function cannot be in a configuration"),
    ],
)
def test_what_json_has_not_is_refused(value: Any, says: str, cycle: Make) -> None:
    (only,) = told([cycle(model={"my.Model": {"a": [value]}})])
    assert only.startswith("[0].model.my.Model.a[0]: ")
    assert says in only


def test_a_configuration_that_contains_itself_is_refused(cycle: Make) -> None:
    arguments: dict[str, Any] = {}
    arguments["layer"] = {"tf.keras.layers.Wrapper": arguments}
    (only,) = told([cycle(model={"tf.keras.layers.Wrapper": arguments})])
    assert "lies more than 40 levels deep, or contains itself" in only
    assert only.startswith("[0].model.tf.keras.layers.Wrapper.layer.")
    assert len(only) < 400


# -- what is wrong ---------------------------------------------------------------------------------


_TWO_KEYS = (
    "[0].model.a.B.x: a factory has exactly one key, here are 2: 'c.D' and 'e.F'; "
    "keep one; several of them make a list, [{…}, {…}], where one is taken"
)


def test_everything_is_told_at_once() -> None:
    assert told(
        [
            {
                "datasts": {"a.b": {}},
                "model": {"a.B": {"x": {"c.D": {}, "e.F": {}}}},
                "loss": ["mse"],
                "metrics": "accuracy",
                "checkpoint": {"max_to_kep": 3, "keep_best": 0},
                "seed": "3",
            },
            {"optimiser": {"a.b": {}}, "lms": {"tier": "hots"}},
        ]
    ) == [
        "[0].checkpoint.keep_best: 0 is not accepted; give a number from 1, or null",
        "[0].checkpoint.max_to_kep: there is no such key; did you mean 'max_to_keep'?",
        '[0].seed: "3" is not accepted; give a number from 0 to 4294967295, or null',
        "[0].datasts: there is no such key; did you mean 'datasets'?",
        _TWO_KEYS,
        '[0].loss: is a list, no factory; write a factory, {"dotted.path": {arguments}}',
        "[0].metrics: is a text, no list; write a list, also for one metric: [ … ]",
        '[1].lms.tier: "hots" is not accepted; give "auto", "host", "file" or "host-then-file"',
        "[1].optimiser: there is no such key; did you mean 'optimizer'?",
    ]


def test_the_error_names_the_file_and_each_problem_on_a_line_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('[{"model": {"a.B": {}}, "loss": null}]', encoding="utf-8")
    with pytest.raises(TrainConfigError, match=r"^\S+c\.json: \[0\]\.datasets: is missing"):
        cycles(tmp_path / "c.json")
    (tmp_path / "c.json").write_text('[{"model": {"a.B": {}}}]', encoding="utf-8")
    with pytest.raises(TrainConfigError, match=r"c\.json: 2 problems\n  \[0\]\.datasets: .*\n  \[0\]\.loss: "):
        cycles(tmp_path / "c.json")


def test_what_is_wrong_with_the_writing_and_with_the_meaning_is_told_together(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(
        '[{"datasets": {"a.b": {"x": "True"}}, "model": {}, "loss": null}]', encoding="utf-8"
    )
    assert told(tmp_path / "c.json") == [
        "[0].datasets.a.b.x: is the text 'True'; write true",
        '[0].model: is empty; write a factory, {"dotted.path": {arguments}}',
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"num_epochs": 3},
            "[0].num_epochs: there is no such key; it is an argument of the factory under 'train_loop'",
        ),
        ({"max_to_keep": 3}, "[0].max_to_keep: there is no such key; it is a key of 'checkpoint'"),
        ({"memory_budget": 3}, "[0].memory_budget: there is no such key; it is a key of 'lms'"),
        ({"zzz": 3}, "[0].zzz: there is no such key; the keys are checkpoint, datasets, distributed, lms, loss, "),
        ({"checkpoint": []}, "[0].checkpoint: a list is not accepted; give a mapping"),
        ({"checkpoint": {"every_n_minutes": 0}}, '0 is not accepted; give a positive number, "auto", or null'),
        ({"checkpoint": {"every_n_minutes": "often"}}, "[0].checkpoint.every_n_minutes: "),
        ({"checkpoint": {"async_save": 1}}, "[0].checkpoint.async_save: 1 is not accepted; give true or false"),
        ({"checkpoint": {"max_to_keep": 2.5}}, "[0].checkpoint.max_to_keep: 2.5 is not accepted; give a number"),
        ({"checkpoint": {"max_to_keep": True}}, "[0].checkpoint.max_to_keep: true is not accepted"),
        ({"checkpoint": {"backend": "rankfil"}}, "there is no backend 'rankfil'; did you mean 'rankfile'?"),
        ({"checkpoint": {"backend": "plugin"}}, "'plugin' names no plugin; give \"plugin:NAME\""),
        ({"checkpoint": {"backend": "plugin:../x.so"}}, "'plugin:../x.so' names no plugin"),
        ({"checkpoint": {"backend": 7}}, "[0].checkpoint.backend: 7 is not accepted; give the name of a backend"),
        ({"lms": True}, "[0].lms: true is not accepted; give a mapping, or null"),
        ({"lms": {"swapout_threshold": 0}}, "[0].lms: 0 is not a supported value for swapout_threshold."),
        ({"lms": {"memory_budget": "lots"}}, "[0].lms: memory_budget: 'lots' – bytes, as a number or with a unit"),
        ({"lms": {"comm": 3}}, "[0].lms.comm: there is no such key"),
        ({"distributed": "mpi"}, '[0].distributed: "mpi" is not accepted; give "auto", "none", "horovod" or "mpi4py"'),
        ({"seed": -1}, "[0].seed: -1 is not accepted; give a number from 0 to 4294967295, or null"),
        ({"seed": 2**70}, f"[0].seed: {2**70} is not accepted; give a number from 0 to 4294967295, or null"),
        ({"seed": 1.0}, "[0].seed: 1.0 is not accepted"),
        ({"optimizer": "adam"}, '[0].optimizer: is a text, no factory; write a factory, {"dotted.path": {arguments}}'),
        ({"model": "a.B"}, '[0].model: is a text, no factory; write {"a.B": {}}'),
        (
            {"model": {"a.B": None}},
            '[0].model.a.B: its arguments are null, no mapping; write {"a.B": {"argument": value}}',
        ),
        ({"model": {"a.B": [1]}}, "[0].model.a.B: its arguments are a list"),
        (
            {"model": {"a.B": {}, "units": 3}},
            """a factory has exactly one key, here are 2: 'a.B' and 'units'; put its arguments inside: {"a.B": {…}}""",
        ),
        ({"model": {"@": "a.B"}}, '[0].model: a.B is only named here; write {"a.B": {}}'),
        ({"loss": {"@": 3}}, '[0].loss.@: is a number, no name; write {"@": "dotted.path"}'),
        ({"metrics": [3]}, "[0].metrics[0]: is a number, no factory"),
        ({"metrics": {"a.B": {}}}, "[0].metrics: is a mapping, no list"),
    ],
)
def test_each_problem_names_its_place_and_the_remedy(changes: dict[str, Any], says: str, cycle: Make) -> None:
    assert says in told([cycle(**changes)])[0]
    assert len(told([cycle(**changes)])) == 1


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ([], "the configuration: there is no train cycle; write "),
        (None, "the configuration: is null, no list of train cycles"),
        (7, "the configuration: is a number, no list of train cycles"),
        ([3], "[0]: is a number, no train cycle"),
        ([[]], "[0]: is a list, no train cycle"),
        ([{}], "[0].datasets: is missing; the first cycle must say it: "),
    ],
)
def test_what_is_no_list_of_cycles(config: Any, says: str) -> None:
    assert told(config)[0].startswith(says)


def test_keys_cannot_forge_lines_of_a_message() -> None:
    (first, *_) = told([{"a\nhpcckpt: error: \x1b[31m": 1, "datasets": {}, "model": {}, "loss": None}])
    assert "\n" not in first
    assert "\x1b" not in first


# -- the schema ------------------------------------------------------------------------------------


def test_the_keys_of_a_checkpoint_are_those_of_its_class() -> None:
    assert schema.CheckpointKeys().model_dump() == {
        name: getattr(CheckpointSettings(), name) for name in CheckpointSettings.__dataclass_fields__
    }


def test_the_keys_of_lms_are_its_settings() -> None:
    blank = LmsSettings()
    assert {name: getattr(blank, name) for name in LmsSettings.__dataclass_fields__} == {
        **schema.LmsKeys().model_dump(),
        "serialization": (),
    }


def test_the_keys_of_a_cycle_are_those_of_its_class() -> None:
    assert set(schema.CycleKeys.model_fields) == set(Cycle.__dataclass_fields__) - {"index"}


def test_cycles_need_no_framework() -> None:
    code = (
        "import sys; from hpcckpt.train.config.cycles import cycles, effective\n"
        "effective(cycles([{'datasets': {'a.b': {}}, 'model': {'tf.keras.layers.Dense': {}}, 'loss': 'mse'}]))\n"
        "print([name for name in ('tensorflow', 'keras', 'torch', 'mpi4py', 'horovod') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_factory_knows_the_places_of_its_arguments() -> None:
    factory = Factory("ktf.models.OneHeadNet", {}, "[0].model")
    assert factory.place_of("base_model") == "[0].model.ktf.models.OneHeadNet.base_model"
