"""The search of TFLMSv2: the parameters that swap least and still fit, found by simulation. Pure.

1. If all three are open: simulate without swapping; if that fits, nothing is swapped.
2. The threshold: if the smallest does not fit, the next synchronous mode is tried, up to 3; else the largest that fits.
3. Ahead (asynchronous swap-ins only): the largest that fits, and that leaves each swap-in an op to wait for.
4. Groupby (the same): as many levels as there are, if that fits; else the first that fits of a bisection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from hpcckpt.errors import OptionError
from hpcckpt.lms import messages
from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.graph.levels import has_loops
from hpcckpt.lms.planner.distance_planner import LevelLayout, plan_on
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.planner.simulate import Trace, simulate
from hpcckpt.lms.settings import Parameters


@dataclass(frozen=True)
class SearchResult:
    """The result of the search.

    Attributes
    ----------
    is_necessary : bool
        Whether anything is to be swapped; if not, `plan` is empty.
    sets : tuple of Parameters
        Each set that fitted when it was found, in order; the last is `parameters`.
    without, trace : Trace
        The step as simulated without the plan, in as much memory as it takes, and with it.
    available : int
        The memory that was searched for, in bytes.
    n_simulations : int
        How many plans were tried.
    """

    is_necessary: bool
    parameters: Parameters
    plan: Plan
    sets: tuple[Parameters, ...]
    without: Trace
    trace: Trace
    available: int
    n_simulations: int


def is_wanted(parameters: Parameters) -> bool:
    """Return True if a parameter is to be searched for."""
    if parameters.swapout_threshold > 0 and parameters.is_in_synchronous:
        return False
    return -1 in (parameters.swapout_threshold, parameters.swapin_ahead, parameters.swapin_groupby)


def has_unknown_batch(graph: Graph, types: tuple[str, ...]) -> bool:
    """Return True if an op of these types (prefixes) has an output whose first dimension is unknown."""
    outputs = (output for op in graph.ops.values() if op.type.startswith(types) for output in op.outputs)
    return any(output.shape and output.shape[0] is None for output in outputs)


def check(graph: Graph, batch_size: int | None) -> None:
    """Check that a graph can be simulated.

    Raises
    ------
    OptionError
        It has a while loop, or is fed batches of unknown size.
    """
    if has_loops(graph):
        raise OptionError(messages.WHILE_LOOP_AUTO)
    if batch_size is None and has_unknown_batch(graph, ("Placeholder",)):
        raise OptionError(messages.PLACEHOLDERS)
    if batch_size is None and has_unknown_batch(graph, ("IteratorGetNext", "_Arg", "_DeviceArg")):
        raise OptionError(messages.NO_BATCH_SIZE)


def search(level_layout: LevelLayout, parameters: Parameters, available: int) -> SearchResult:
    """Search the open parameters for `available` bytes.

    Raises
    ------
    OptionError
        The graph cannot be simulated, a filter matches nothing, or nothing fits.
    """
    check(level_layout.context.graph, level_layout.context.batch_size)
    level_layout.context.check_filters()
    return _Search(level_layout, parameters, available).run()


class _Search:
    """One search: what was asked, and what was tried so far."""

    def __init__(self, level_layout: LevelLayout, asked: Parameters, available: int) -> None:
        self._ground, self._asked, self._available = level_layout, asked, available
        self._tried: dict[Parameters, Trace] = {}
        self._sets: list[Parameters] = []

    def run(self) -> SearchResult:
        """Go through the steps."""
        asked = self._asked
        is_open = (asked.swapout_threshold, asked.swapin_ahead, asked.swapin_groupby) == (-1, -1, -1)
        if is_open and simulate(self._ground.context, self._ground.levels, Plan(), self._available).fits:
            return self._found(asked, Plan(), is_necessary=False)
        start = replace(
            asked,
            swapout_threshold=1 if asked.swapout_threshold == -1 else asked.swapout_threshold,
            swapin_ahead=1 if asked.swapin_ahead == -1 else asked.swapin_ahead,
            swapin_groupby=0 if asked.swapin_groupby == -1 else asked.swapin_groupby,
        )
        found = self._with_threshold(start)
        if not found.is_in_synchronous:
            found = self._with_groupby(self._with_ahead(found))
        return self._found(found, plan_on(self._ground, found), is_necessary=True)

    def _with_threshold(self, start: Parameters) -> Parameters:
        if self._asked.swapout_threshold != -1:
            return start
        modes = [replace(start, sync_mode=mode) for mode in range(start.sync_mode, 4)]
        fitting = next((each for each in modes if self._fits(each)), None)
        if fitting is None:
            raise OptionError(messages.NOT_FOUND.format("swapout_threshold"))
        return self._note(self._largest(self._n_levels, lambda value: replace(fitting, swapout_threshold=value)))

    def _with_ahead(self, start: Parameters) -> Parameters:
        if self._asked.swapin_ahead != -1:
            return start
        if not self._fits(replace(start, swapin_ahead=1)):
            raise OptionError(messages.NOT_FOUND.format("swapin_ahead"))
        most = self._shortest(start.swapout_threshold) - 2
        return self._note(self._largest(most, lambda value: replace(start, swapin_ahead=value)))

    def _with_groupby(self, start: Parameters) -> Parameters:
        if self._asked.swapin_groupby != -1:
            return start
        low, high = 0, self._n_levels
        value = high
        while not self._fits(found := replace(start, swapin_groupby=value)):
            if value == low:
                raise OptionError(messages.NOT_FOUND.format("swapin_groupby"))
            high, value = value, (low + value) // 2
        return self._note(found)

    @cached_property
    def _n_levels(self) -> int:
        return len(self._ground.levels)

    def _shortest(self, threshold: int) -> int:
        """Return the shortest distance over which anything is swapped."""
        distances = (level - each.level for each in self._ground.reaches for level, _ in each.consumers)
        return min((distance for distance in distances if distance > threshold), default=self._n_levels)

    def _largest(self, most: int, make: Callable[[int], Parameters]) -> Parameters:
        """Return the parameters with the largest value up to `most` that fits; 1 does."""
        low, high = 1, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(make(middle)) else (low, middle)
        return make(low)

    def _fits(self, parameters: Parameters) -> bool:
        if parameters not in self._tried:
            plan = plan_on(self._ground, parameters)
            self._tried[parameters] = simulate(self._ground.context, self._ground.levels, plan, self._available)
        return self._tried[parameters].fits

    def _note(self, parameters: Parameters) -> Parameters:
        self._sets.append(parameters)
        return parameters

    def _found(self, parameters: Parameters, plan: Plan, *, is_necessary: bool) -> SearchResult:
        context, levels = self._ground.context, self._ground.levels
        without = simulate(context, levels, Plan())
        return SearchResult(
            is_necessary=is_necessary,
            parameters=parameters,
            plan=plan,
            sets=tuple(self._sets),
            without=without,
            trace=simulate(context, levels, plan) if is_necessary else without,
            available=self._available,
            n_simulations=len(self._tried) + 1,
        )
