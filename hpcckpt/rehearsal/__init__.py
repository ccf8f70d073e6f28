"""A rehearsal of the worst: a training run straight through, and again killed and resumed; and what came out of both.

`rehearse` tells the story; `Settings` says what to run, `Rehearsal` what was seen.  It needs no MPI, no framework and
no cooperation of the training but one: a run directory that it is told.
"""

from __future__ import annotations

from hpcckpt.rehearsal.story import rehearse
from hpcckpt.rehearsal.words import Compared, Kill, Rehearsal, Run, Settings

__all__ = ["Compared", "Kill", "Rehearsal", "Run", "Settings", "rehearse"]
