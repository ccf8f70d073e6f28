"""What a run directory holds, as data; the specification is docs/format.md.

`layout`
    Names of files and directories.
`manifest`
    The JSON document that makes a directory a checkpoint.
`note`
    What files of other formats carry of a checkpoint.
"""
