"""A restore, and reading checkpoints without a state.

`restore`
    Select, open, match, read, assign.
`reader`
    One step, open and checked.
`match`, `scalars`, `sequences`
    How a state and a step fit.
`read_plan`
    From a wanted box of a tensor to bytes of files.
`segments`, `checkpoint_info`
    Tensors piece by piece; what a checkpoint holds, without its tensors.
"""
