"""Configurations: read, checked, compared, and built.

`read`, `hjson_decode`, `plain_values`, `overrides`
    From a file and ``--set`` to plain values.
`schema`, `cycles`, `factory_parse`, `factories`
    The keys; the train cycles; what is to be built.
`validate`, `signatures`, `argument_types`
    Names and arguments, checked before anything is built.
`weights_cache`
    Where Keras keeps weights that it downloads.
`config_diff`, `reference_docs`
    What differs between two configurations; the tables of the documentation.
"""
