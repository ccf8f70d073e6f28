"""The user's state as named leaves, and leaves back to state.

`tree`, `walk`
    One walk over a state, with a visitor for each class of values.
`leaves`, `arrays`, `state_dict`
    Tensors and small objects; arrays and JSON; what ``state_dict()`` returns.
`packing`
    Arrays and JSON as one line of bytes.
`tf_variables`, `tf_hold`, `random_streams`
    Variables of TensorFlow, their buffers held without a copy, random streams of a rank.
"""
