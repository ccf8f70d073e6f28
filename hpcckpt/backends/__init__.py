"""Storage backends.

`registry`, `base`
    Which backends there are; the contract.
`rankfile`, `hdf5`, `plugin`
    The built-in backends.
`entries`, `spans`, `data_files`
    Shared by backends: records of tensors, reading parts of them, writing data.
`reusing`, `incremental`
    Files of retired steps that are written over; tensors that did not change.
"""
