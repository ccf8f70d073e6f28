"""Two tiers: steps are committed on scratch, and drained to the run directory in the background.

Scratch is a run directory like any other, with a lock, a commit protocol and retention.  All ranks see one directory
there, or those of each node see the one on the node's disk: then a step is at all nodes together, each has the files
that its ranks wrote, with the manifest (:mod:`hpcckpt.saving.node_local`).  One directory is the case of one node: the
lowest rank of a node leads it, and root leads all.  Before a step is committed on scratch, root moves aside in the run
directory what is newer, if the run went back to an older step.  After that:

    S1  (leaders)  pin the step on scratch, so that retention there keeps it until it is drained
    S2  (each)     when the outcome is known here, start the drain: two tasks of a second `BackgroundTasks`
    D1  (each)     on a thread: copy a share of the node's data files to ``.step-N.tmp-<save_id>`` in the run directory
    D2  (each)     sync what was written
    D3  (each)     on a thread, when all have: read a share back from storage, against the checksums of the save
    D4  (root)     on a thread: commit the step there (steps 4 to 6 of the commit protocol)
    D5  (leaders)  unpin the step on scratch; root also applies retention in the run directory
    D6  (each)     the outcome is known

Drains end in the order of the saves, one at a time.  Identity across the tiers is `save_id`, never the step number.
A step on scratch is valid only while the run directory has not continued without it.
"""

from hpcckpt.tiers.scratch_dir import OWNER_FILE, disown, find_nodes, find_scratch, scratch_directory
from hpcckpt.tiers.scratch_steps import valid_steps, whole_on
from hpcckpt.tiers.scratch_tier import ScratchTier

__all__ = [
    "OWNER_FILE",
    "PHASES",
    "ScratchTier",
    "disown",
    "find_nodes",
    "find_scratch",
    "scratch_directory",
    "valid_steps",
    "whole_on",
]

PHASES = ("drain-begun", "copy-piece", "copy-synced", "copy-verified", "drain-published")
"""Where a drain can be made to fail (:mod:`hpcckpt.core.failpoints`), beside the phases of the commit from 4 on."""
