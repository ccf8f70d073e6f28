"""Conversion of checkpoints to other formats, and of files of other formats to checkpoints.

`formats`, `detect`
    The formats, and which one a file has.
`export`, `write_npz`, `write_safetensors`, `write_torch`, `write_hdf5`, `places`
    From a checkpoint: choose, write beside the target, put in place.
`import_`, `contents`, `read_npz`, `read_safetensors`, `read_torch`, `read_hdf5`
    To a checkpoint, without running code of the file.
`result`
    What a conversion reports.
"""
