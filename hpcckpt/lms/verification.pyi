# The documented path of hpcckpt.lms.planner.verify_step, for type checkers; hpcckpt.core.moved serves it.
from hpcckpt.lms.planner.verify_step import (
    ATTEMPTS as ATTEMPTS,
    OUT_OF_MEMORY as OUT_OF_MEMORY,
    Measured as Measured,
    MemoryWatch as MemoryWatch,
    measured as measured,
    peak_since as peak_since,
    reset_peak as reset_peak,
    resident as resident,
    tightened as tightened,
)
