# The documented path of hpcckpt.core.plan, for type checkers; hpcckpt.core.moved serves it.
from hpcckpt.core.plan import (
    BLOCK_BYTES as BLOCK_BYTES,
    DamagedBlock as DamagedBlock,
    Declaration as Declaration,
    FileRecord as FileRecord,
    FullPlan as FullPlan,
    Index as Index,
    SaveJob as SaveJob,
    StagingSlot as StagingSlot,
    StoredEntry as StoredEntry,
    WriteItem as WriteItem,
    WriteReport as WriteReport,
    block_count as block_count,
)
