"""Times of ops that were not measured."""

from __future__ import annotations

import pytest

from hpcckpt.lms.graph.op_times import Rates, n_flops, op_time_ns
from tests.support.lms.graphs import graph, op

pytestmark = pytest.mark.one_case

IMAGE, KERNEL, OUT = (2, 8, 8, 3), (3, 3, 3, 16), (2, 8, 8, 16)
FLOPS = 2 * (2 * 8 * 8 * 16) * (3 * 3 * 3)


def flops(g, name, batch_size=None):
    return n_flops(g.ops[name], [g.output(use) for use in g.ops[name].inputs], batch_size)


def test_a_product_has_two_for_each_of_m_k_n():
    g = graph(op("a", shape=(6, 10)), op("b", shape=(10, 4)), op("c", "a", "b", kind="MatMul", shape=(6, 4)))
    assert flops(g, "c") == pytest.approx(2 * 6 * 10 * 4)


def test_products_of_batches_count_each():
    g = graph(
        op("a", shape=(5, 6, 10)), op("b", shape=(5, 10, 4)), op("c", "a", "b", kind="BatchMatMulV2", shape=(5, 6, 4))
    )
    assert flops(g, "c") == pytest.approx(5 * 2 * 6 * 10 * 4)


@pytest.mark.parametrize(
    ("kind", "inputs", "shape"),
    [
        ("Conv2D", (IMAGE, KERNEL), OUT),
        ("_FusedConv2D", (IMAGE, KERNEL), OUT),
        ("Conv2DBackpropInput", ((4,), KERNEL, OUT), IMAGE),
        ("Conv2DBackpropFilter", (IMAGE, (4,), OUT), KERNEL),
    ],
)
def test_a_convolution_and_its_gradients_have_the_same(kind, inputs, shape):
    fed = [op(f"i{number}", shape=each) for number, each in enumerate(inputs)]
    g = graph(*fed, op("c", *(each.name for each in fed), kind=kind, shape=shape))
    assert flops(g, "c") == pytest.approx(FLOPS)


def test_an_unknown_batch_counts_as_the_batch_size():
    fed = [op("x", shape=(None, 8, 8, 3)), op("k", shape=KERNEL)]
    g = graph(*fed, op("c", "x", "k", kind="Conv2D", shape=(None, 8, 8, 16)))
    assert flops(g, "c", 2) == pytest.approx(FLOPS)


def test_what_passes_over_tensors_takes_as_long_as_moving_them():
    g = graph(op("a", shape=(1000,)), op("b", "a", kind="Relu", shape=(1000,)))
    assert op_time_ns(g, g.ops["b"], Rates(1e9, 1e6, 0)) == 8_000_000


def test_what_was_measured_counts():
    g = graph(op("a", shape=(1000,), cost_ns=5))
    assert op_time_ns(g, g.ops["a"], Rates()) == 5
