"""The way for sessions and Estimators: a `tf.Graph` is planned and edited before a session runs it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from hpcckpt.lms import messages
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import histogram
from hpcckpt.lms.graph.tf_import import from_graph, nbytes_learned
from hpcckpt.lms.planner.debug_lines import debug_lines
from hpcckpt.lms.planner.make_plan import PlanResult, describe
from hpcckpt.lms.planner.memory_limits import refused
from hpcckpt.lms.planner.side_effects import without_side_effects
from hpcckpt.lms.planner.verify_step import OUT_OF_MEMORY, Measured
from hpcckpt.lms.report.report import write_histogram
from hpcckpt.lms.runtime.apply_to_graph import SwapOps, apply, check_editable, is_edited
from hpcckpt.lms.runtime.collective_plan import (
    add_trial,
    decide,
    decide_again,
    gpu_name,
    graph_context_of,
    make_tier_ready,
)
from hpcckpt.lms.runtime.options import LmsOptions, LmsOutcome
from hpcckpt.lms.runtime.trial_step import Trials, dry_step


def edit(options: LmsOptions, graph: Any) -> LmsOutcome:
    """Plan and edit a graph. Collective.

    Raises
    ------
    CodeError
        If the graph is finalized.
    """
    info = options.lms_log.info
    check_editable(graph)
    if is_edited(graph):
        info(messages.ALREADY)
        return LmsOutcome()
    info(messages.EDITING)
    start = time.perf_counter()
    context = graph_context_of(options, from_graph(graph))
    describe(context, nbytes_learned(graph), options.lms_log, is_gpu=gpu_name(options.settings) is not None)
    result, measured, n_attempts = _verified(options, graph, context)
    log_plan(options, context, result)
    if not result.is_necessary:
        return LmsOutcome("none" if result.failure else "off", _name(graph), context, result, measured, n_attempts)
    added = apply(graph, result.plan, swap_ops_of(options))
    info(f"Editing model for LMS, took: {(time.perf_counter() - start) * 1000} ms")
    return LmsOutcome("graph", _name(graph), context, result, measured, n_attempts, added)


def log_plan(options: LmsOptions, context: GraphContext, result: PlanResult) -> None:
    """Say what was decided, in the words of the original, and write its histogram if it is wanted."""
    info = options.lms_log.info
    if not result.is_necessary:
        if not result.failure:
            info(messages.NOT_NECESSARY)
        return
    plan = result.plan
    if plan.planner == "distance":
        info(messages.USES_FOUND if result.is_found else messages.USES_GIVEN)
        for line in messages.parameter_lines(dict(plan.parameters)):
            info(line, offset=2)
    else:
        info(messages.USES_GIVEN)
        for line in messages.planned_lines(plan.parameters, result.budget, result.needs):
            info(line, offset=2)
    if options.autotune_plot and options.comm.is_root:
        info(f"A histogram of distances was written to {write_histogram(histogram(context.graph, context.levels))}")
    if options.settings.debug:
        for each in debug_lines(context.graph, result.levels, plan):
            info(*each)
    info(messages.added_line(len(plan.swap_outs), plan.nbytes_out, len(plan.swap_ins), plan.nbytes_in))


def _name(graph: Any) -> str:
    return f"a graph of {len(graph.get_operations())} ops"


def swap_ops_of(options: LmsOptions) -> SwapOps:
    """Return how tensors are moved: by native ops on the CPU, by identities on the host for a device."""
    settings = options.settings
    if gpu_name(settings) is not None:
        return _through_host(settings.cpu_device)
    return _through_tier(settings.cpu_device, make_tier_ready(options))


def _through_host(device: str) -> SwapOps:
    import tensorflow as tf

    def move(tensor: Any, name: str) -> Any:
        with tf.device(device):
            return tf.identity(tensor, name=name)

    return SwapOps(move, lambda tensor, name, _: move(tensor, name))


def _through_tier(device: str, raw: Any) -> SwapOps:
    import tensorflow as tf

    def out(tensor: Any, name: str) -> Any:
        with tf.device(device):
            return raw.hpcckpt_swap_out(tensor, name=name)

    def back(handle: Any, name: str, dtype: Any) -> Any:
        with tf.device(device):
            return raw.hpcckpt_swap_in(handle, T=dtype, name=name)

    def release(tensor: Any, name: str) -> Any:
        with tf.device(device):
            return raw.hpcckpt_release(tensor, name=name)

    return SwapOps(out, back, release)


# -- a plan that was verified


def _verified(options: LmsOptions, graph: Any, context: GraphContext) -> tuple[PlanResult, Measured | None, int]:
    """Return a plan whose step, run on a copy of the graph, kept the budget; else the best one that was tried.

    Raises
    ------
    MemoryBudgetError
        If a memory budget was given, and no plan that was tried kept it.
    """
    learned = nbytes_learned(graph)
    trials, level = Trials(), None
    result: PlanResult | None = decide(options, context, learned)
    while result is not None:
        result = replace(result, plan=without_side_effects(result.plan, context.graph))
        measured = _dry(options, graph, result, level)
        if measured is None:
            return result, None, len(trials.all) + 1
        level = measured.level
        add_trial(options, trials, result, measured)
        result = decide_again(options, context, learned, trials)
    best = trials.best
    if best.result.budget is not None and best.peak > best.result.budget:
        _refuse_or_warn(options, best.peak, best.result.budget)
    return best.result, best.measured, len(trials.all)


def _refuse_or_warn(options: LmsOptions, peak: int, budget: int) -> None:
    if options.settings.memory_budget is not None and peak < OUT_OF_MEMORY:
        raise refused(budget, peak + peak // 20)
    options.lms_log.warn_once(messages.not_kept(peak, budget))


def _dry(options: LmsOptions, graph: Any, result: PlanResult, level: int | None) -> Measured | None:
    """Run one step on a copy of the graph, in a separate session: the user's variables are not touched."""
    if not options.settings.verify or result.budget is None:
        return None
    plan = result.plan if result.is_necessary else None
    outcome = dry_step(graph, plan, swap_ops_of(options), options.batch_size, gpu_name(options.settings), level)
    if outcome.assumed and level is None:
        options.lms_log.info(messages.ASSUMED.format(shapes=outcome.assumed))
    whys = [why for why in options.comm.distinct([outcome.why_not]) if why]
    if whys:
        options.lms_log.info(messages.NOT_VERIFIED.format(why=whys[0]))
        return None
    return outcome.measured
