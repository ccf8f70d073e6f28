"""Swap plans applied to graphs, functions and sessions of TensorFlow.

`tf_function`, `tf_session`, `keras_model`, `watched_function`
    The two paths, and what of Keras they use.
`collective_plan`, `trial_step`
    Rank 0 decides what is measured, every rank plans, and steps are tried.
`apply_to_graph`, `native_engine`, `saved_graphs`
    How a plan is applied.
`options`, `collect_report`, `process_stats`
    What was asked for, and what came of it.
"""
