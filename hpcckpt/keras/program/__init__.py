"""The program around a model: compiled steps, and the values and variables that they use.

`traced_steps`, `captured_variables`, `python_values`
    What the graphs of a step draw from, and use.
`declarations`
    What a program declares to be without state.
"""
