"""Models, layers and optimizers as named weights.

`state`
    The adapter that a state tree calls.
`layers`, `optimizers`, `naming`
    Weights and variables of optimizers, by names that are the same in every process.
`layer_state`, `finalize`
    State of layers that is in no weight, and what layers derive from weights that were restored.
`batch_norm`
    Weights that training changes but does not average over ranks.
"""
