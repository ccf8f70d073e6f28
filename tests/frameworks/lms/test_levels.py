"""The categorized topological sort: longest paths, short straight loops, what runs and what runs at times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcckpt.errors import OptionError
from hpcckpt.lms.graph.activity import conditional_ops, inactive_ops
from hpcckpt.lms.graph.graph import Graph, Op
from hpcckpt.lms.graph.levels import has_loops, sort
from tests.support.lms.graphs import chain, graph, op

pytestmark = pytest.mark.one_case


def loop(prefix: str = "while/", frame: str = "") -> list[Op]:
    """Make the ops of ``while`` as TensorFlow lowers it, behind `start` and before `end`."""
    ops = [
        op("start"),
        op("while/Enter", "start", kind="Enter"),
        op("while/Merge", "while/Enter", "while/NextIteration", kind="Merge", n=2),
        op("while/Less", "while/Merge"),
        op("while/LoopCond", "while/Less", kind="LoopCond"),
        op("while/Switch", "while/Merge", "while/LoopCond", kind="Switch", n=2),
        op("while/body", "while/Switch:1"),
        op("while/NextIteration", "while/body", kind="NextIteration"),
        op("while/Exit", "while/Switch", kind="Exit"),
        op("end", "while/Exit"),
    ]
    inside = [replace(each, frame=frame) if each.name.startswith("while/") else each for each in ops]
    return [_renamed(each, prefix) for each in inside]


def _renamed(each: Op, prefix: str) -> Op:
    inputs = tuple(use._replace(op=use.op.replace("while/", prefix)) for use in each.inputs)
    return replace(each, name=each.name.replace("while/", prefix), inputs=inputs)


def test_a_level_is_the_length_of_the_longest_path() -> None:
    levels = sort(graph(op("a"), op("b", "a"), op("c", "b"), op("d", "a", "c"), op("e", "a")))

    assert dict(levels.of) == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 1}
    assert levels.ops == (("a",), ("b", "e"), ("c",), ("d",))
    assert levels.distance("a", "d") == 3


def test_control_edges_count() -> None:
    assert sort(graph(op("a"), op("b", "a"), op("c", "^b")))["c"] == 2


def test_an_op_that_is_not_there_has_level_minus_one() -> None:
    assert sort(graph(op("a")))["b"] == -1


def test_a_graph_without_ops_has_no_levels() -> None:
    assert len(sort(Graph.of([]))) == 0


def test_a_circle_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match="'a' waits for itself"):
        sort(graph(op("a", "b"), op("b", "a")))


def test_an_input_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match="'b' takes from 'gone'"):
        sort(graph(op("b", "gone")))


@pytest.mark.parametrize(("prefix", "frame"), [("while/", ""), ("while/", "ctx"), ("rnn/step/", "ctx")])
def test_a_while_loop_is_a_short_straight_path(prefix: str, frame: str) -> None:
    levels = sort(graph(*loop(prefix, frame)))

    path = ["start", f"{prefix}Enter", f"{prefix}Merge", f"{prefix}Switch", f"{prefix}Exit", "end"]
    assert [levels[name] for name in path] == [0, 1, 2, 3, 4, 5]
    assert levels[f"{prefix}body"] == levels[f"{prefix}LoopCond"] == levels[f"{prefix}NextIteration"] == -1


def test_frames_say_better_than_names_what_is_in_a_loop() -> None:
    levels = sort(graph(*loop("while/", "ctx"), op("while/limit", "start")))

    assert levels["while/limit"] == 1


@pytest.mark.parametrize("ops", [loop(), loop("rnn/", "ctx"), [op("w", kind="StatelessWhile")]])
def test_while_loops_are_seen(ops: list[Op]) -> None:
    assert has_loops(graph(*ops))
    assert not has_loops(chain(3))


# -- what does not run


def test_batch_normalizations_of_the_other_mode_are_inactive() -> None:
    norms = [
        op("train", "x", kind="FusedBatchNormV3", is_training=True),
        op("infer", "x", kind="FusedBatchNormV3", is_training=False),
        op("grad", "x", kind="FusedBatchNormGradV3", is_training=False),
    ]
    built = graph(op("x"), *norms)

    assert inactive_ops(built, sort(built)) == {"infer", "grad"}
    assert inactive_ops(built, sort(built), is_training=False) == {"train"}


def test_what_takes_only_from_inactive_ops_is_inactive_too() -> None:
    norm = op("norm", "x", kind="FusedBatchNorm", is_training=False)
    const = op("const", kind="Const")
    rest = [op("only", "norm", "const"), op("behind", "only"), op("both", "norm", "x"), op("end", "norm", kind="Merge")]
    built = graph(op("x"), norm, const, *rest)

    assert inactive_ops(built, sort(built)) == {"norm", "only", "behind"}


def test_the_inside_of_loops_is_inactive_but_not_its_ends() -> None:
    built = graph(*loop())

    assert inactive_ops(built, sort(built)) == {
        f"while/{name}" for name in ("Merge", "Less", "LoopCond", "Switch", "body", "NextIteration")
    }


@pytest.mark.parametrize(("is_training", "dead"), [(True, "infer"), (False, "train")])
def test_the_branch_of_the_learning_phase_that_is_not_taken_is_inactive(is_training: bool, dead: str) -> None:
    phase = op("keras_learning_phase", kind="PlaceholderWithDefault", dtype="bool", shape=())
    switch = op("switch", "x", "pred", kind="Switch", n=2)
    branches = [op("infer", "switch:0"), op("train", "switch:1"), op("merge", "infer", "train", kind="Merge", n=2)]
    built = graph(op("x"), phase, op("pred", "keras_learning_phase", kind="Identity"), switch, *branches)

    assert inactive_ops(built, sort(built), is_training=is_training, keras=True) == {dead}
    assert inactive_ops(built, sort(built), is_training=is_training) == frozenset()


def test_what_initializes_saves_and_restores_is_no_part_of_a_step() -> None:
    ops = [
        op("v", kind="VarHandleOp", dtype="resource"),
        op("start", kind="RandomUniform"),
        op("scaled", "start"),
        op("v/Assign", "v", "scaled", kind="AssignVariableOp"),
        op("init", "^v/Assign", kind="NoOp"),
        op("read", "v", kind="ReadVariableOp"),
        op("save", "read", kind="SaveV2"),
        op("restore", kind="RestoreV2"),
        op("restored", "restore", kind="Identity"),
        op("back", "v", "restored", kind="AssignVariableOp"),
        op("step", "read"),
        op("assign", "v", "step", kind="AssignVariableOp"),
    ]
    built = graph(*ops)

    assert inactive_ops(built, sort(built)) == {"start", "scaled", "v/Assign", "save", "restore", "restored", "back"}


def test_what_runs_only_in_a_branch_is_conditional_until_the_merge() -> None:
    ops = [
        op("x"),
        op("p", dtype="bool"),
        op("switch", "x", "p", kind="Switch", n=2),
        op("yes", "switch:1"),
        op("inner", "yes", "p", kind="Switch", n=2),
        op("deep", "inner:1"),
        op("inner_merge", "deep", "inner:0", kind="Merge", n=2),
        op("waits", "^yes"),
        op("merge", "switch:0", "inner_merge", kind="Merge", n=2),
        op("after", "merge"),
    ]
    built = graph(*ops)

    assert conditional_ops(built, sort(built)) == {"yes", "inner", "deep", "inner_merge", "waits"}


def test_what_is_behind_a_loop_always_runs() -> None:
    built = graph(*loop())

    assert "end" not in conditional_ops(built, sort(built))
