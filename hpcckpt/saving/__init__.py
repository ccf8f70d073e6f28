"""A save.

`save`
    Its phases, in order: plan, snapshot, write, commit, report.
`save_queue`
    The saves of a checkpointer: staging slots, saves in flight, and waits for them.
`write`, `snapshot`
    What each rank does: take a snapshot of the state, write its part of it.
`outcome`, `node_local`
    Root commits or aborts, and each rank applies root's outcome; the same on the disks of several nodes.
`pending`
    The data of a save in flight.
"""
