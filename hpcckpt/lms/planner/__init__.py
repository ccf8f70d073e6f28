"""Swap plans: which tensors leave memory, and when they return.

`make_plan`
    From a graph and settings to a plan.
`cost_planner`, `op_schedule`, `swap_candidates`, `recompute`, `swap_timeline`, `budget_search`, `build_plan`
    The cost planner, in the order in which it works.
`distance_planner`, `distance_candidates`, `swapin_triggers`, `acyclic_edges`, `serialization`
    The planner that is compatible with TFLMSv2.
`simulate`, `parameter_search`
    Its simulator, and the search of TFLMSv2.
`plan`, `edited_graph`, `node_names`, `releases`, `debug_lines`
    A plan, and the graph that it makes.
`memory_limits`, `kernel_scratch`, `verify_step`
    How much memory there is; what kernels take beside tensors; what a step really takes.
"""
