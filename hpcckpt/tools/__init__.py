"""What the command line does, as a library.

`inspect`, `diff`
    Values and bytes of a checkpoint; what differs between two.
`prune`, `repair`, `reshard`
    Changes of a run directory.
`convert`
    To other formats, and from them.
`report`, `doctor`, `verify_resume`
    What became of a run; what is wrong with an installation; whether a training resumes exactly.
"""
