"""A run: its cycles, its directory, and what is recorded there.

`environment`, `run_context`, `run_cycles`
    From `Environment.run` to the cycles, one after another.
`resume_point`, `move_aside`, `ownership`, `run_state`, `run_directory`, `text_files`
    Where a run begins, and what its directory holds.
`build_cycle`, `seeding`, `auto_names`, `submodels`, `submodel_weights`, `weights`
    What a cycle is made of.
`log_callback`, `environment_info`, `lms_callback`
    What is recorded.
"""
