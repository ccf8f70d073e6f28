"""A checkpoint copied to another run directory as it is: the same save, whole or absent there.

    1  (root)  take the lock of the destination, check which steps exist there, and the space
    2  (each)  copy its share of the pieces into ``.step-N.tmp-<save_id>``; what an earlier attempt has copied
               is compared with the source, and kept if it is equal
    3  (each)  sync what it wrote, drop it from memory, and read its share of the entries back from storage: every byte
               is compared with the checksum that it was saved with
    4  (root)  write and sync the manifest, rename, sync the parent: steps 4 to 6 of the commit protocol
               (:mod:`hpcckpt.rundir.commit`)

A copy that was interrupted leaves its directory, which no reader takes for a step, for the next attempt.  Tensors that
incremental steps share by hard links become plain files.
"""

from hpcckpt.tiers.copy.file_segments import Pace, Piece, Rules, copy_pieces, pieces_of, share, sync_files
from hpcckpt.tiers.copy.staging import commit_staged, staged_as, staging_of
from hpcckpt.tiers.copy.step import Copied, copy_step, planned
from hpcckpt.tiers.copy.verify import entries_of, verify_files

__all__ = [
    "PHASES",
    "Copied",
    "Pace",
    "Piece",
    "Rules",
    "commit_staged",
    "copy_pieces",
    "copy_step",
    "entries_of",
    "pieces_of",
    "planned",
    "share",
    "staged_as",
    "staging_of",
    "sync_files",
    "verify_files",
]

PHASES = ("copy-begun", "copy-piece", "copy-synced", "copy-verified")
"""Where a copy can be made to fail (:mod:`hpcckpt.core.failpoints`), beside the phases of the commit from 4 on."""
