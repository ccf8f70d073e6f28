"""Scratch memory of kernels: what TensorFlow's own gradients of convolutions allocate beside their tensors. Pure.

Without oneDNN they unfold images into a matrix (im2col), as many at a time as fit into a working set: 30 MiB for images
and the size of the L3 cache for volumes, rounded up to a whole image.
Source: ``conv_grad_filter_ops.cc``, ``conv_grad_input_ops.h`` and ``conv_grad_ops_3d.cc`` of TensorFlow 2.15.
"""

from __future__ import annotations

import math
import os

from hpcckpt.lms.graph.graph import ITEM_BITS, Op, Output
from hpcckpt.lms.graph.graph_context import GraphContext

_WORKING_SET = 30 << 20
_FILTER_GRADIENTS = ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2")
_INPUT_GRADIENTS = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")


def scratch_nbytes(context: GraphContext) -> int:
    """Return the most that one op of a graph allocates for itself; a plan runs the large ops one after the other."""
    return max((_scratch(context, op) for op in context.graph.ops.values()), default=0)


def _scratch(context: GraphContext, op: Op) -> int:
    """Return the bytes of the matrix that a gradient unfolds its images into, or a bound; 0 for other ops."""
    if op.type in _FILTER_GRADIENTS:
        filters = op.outputs[0]
    elif op.type in _INPUT_GRADIENTS:
        filters = context.graph.output(op.inputs[1])
    else:
        return 0
    gradient = context.graph.output(op.inputs[2])
    working_set = _WORKING_SET if op.type.startswith("Conv2D") else max(_WORKING_SET, _l3_cache())
    sides, sizes = _sizes(filters), _sizes(gradient)
    if sides is None or sizes is None or gradient.dtype not in ITEM_BITS:
        return working_set
    batch = sizes[0] if gradient.shape and gradient.shape[0] else context.batch_size or 1
    n_pixels, depth, unfolded = math.prod(sizes[1:-1]), sides[-1], math.prod(sides[:-1])
    item = ITEM_BITS[gradient.dtype] // 8
    image = n_pixels * unfolded + n_pixels * depth + unfolded * depth
    n_images = min(batch, -(-(working_set // item) // max(image, 1)))
    return n_images * n_pixels * unfolded * item


def _sizes(output: Output) -> list[int] | None:
    return None if not output.shape else [1 if dim is None else dim for dim in output.shape]


def _l3_cache() -> int:
    """Return the size of the L3 cache in bytes, as the C library knows it; 0 if it does not."""
    name = "SC_LEVEL3_CACHE_SIZE"
    return max(0, os.sysconf(name)) if name in os.sysconf_names else 0
