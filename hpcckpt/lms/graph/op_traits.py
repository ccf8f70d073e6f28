"""What the cost planner knows of types of ops: who writes over an input, who is cheap, who puts out what is not his."""

from __future__ import annotations

from collections.abc import Mapping

from hpcckpt.lms.graph.filters import puts_out_references
from hpcckpt.lms.graph.graph import Op
from hpcckpt.lms.graph.levels import ENTER, EXIT, MERGE, NEXT_ITERATION

_ONE_INPUT = (
    "Abs BiasAdd ClipByValue Elu Erf Erfc Exp Expm1 FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 LeakyRelu Log "
    "Log1p LogSoftmax Neg OnesLike Reciprocal Relu Relu6 Rsqrt Selu Sigmoid Sign Softmax Softplus Softsign Sqrt "
    "Square Tanh ZerosLike"
)
_TWO_INPUTS = (
    "Add AddV2 Div DivNoNan EluGrad InvGrad LeakyReluGrad Maximum Minimum Mul MulNoNan RealDiv Relu6Grad ReluGrad "
    "RsqrtGrad SeluGrad SigmoidGrad SoftplusGrad SqrtGrad SquaredDifference Sub TanhGrad"
)
IN_PLACE: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(_ONE_INPUT.split(), (0,)),
    **dict.fromkeys(_TWO_INPUTS.split(), (0, 1)),
    **dict.fromkeys(("AddN", "AccumulateNV2"), (0, 1, 2, 3, 4, 5, 6, 7)),
    **dict.fromkeys(("Select", "SelectV2"), (1, 2)),
    **dict.fromkeys(sorted(ENTER | EXIT | MERGE | NEXT_ITERATION), (0,)),
}
"""Types whose kernels may put output 0 into the buffer of an input of the same size, and which inputs."""

CHEAP = frozenset(
    (
        f"{_ONE_INPUT} {_TWO_INPUTS} _FusedBatchNormEx AddN BroadcastTo Cast ConcatV2 Equal Fill GatherV2 Greater "
        "GreaterEqual Less LessEqual LogicalAnd LogicalNot LogicalOr MaxPool Mean NotEqual OneHot Pad PadV2 Pow Select "
        "SelectV2 Slice Split SplitV StridedSlice Sum Tile Transpose"
    ).split()
)
"""Types that read and write their tensors a few times and no more: what they put out can be had again for little."""

_LENT = frozenset({"IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional", "OptionalGetValue"})
HELD_BY_CALLER = frozenset({"_Retval", "_DeviceRetval"})


def is_resident(op: Op) -> bool:
    """Return True if an op's output is memory outside of the step: swapping it frees nothing."""
    return op.type in _LENT or puts_out_references(op)
