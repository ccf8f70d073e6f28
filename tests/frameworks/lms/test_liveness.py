"""The exact simulator: memory while each op of an order runs."""

from __future__ import annotations

import itertools

import pytest

from hpcckpt.errors import StateError
from hpcckpt.lms.graph.graph import Use
from hpcckpt.lms.graph.liveness import liveness
from tests.support.lms.graphs import chain, graph, hourglass, op

pytestmark = pytest.mark.one_case

ONE = 4 * 8 * 4  # bytes of the tensors of `graphs`


def peaks(g, order):
    return [n // ONE for n in liveness(g, order).memory]


def test_outputs_are_there_beside_inputs_and_inputs_go_with_their_last_consumer():
    g = graph(
        op("a", kind="MatMul"),
        op("b", "a", kind="MatMul"),
        op("c", "b", kind="MatMul"),
        op("d", "a", "c", kind="MatMul"),
    )
    assert peaks(g, "abcd") == [1, 2, 3, 3]


def test_an_op_that_can_writes_over_an_input_that_ends_there():
    g = graph(op("a", kind="MatMul"), op("b", "a", kind="Relu"), op("c", "b", kind="MatMul"))
    assert peaks(g, "abc") == [1, 1, 2]


def test_nothing_is_written_over_that_is_still_needed():
    g = graph(op("a", kind="MatMul"), op("b", "a", kind="Relu"), op("c", "a", "b", kind="MatMul"))
    assert peaks(g, "abc") == [1, 2, 3]


def test_nothing_is_written_over_that_the_same_op_reads_twice():
    g = graph(op("a", kind="MatMul"), op("b", "a", "a", kind="Mul"))
    assert peaks(g, "ab") == [1, 2]


def test_an_input_of_another_type_is_not_written_over():
    g = graph(op("a", kind="MatMul", dtype="int32"), op("b", "a", kind="Relu", dtype="float"))
    assert peaks(g, "ab") == [1, 2]


def test_a_buffer_stays_until_the_last_holder_of_an_alias_is_done():
    g = graph(
        op("a", kind="MatMul"), op("r", "a", kind="Reshape", shape=(8, 4)), op("i", "r", kind="Identity", shape=(8, 4)),
        op("b", "a", kind="MatMul"), op("c", "b", kind="MatMul"), op("d", "i", "c", kind="MatMul"),
    )  # fmt: skip
    live = liveness(g, "aribcd")
    assert [n // ONE for n in live.memory] == [1, 1, 1, 2, 3, 3]
    assert live.buffers[0].root == Use("a", 0)
    assert live.buffers[0].uses == (0, 1, 2, 3, 5)


def test_what_the_caller_takes_is_there_to_the_end():
    g = graph(
        op("a", kind="MatMul"), op("out", "a", kind="_Retval", n=0), op("b", kind="MatMul"), op("c", "b", kind="MatMul")
    )
    assert peaks(g, ["a", "out", "b", "c"]) == [1, 1, 2, 3]


@pytest.mark.parametrize("type_", ["ReadVariableOp", "Const", "_Arg", "IteratorGetNext"])
def test_variables_constants_and_batches_are_not_the_steps_memory(type_):
    g = graph(op("a", kind=type_), op("b", "a", kind="MatMul"))
    assert peaks(g, "ab") == [0, 1]


def test_what_nobody_takes_is_there_while_it_is_made():
    g = graph(op("a", kind="MatMul", n=3), op("b", "a", kind="MatMul"))
    assert peaks(g, "ab") == [3, 2]


def test_an_unknown_batch_counts_as_the_batch_size():
    g = graph(op("a", kind="MatMul", shape=(None, 8)))
    assert liveness(g, "a", batch_size=16).peak == 16 * 8 * 4


def test_the_peak_and_what_makes_it():
    live = liveness(hourglass(4), ["f00", "f01", "f02", "f03", "b03", "b02", "b01", "b00"])
    assert live.peak == 4 * ONE
    assert live.order[live.peak_at] == "f03"
    assert {buffer.root.op for buffer in live.live_at(live.peak_at)} == {"f00", "f01", "f02", "f03"}


def test_the_largest_comes_first():
    g = graph(op("a", kind="MatMul"), op("b", kind="MatMul", shape=(64, 64)), op("c", "a", "b", kind="MatMul"))
    assert [buffer.root.op for buffer in liveness(g, "abc").live_at(2)] == ["b", "a", "c"]


def test_an_order_that_lacks_an_op_is_refused():
    with pytest.raises(StateError, match="l01"):
        liveness(chain(2), ["l00"])


def test_an_order_in_which_an_op_comes_before_what_it_takes_is_refused():
    with pytest.raises(StateError, match="l00"):
        liveness(chain(2), ["l01", "l00"])


def test_no_ops_take_no_memory():
    live = liveness(graph(), [])
    assert (live.peak, live.peak_at) == (0, -1)


def test_every_order_of_a_small_graph_agrees_with_counting_by_hand():
    g = graph(
        op("a", kind="MatMul"), op("b", kind="MatMul", shape=(8, 8)), op("c", "a", kind="MatMul"),
        op("d", "a", "b", kind="MatMul"), op("e", "c", "d", kind="MatMul"),
    )  # fmt: skip
    for order in itertools.permutations("abcde"):
        if all(order.index(use.op) < order.index(name) for name in order for use in g.ops[name].inputs):
            assert liveness(g, order).memory == _by_hand(g, order)


def _by_hand(g, order):
    found = []
    for place, _ in enumerate(order):
        there = 0
        for name in order[: place + 1]:
            last = max([order.index(name), *(order.index(slot.op) for slot in g.consumers.get(Use(name, 0), ()))])
            there += g.output(Use(name, 0)).nbytes() if last >= place else 0
        found.append(there)
    return tuple(found)
