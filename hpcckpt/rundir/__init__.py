"""One run directory: its lock, its steps, and how a step is committed, kept and retired.

`run_directory`, `reports`
    A directory as a job uses it: lock, staging slots, commit, retention; what ranks report of a save.
`lock`, `workspace`
    One writing job at a time; one change of the directory at a time in a process.
`discovery`, `step_list`, `pins`, `damage_records`, `leftovers`
    What a directory holds: steps, pins, records of damage, and the rest.
`commit`, `renames`
    The commit protocol; its renames, which are undone if it fails.
`retention`
    Which steps are kept, and how others are retired.
`journal`, `atomic_files`
    What happened in the run; files that are whole or absent.
"""
