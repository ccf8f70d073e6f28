"""Graphs of training steps, and what is derived from them. Pure, except for `tf_import`.

`tf_import`, `graph`, `graph_context`
    Graphs from TensorFlow, and what is known about one.
`levels`, `while_frames`, `activity`, `aliases`, `filters`, `liveness`, `op_times`, `op_traits`
    Order, loops, ops that run, shared memory, ops that may be changed, memory over time, and costs.
"""
