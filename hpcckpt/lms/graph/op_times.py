"""How long ops take: measured, or estimated from what they compute and move. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcckpt.lms.graph.graph import Graph, Op, Output

_CONVOLUTIONS = (
    "Conv2D",
    "_FusedConv2D",
    "Conv3D",
    "_FusedConv3D",
    "DepthwiseConv2dNative",
    "_FusedDepthwiseConv2dNative",
)
_INPUT_GRADIENTS = ("BackpropInput", "BackpropInputV2")
_FILTER_GRADIENTS = ("BackpropFilter", "BackpropFilterV2")
_PRODUCTS = frozenset({"MatMul", "_FusedMatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "SparseMatMul"})
_PASSES = {"FusedBatchNorm": 3, "FusedBatchNormGrad": 4, "Softmax": 3, "LogSoftmax": 3, "MaxPool": 3, "MaxPoolGrad": 3}


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine computes and moves in a second; the defaults are those of two cores of a server."""

    flops: float = 1.3e11
    nbytes: float = 8e9
    start_ns: int = 20_000
    """What an op takes that computes next to nothing."""


def op_time_ns(graph: Graph, op: Op, rates: Rates, batch_size: int | None = None) -> int:
    """Return how long an op takes: what was measured, else the longer of computing and of moving its tensors."""
    if op.cost_ns:
        return op.cost_ns
    inputs = [graph.output(use) for use in op.inputs]
    moved = sum(output.nbytes(batch_size) for output in (*inputs, *op.outputs))
    computing = n_flops(op, inputs, batch_size) / rates.flops
    moving = moved * _n_passes(op) / rates.nbytes
    return rates.start_ns + int(1e9 * max(computing, moving))


def n_flops(op: Op, inputs: list[Output], batch_size: int | None = None) -> float:
    """Return how many floating-point operations a product or a convolution has; 0 for what only passes over tensors."""
    if op.type in _PRODUCTS and len(inputs) >= 2:
        return _of_product(op, inputs, batch_size)
    if op.type.endswith(_FILTER_GRADIENTS) and len(inputs) >= 3:
        return _of_convolution(inputs[2], op.outputs[0], op.type, batch_size)
    if op.type.endswith(_INPUT_GRADIENTS) and len(inputs) >= 3:
        return _of_convolution(inputs[2], inputs[1], op.type, batch_size)
    if op.type in _CONVOLUTIONS and len(inputs) >= 2:
        return _of_convolution(op.outputs[0], inputs[1], op.type, batch_size)
    return 0.0


def _elements(output: Output, batch_size: int | None) -> float:
    shape = output.shape or ()
    return math.prod(float((batch_size or 1) if dim is None else dim) for dim in shape)


def _of_product(op: Op, inputs: list[Output], batch_size: int | None) -> float:
    """Two for each of m * k * n: the root of the product of the three sizes, which transposing does not change."""
    left, right, out = (_elements(each, batch_size) for each in (inputs[0], inputs[1], op.outputs[0]))
    batch = math.prod(float(dim or batch_size or 1) for dim in (op.outputs[0].shape or ())[:-2])
    return 2.0 * math.sqrt(left * right * out / max(batch, 1.0))


def _of_convolution(out: Output, kernel: Output, type_: str, batch_size: int | None) -> float:
    """Two for each element of the kernel that each output element is made with; NHWC is assumed."""
    channels_out = (kernel.shape or (1,))[-1] or 1
    if "Depthwise" in type_:
        channels_out = (kernel.shape or (1, 1))[-1] * (kernel.shape or (1, 1))[-2]  # type: ignore[operator]
    return 2.0 * _elements(out, batch_size) * _elements(kernel, batch_size) / max(channels_out, 1)


def _n_passes(op: Op) -> float:
    for prefix in sorted(_PASSES, key=len, reverse=True):
        if op.type.startswith(prefix):
            return _PASSES[prefix] / 2
    return 1.0
