"""What a step takes on the host beside its tensors: the part of a memory budget that plans leave free. Pure.

A first step also takes memory for kernels and the code that oneDNN generates for them, for buffers of threads, and for
small blocks that malloc keeps. None of it is known before, so a part of each budget is kept for it. The two figures
were chosen from measured steps (``bench/lms_budgets.py``).
"""

from __future__ import annotations

from hpcckpt.errors import MemoryBudgetError
from hpcckpt.units import nbytes_text, nbytes_text_up

FIXED = 12 << 20
SHARE = 0.16


def tensor_bytes(budget: int) -> int:
    """Return what the tensors of a step may take within a budget; not above 0 if the budget is too small for any."""
    return int((budget - FIXED) / (1 + SHARE))


def refused(budget: int, nearest: int, n_in_loops: int = 0) -> MemoryBudgetError:
    """Return the error that names the nearest budget, rounded up, so that it can be given as it is written."""
    loops = f" ({n_in_loops} operations are inside while loops, which are not swapped)" if n_in_loops else ""
    error = MemoryBudgetError(
        f"memory_budget: {nbytes_text(budget)} cannot be kept by this graph, whatever is swapped{loops}; the nearest "
        f"budget that can be kept is {nbytes_text_up(nearest)}: give that, or use a smaller batch"
    )
    error.nearest = nearest
    return error


def budget_for(nbytes: int) -> int:
    """Return the least budget within which tensors may take this much."""
    budget = FIXED + int(nbytes * (1 + SHARE))
    while tensor_bytes(budget) < nbytes:
        budget += 1
    return budget
