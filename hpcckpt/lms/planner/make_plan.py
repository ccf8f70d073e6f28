"""From a graph and the user's options to a plan, with log lines. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property

from hpcckpt.errors import MemoryBudgetError, OptionError
from hpcckpt.lms import messages
from hpcckpt.lms.graph.graph import Graph, Output
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.graph.levels import Levels, has_loops
from hpcckpt.lms.messages import LmsLog
from hpcckpt.lms.planner.cost_planner import plan_by_cost, simulated
from hpcckpt.lms.planner.distance_planner import LevelLayout, plan_on, serialize_levels
from hpcckpt.lms.planner.kernel_scratch import scratch_nbytes
from hpcckpt.lms.planner.memory_limits import Limit, budget_for, host_limit, memory_ratio, refused, tensor_bytes
from hpcckpt.lms.planner.parameter_search import is_wanted, search
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.planner.serialization import op_nbytes
from hpcckpt.lms.planner.simulate import simulate
from hpcckpt.lms.planner.swap_timeline import TierBandwidth
from hpcckpt.lms.report.report import Memory
from hpcckpt.lms.settings import LmsSettings, Parameters, Planner


@dataclass(frozen=True)
class PlanRequest:
    """The input of a planner and its limits.

    Attributes
    ----------
    target : int or None
        The memory of a step: the budget at first, less once a step used more than was simulated.
    limit : Limit or None
        The available memory, if no budget was given.
    nbytes_learned : int
        Size of the trainable variables; they count against a device's limit.
    bandwidth : mapping of str to float
        Bytes per second that the tier writes and reads, as measured on rank 0.
    is_on_host : bool
        Whether the budget is for memory of the process and not of a device.
    keeps_freed : bool
        Whether TensorFlow's allocator keeps freed memory, on rank 0.
    unfolds_images : bool
        Whether gradients of convolutions have scratch memory (`kernel_scratch`), on rank 0.
    """

    context: GraphContext
    settings: LmsSettings
    target: int | None = None
    limit: Limit | None = None
    nbytes_learned: int = 0
    bandwidth: Mapping[str, float] = field(default_factory=dict)
    is_on_host: bool = False
    keeps_freed: bool = False
    unfolds_images: bool = False

    @cached_property
    def scratch(self) -> int:
        """The bytes reserved for scratch memory of kernels."""
        return scratch_nbytes(self.context) if self.has_overhead and self.unfolds_images else 0

    @property
    def has_overhead(self) -> bool:
        """Whether a part of the budget is reserved for memory other than tensors."""
        return self.is_on_host and self.settings.memory_budget is not None


@dataclass(frozen=True)
class PlanResult:
    """A plan, with figures for reports.

    Attributes
    ----------
    budget : int or None
        The simulated limit of a step; a run will verify it.
    is_necessary : bool
        Whether anything is swapped or recomputed.
    is_found : bool
        Whether the parameters were searched for.
    can_be_tightened : bool
        Whether another plan with less memory can be requested.
    target : int or None
        The planned limit: less than the budget, once a step used more than was simulated.
    needs, least : int or None
        The memory that this plan needs, and the least that any plan of this graph needs.
    failure : str
        Why there is no plan, if the planner failed.
    """

    plan: Plan
    levels: Levels
    budget: int | None = None
    is_necessary: bool = True
    is_found: bool = False
    can_be_tightened: bool = False
    memory: Memory = field(default_factory=Memory)
    target: int | None = None
    needs: int | None = None
    least: int | None = None
    failure: str = ""


def planner_of(settings: LmsSettings, *, has_device_limit: bool, is_tuned_by_hand: bool = False) -> Planner:
    """Return which planner to use.

    The requested one; the distance planner if one of its parameters is given, or memory for its search;
    the cost planner if there is a budget, or a device to take it from; else the search of the original.
    """
    if settings.planner is not None:
        return settings.planner
    if settings.chosen or is_tuned_by_hand:
        return "distance"
    return "cost" if settings.memory_budget is not None or has_device_limit else "distance"


def describe(context: GraphContext, nbytes_learned: int, lms_log: LmsLog, *, is_gpu: bool = False) -> None:
    """Log a description of the graph, with the messages of TFLMSv2."""
    for line in messages.size_lines(len(context.graph.ops), context.graph.n_edges, nbytes_learned):
        lms_log.info(line)
    sizes = {name: op_nbytes(context, name) for name in context.graph.ops if context.runs_on_device(name)}
    if sizes:
        name = max(sorted(sizes), key=sizes.__getitem__)
        lms_log.info(messages.largest_line(name, sizes[name], is_gpu=is_gpu))
    if has_loops(context.graph):
        lms_log.info(messages.WHILE_LOOP)
    lms_log.info(f"Original categorized topological sort has {len(context.levels)} levels.")


def make(task: PlanRequest, planner: Planner, lms_log: LmsLog) -> PlanResult:
    """Return a plan, and log how it was made.

    Raises
    ------
    OptionError
        If there is no batch size, a while loop, a filter that matches nothing, or a budget that no plan can meet.
    """
    for text in task.context.check_filters():
        lms_log.warn_once(text)
    return (_by_cost if planner == "cost" else _by_distance)(task, lms_log)


def _by_distance(task: PlanRequest, lms_log: LmsLog) -> PlanResult:
    context, settings = task.context, task.settings
    parameters = Parameters(**{each.name: getattr(settings, each.name) for each in fields(Parameters)})
    level_layout = _serialized_layout(context, settings, lms_log)
    if is_wanted(parameters):
        return _searched(task, level_layout, parameters, lms_log)
    plan = plan_on(level_layout, parameters)
    memory = Memory(
        simulate(context, level_layout.levels, Plan()).memory, simulate(context, level_layout.levels, plan).memory
    )
    return PlanResult(plan, level_layout.levels, settings.memory_budget, memory=memory)


def _serialized_layout(context: GraphContext, settings: LmsSettings, lms_log: LmsLog) -> LevelLayout:
    level_layout = serialize_levels(context, settings.serialization, settings.serialization_by_size)
    if settings.serialization_by_size:
        size = settings.serialization_by_size
        lms_log.info(f"Serialize topological sort levels consuming more than: {size} GiB", offset=2)
    if level_layout.serialized:
        lms_log.info(f"Serialize the topological sort for levels: {list(level_layout.serialized)}", offset=2)
        lms_log.info(f"New categorized topological sort has {len(level_layout.levels)} levels.", offset=2)
    return level_layout


def _searched(task: PlanRequest, level_layout: LevelLayout, parameters: Parameters, lms_log: LmsLog) -> PlanResult:
    """Find the parameters that are left open, as the original does: in the memory there is, but for a part."""
    lms_log.info(messages.SEARCHING)
    budget, ratio = _memory(task), memory_ratio()
    available = int(_target(task, budget) * ratio)
    lms_log.info(messages.available_line(available, ratio))
    found = search(level_layout, parameters, available)
    for each in found.sets:
        lms_log.info(messages.found_line(asdict(each)))
    memory = Memory(found.without.memory, found.trace.memory)
    if found.is_necessary and found.trace.host_peak > host_limit():
        lms_log.info(messages.host_warning(found.trace.host_peak), offset=2)
    return PlanResult(found.plan, level_layout.levels, budget, found.is_necessary, True, True, memory, task.target)


def _target(task: PlanRequest, budget: int) -> int:
    return budget if task.target is None else min(budget, task.target)


def _memory(task: PlanRequest) -> int:
    """Return what a step may take: the budget, or what is left of a device's memory by the variables."""
    if task.settings.memory_budget is not None:
        return task.settings.memory_budget
    assert task.limit is not None
    return task.limit.nbytes - (task.nbytes_learned if task.limit.is_device else 0)


def _by_cost(task: PlanRequest, _: LmsLog) -> PlanResult:
    context = task.context
    budget = _budget(task)
    target = None if budget is None else _target(task, budget)
    _check_batch_size(context)
    bandwidth = TierBandwidth(task.bandwidth["write"], task.bandwidth["read"])
    plan = _plan_by_cost(task, target, bandwidth)
    without = tuple(simulated(context, Plan()).memory)
    memory = Memory(without, tuple(simulated(context, plan).memory) if plan else without)
    needs = _needs(task, int(plan.parameters["peak_after"]))
    least = _needs(task, int(plan.parameters["floor"]))
    return PlanResult(
        plan, context.levels, budget, bool(plan), memory=memory, target=task.target, needs=needs, least=least,
        can_be_tightened=needs > least,
    )  # fmt: skip


def _plan_by_cost(task: PlanRequest, target: int | None, bandwidth: TierBandwidth) -> Plan:
    recompute, release = task.settings.recompute, task.is_on_host and task.keeps_freed
    if target is None or not task.has_overhead:
        return plan_by_cost(task.context, target, bandwidth, recompute=recompute, release=release)
    try:
        return plan_by_cost(
            task.context, max(0, tensor_bytes(target - task.scratch)), bandwidth, recompute=recompute, release=release
        )  # fmt: skip
    except MemoryBudgetError as error:
        raise refused(target, _needs(task, error.nearest), len(task.context.loops)) from None


def _needs(task: PlanRequest, nbytes: int) -> int:
    """Return the memory budget that tensors of this size need."""
    return budget_for(nbytes) + task.scratch if task.has_overhead else nbytes


def _budget(task: PlanRequest) -> int | None:
    """Return what the cost planner has to keep; `None` is as little as can be, at a bounded loss of time."""
    if task.settings.memory_budget is not None:
        return task.settings.memory_budget
    has_device = task.limit is not None and task.limit.is_device
    return int(_memory(task) * memory_ratio()) if has_device else None


def _check_batch_size(context: GraphContext) -> None:
    """See that sizes can be known: the original's search refuses, and so does this."""
    shapes = [output.shape for _, output in _sources(context.graph)]
    if context.batch_size is None and any(shape and shape[0] is None for shape in shapes):
        raise OptionError(messages.NO_BATCH_SIZE)


def _sources(graph: Graph) -> list[tuple[str, Output]]:
    """Return what comes into a graph from outside."""
    ops = [op for op in graph.ops.values() if op.type.startswith(("Placeholder", "IteratorGetNext", "_Arg"))]
    return [(op.name, output) for op in ops for output in op.outputs]
