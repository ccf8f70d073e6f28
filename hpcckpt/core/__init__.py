"""Types and functions that all layers share: no MPI, no framework, no run directory.

`tensors`, `plan`, `dtypes`
    What a tensor is, and what each rank will write and has written.
`options`, `results`
    Options of a checkpointer; what saves and restores return.
`files`, `private_dirs`, `mounts`, `std_streams`
    The operating system: files, directories of one user, file systems, standard streams.
`threads`
    Work that a few threads share.
`units`, `durations`
    Sizes and times as people write them.
`failpoints`
    Named phases of saving and restoring, for fault injection.
`weak`
    Tables of objects that are forgotten with their last user.
`lazy`, `moved`
    Names that are loaded on first use; module paths of earlier releases.
"""
