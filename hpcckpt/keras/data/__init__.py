"""The data of a ``fit``: where it is read, and how reading resumes there.

`data_source`, `position`, `skip_progress`
    Where ``fit`` reads its data from, its position, and how a resume reaches it.
`pipeline_state`, `iterator_state`, `shuffle_state`
    The state of a ``tf.data`` pipeline as bytes.
"""
