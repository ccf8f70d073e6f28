"""Two tiers: steps commit on node-local scratch, and are drained to the run directory in the background.

Scratch is a run directory like any other, with a lock, a commit protocol and retention of its own.  What happens after
a step is committed there:

    S1  (root)  pin the step on scratch, so that retention there leaves it until it is home
    S2  (each)  when the outcome is known here, begin a drain: two matters of a second `Draining`
    D1  (each)  on a thread: copy a share of its data files to ``.step-N.tmp-<save_id>`` in the run directory
    D2  (each)  sync what was written
    D3  (each)  on a thread, when all have: read a share back from storage, against the checksums of the save
    D4  (root)  on a thread: publish the step there (steps 4 to 6 of the commit protocol)
    D5  (root)  take the pin away; then retention in the run directory
    D6  (each)  the outcome is known

Drains end in the order of the saves, one at a time.  Identity across the tiers is `save_id`, never the step number.
A step on scratch counts only while the run directory has not gone on without it.  Scratch may be the disks of several
nodes: see :mod:`hpcckpt.tiers.several`.
"""

from hpcckpt.tiers.behind import TierOptions, Tiers
from hpcckpt.tiers.counting import counting as counting_steps
from hpcckpt.tiers.counting import whole_on
from hpcckpt.tiers.place import MARK, check_scratch, disown, find_places, scratch_directory
from hpcckpt.tiers.several import TiersOfPlaces

__all__ = [
    "MARK",
    "PHASES",
    "TierOptions",
    "Tiers",
    "TiersOfPlaces",
    "check_scratch",
    "counting_steps",
    "disown",
    "find_places",
    "scratch_directory",
    "whole_on",
]

PHASES = ("drain-begun", "copy-piece", "copy-synced", "copy-verified", "drain-published")
"""Where a drain can be made to fail (:mod:`hpcckpt.phases`), beside the phases of the commit protocol from 4 on."""
