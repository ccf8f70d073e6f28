# The documented path of hpcckpt.core.tensors, for type checkers; hpcckpt.core.moved serves it.
from hpcckpt.core.tensors import (
    ITEMSIZE as ITEMSIZE,
    KINDS as KINDS,
    MAX_DIMS as MAX_DIMS,
    MAX_NBYTES as MAX_NBYTES,
    SAFETENSORS_CODES as SAFETENSORS_CODES,
    Extent as Extent,
    Kind as Kind,
    TensorSpec as TensorSpec,
    is_text as is_text,
    itemsize as itemsize,
    name_problem as name_problem,
)
