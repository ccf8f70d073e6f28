"""From a graph and what the user wants to a plan, with the lines that are said on the way. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from hpcckpt.errors import MemoryBudgetError, OptionError
from hpcckpt.lms import messages
from hpcckpt.lms.autotune import is_wanted, search
from hpcckpt.lms.cost import plan_by_cost, simulated
from hpcckpt.lms.distance import Ground, lay_out, plan_on
from hpcckpt.lms.graph import Graph, Output
from hpcckpt.lms.levels import Levels, has_loops
from hpcckpt.lms.limits import Limit, host_limit, memory_ratio
from hpcckpt.lms.messages import Speaker
from hpcckpt.lms.overhead import budget_for, refused, tensor_bytes
from hpcckpt.lms.parameters import Parameters
from hpcckpt.lms.plan import Plan
from hpcckpt.lms.report import Memory
from hpcckpt.lms.scene import Scene
from hpcckpt.lms.serialization import op_nbytes
from hpcckpt.lms.settings import Planner, Settings
from hpcckpt.lms.simulate import simulate
from hpcckpt.lms.timeline import Bandwidth


@dataclass(frozen=True)
class Task:
    """What is to be planned, with what.

    Attributes
    ----------
    target : int or None
        What a step may take: the budget at first, less once a step took more than was simulated.
    limit : Limit or None
        The memory that there is, where no budget was given.
    nbytes_learned : int
        What the trainable variables take; a device's limit has to hold them too.
    bandwidth : mapping of str to float
        Bytes per second that the tier writes and reads, as measured on rank 0.
    is_on_host : bool
        Whether a budget that was given is for memory of the process and not of a device.
    keeps_freed : bool
        Whether TensorFlow's allocator keeps what is freed, on rank 0.
    """

    scene: Scene
    settings: Settings
    target: int | None = None
    limit: Limit | None = None
    nbytes_learned: int = 0
    bandwidth: Mapping[str, float] = field(default_factory=dict)
    is_on_host: bool = False
    keeps_freed: bool = False

    @property
    def has_overhead(self) -> bool:
        """Whether a part of the budget is left for what is no tensor."""
        return self.is_on_host and self.settings.memory_budget is not None


@dataclass(frozen=True)
class Made:
    """A plan, and what reports say of it.

    Attributes
    ----------
    budget : int or None
        What the plan keeps a step to, by simulation; a step that is run will tell.
    is_necessary : bool
        Whether anything is done.
    is_found : bool
        Whether the parameters were searched for.
    can_be_tightened : bool
        Whether another plan can be asked for that takes less.
    target : int or None
        What it was planned for: less than the budget, once a step took more than was simulated.
    needs, least : int or None
        What the plan is expected to need of the budget, and the least that any plan of this graph needs.
    failure : str
        Why there is no plan, where the planner failed.
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


def planner_of(settings: Settings, *, has_device_limit: bool, is_tuned_by_hand: bool = False) -> Planner:
    """Return which planner plans.

    The one that is asked for; the distance planner if it is given one of its own parameters, or memory for its search;
    the cost planner if there is a budget, or a device to take it from; else the search of the original.
    """
    if settings.planner is not None:
        return settings.planner
    if settings.chosen or is_tuned_by_hand:
        return "distance"
    return "cost" if settings.memory_budget is not None or has_device_limit else "distance"


def describe(scene: Scene, nbytes_learned: int, speaker: Speaker, *, is_gpu: bool = False) -> None:
    """Say what the graph is like, in the words of the original."""
    for line in messages.size_lines(len(scene.graph.ops), scene.graph.n_edges, nbytes_learned):
        speaker.say(line)
    sizes = {name: op_nbytes(scene, name) for name in scene.graph.ops if scene.runs_on_device(name)}
    if sizes:
        name = max(sorted(sizes), key=sizes.__getitem__)
        speaker.say(messages.largest_line(name, sizes[name], is_gpu=is_gpu))
    if has_loops(scene.graph):
        speaker.say(messages.WHILE_LOOP)
    speaker.say(f"Original categorized topological sort has {len(scene.levels)} levels.")


def make(task: Task, planner: Planner, speaker: Speaker) -> Made:
    """Return a plan, and say how it came about.

    Raises
    ------
    OptionError
        If what is given does not do: no batch size, a while loop, a filter that matches nothing, a budget that no plan
        can meet.
    """
    for text in task.scene.check_filters():
        speaker.warn_once(text)
    return (_by_cost if planner == "cost" else _by_distance)(task, speaker)


def _by_distance(task: Task, speaker: Speaker) -> Made:
    scene, settings = task.scene, task.settings
    parameters = Parameters(**{each.name: getattr(settings, each.name) for each in fields(Parameters)})
    ground = _laid_out(scene, settings, speaker)
    if is_wanted(parameters):
        return _searched(task, ground, parameters, speaker)
    plan = plan_on(ground, parameters)
    memory = Memory(simulate(scene, ground.levels, Plan()).memory, simulate(scene, ground.levels, plan).memory)
    return Made(plan, ground.levels, settings.memory_budget, memory=memory)


def _laid_out(scene: Scene, settings: Settings, speaker: Speaker) -> Ground:
    ground = lay_out(scene, settings.serialization, settings.serialization_by_size)
    if settings.serialization_by_size:
        size = settings.serialization_by_size
        speaker.say(f"Serialize topological sort levels consuming more than: {size} GiB", offset=2)
    if ground.serialized:
        speaker.say(f"Serialize the topological sort for levels: {list(ground.serialized)}", offset=2)
        speaker.say(f"New categorized topological sort has {len(ground.levels)} levels.", offset=2)
    return ground


def _searched(task: Task, ground: Ground, parameters: Parameters, speaker: Speaker) -> Made:
    """Find the parameters that are left open, as the original does: in the memory there is, but for a part."""
    speaker.say(messages.SEARCHING)
    budget, ratio = _memory(task), memory_ratio()
    available = int(_target(task, budget) * ratio)
    speaker.say(messages.available_line(available, ratio))
    found = search(ground, parameters, available)
    for each in found.sets:
        speaker.say(messages.found_line(asdict(each)))
    memory = Memory(found.without.memory, found.trace.memory)
    if found.is_necessary and found.trace.host_peak > host_limit():
        speaker.say(messages.host_warning(found.trace.host_peak), offset=2)
    return Made(found.plan, ground.levels, budget, found.is_necessary, True, True, memory, task.target)


def _target(task: Task, budget: int) -> int:
    return budget if task.target is None else min(budget, task.target)


def _memory(task: Task) -> int:
    """Return what a step may take: the budget, or what is left of a device's memory by the variables."""
    if task.settings.memory_budget is not None:
        return task.settings.memory_budget
    assert task.limit is not None
    return task.limit.nbytes - (task.nbytes_learned if task.limit.is_device else 0)


def _by_cost(task: Task, _: Speaker) -> Made:
    scene = task.scene
    budget = _budget(task)
    target = None if budget is None else _target(task, budget)
    _check_batch_size(scene)
    bandwidth = Bandwidth(task.bandwidth["write"], task.bandwidth["read"])
    plan = _plan_by_cost(task, target, bandwidth)
    without = tuple(simulated(scene, Plan()).memory)
    memory = Memory(without, tuple(simulated(scene, plan).memory) if plan else without)
    needs = _needs(task, int(plan.parameters["peak_after"]))
    least = _needs(task, int(plan.parameters["floor"]))
    return Made(
        plan, scene.levels, budget, bool(plan), memory=memory, target=task.target, needs=needs, least=least,
        can_be_tightened=needs > least,
    )  # fmt: skip


def _plan_by_cost(task: Task, target: int | None, bandwidth: Bandwidth) -> Plan:
    recompute, release = task.settings.recompute, task.is_on_host and task.keeps_freed
    if target is None or not task.has_overhead:
        return plan_by_cost(task.scene, target, bandwidth, recompute=recompute, release=release)
    try:
        return plan_by_cost(
            task.scene, max(0, tensor_bytes(target)), bandwidth, recompute=recompute, release=release
        )  # fmt: skip
    except MemoryBudgetError as error:
        raise refused(target, budget_for(error.nearest), len(task.scene.loops)) from None


def _needs(task: Task, nbytes: int) -> int:
    """Return the memory budget that tensors of this size need."""
    return budget_for(nbytes) if task.has_overhead else nbytes


def _budget(task: Task) -> int | None:
    """Return what the cost planner has to keep; `None` is as little as can be, at a bounded loss of time."""
    if task.settings.memory_budget is not None:
        return task.settings.memory_budget
    has_device = task.limit is not None and task.limit.is_device
    return int(_memory(task) * memory_ratio()) if has_device else None


def _check_batch_size(scene: Scene) -> None:
    """See that sizes can be known: the original's search refuses, and so does this."""
    if scene.batch_size is None and any(_is_unknown(output.shape) for _, output in _sources(scene.graph)):
        raise OptionError(messages.NO_BATCH_SIZE)


def _is_unknown(shape: tuple[int | None, ...] | None) -> bool:
    return bool(shape) and shape[0] is None  # type: ignore[index]


def _sources(graph: Graph) -> list[tuple[str, Output]]:
    """Return what comes into a graph from outside."""
    ops = [op for op in graph.ops.values() if op.type.startswith(("Placeholder", "IteratorGetNext", "_Arg"))]
    return [(op.name, output) for op in ops for output in op.outputs]
