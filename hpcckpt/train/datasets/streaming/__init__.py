"""Images that are read from storage as they are needed: what data sets of any size share.

`streams`   datasets of examples that can be read in any order, by their number
`decoding`  PNG and JPEG to bytes of one size, checked
`verifying` which examples cannot be decoded

The order of an epoch is computed: example number *i* of the order is ``index_shuffle(i)``. So nothing is buffered to be
shuffled, a position is one number, and a resumed run reads nothing of what came before it.
"""
