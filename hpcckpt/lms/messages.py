"""The lines of Large Model Support, worded as those of the original.

They go to the logger ``hpcckpt.lms`` if the program has set up logging so that it shows them, and else to TensorFlow's,
as those of the original: there ``tf.logging.set_verbosity(tf.logging.INFO)`` shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hpcckpt.core.units import nbytes_text, nbytes_text_up

_NO_MEMORY = 1 << 62
log = logging.getLogger("hpcckpt.lms")
_tensorflow = logging.getLogger("tensorflow")

NO_GRAPH = "No graph provided. LMS will use the default graph."
EDITING = "Editing model for LMS"
ALREADY = "This model has already been updated with LMS swap operations. LMS will not re-process it."
NOT_NECESSARY = "LMS is not necessary. Turned LMS off."
SEARCHING = "Searching values for parameters: swapout_threshold, swapin_ahead, swapin_groupby and sync_mode."
USES_GIVEN = "LMS will use the following parameter set:"
USES_FOUND = (
    "LMS will use the latest parameter set found by Simulator for the best performance. However, if you encounter an "
    "out-of-memory error, please manually use the previous parameter set found by Simulator."
)
SYNC_MODES = (
    "Asynchronous memory copy between host and device",
    "Synchronous memory copy from device to host, but asynchronous memory copy from host to device",
    "Asynchronous memory copy from device to host, but synchronous memory copy from host to device",
    "Synchronous memory copy between host and device",
)
WHILE_LOOP = (
    "The graph has a while-loop. Please enable GPU-CPU memory swap for the loop by setting swap_memory=True. For more "
    "information, visit https://www.tensorflow.org/api_docs/python/tf/while_loop."
)
WHILE_LOOP_AUTO = "Auto-tuning does not work since the graph has a while-loop. Please set LMS parameters manually."
PLACEHOLDERS = (
    "It seems you are feeding data via placeholders. LMS does not have enough information to auto tune parameters "
    "automatically. Please set the mini-batch size on the batch_size property of the LMS instance so LMS can tune "
    "parameters automatically or set values for swapout_threshold, swapin_ahead and swapin_groupby manually."
)
NO_BATCH_SIZE = (
    "TensorFlow Large Model Support (TFLMS) auto tuning is enabled and the training batch size has not been set on the "
    "LMS instance. Please set the batch_size parameter or set values for swapout_threshold, swapin_ahead and "
    "swapin_groupby manually."
)
NOT_FOUND = "Auto-tuning was unable to find a value for {}. Please specify it manually."

# -- where it cannot act: what is so, and what to do

EAGER = (
    "Eager execution mode is not supported with TensorFlow Large Model Support. {what}; give LMS to "
    "model.fit(callbacks=[lms]), call lms.watch(step) before a tf.function is first called, or lms.run(graph)"
)
EAGER_RUN = "There is no graph to edit"
EAGER_MODEL = "The model runs eagerly (run_eagerly=True): compile it without"
EAGER_FUNCTIONS = "tf.config.run_functions_eagerly(True) is set: functions run without a graph"
INNER = (
    "{function} is called within another function or graph, and becomes a part of that one, so its tensors are not "
    "swapped: call lms.watch on the outermost tf.function, which your program calls"
)
NO_GRADIENTS = (
    "{function} has no gradients, so it is taken for a function that does not train, and its tensors are not swapped: "
    "set lms.is_training = False if it only predicts, or jit_compile=False if XLA compiles what it calls"
)
JIT = (
    "{what} is compiled by XLA (jit_compile=True), which plans its memory itself: no graph is left to edit. Use "
    "jit_compile=False to have its tensors swapped"
)
OUTER_TAPE = (
    "{function} is one half of a tf.function whose gradients are taken outside of it: what it keeps for the other half "
    "is an output, which cannot be swapped. Put the GradientTape and the optimizer's step inside the tf.function"
)
FRAMES = (
    "{n_ops} operations of {function} are inside a while loop, and their tensors are not swapped. Train one step per "
    "call (steps_per_execution=1, no tf.range around the step), or give tf.while_loop swap_memory=True on a GPU"
)
TOO_LATE = (
    "{function} was called before lms.watch({function}), so its tensors are not swapped: call lms.watch({function}) "
    "before the first call of {function}, or create the tf.function again"
)
CONCRETE = "get_concrete_function returns a plain tf.function, whose tensors are not swapped: call {function} itself"
GRAPH_RAN = (
    "The model {model!r} was trained before LMS was given to it, and TensorFlow 1 does not change operations that have "
    "run: give LMS to the first fit, or build the model again after tf.keras.backend.clear_session()"
)
GRAPH_NOT_BUILT = (
    "The model {model!r} is built from its first batch, so there is no graph to edit when the training begins: give "
    "its first layer an input_shape"
)
GRAPH_REPLACED = (
    "Keras has made another training function for the model {model!r} during the training, as for sample weights from "
    "a generator, and LMS has not edited that one: train with arrays or a tf.data.Dataset"
)
GRAPH_KNOWN = (
    "Nothing is swapped: a session ran before LMS edited the graph of the model {model!r}, and TensorFlow 1 does not "
    "change operations that a session has. Let no other callback use Keras' session before the training begins "
    "(`set_model`, `set_params`), and load weights before `fit`"
)
NOT_PLANNED = (
    "LMS could not plan this step, so the training continues without swapping: {error}. Please report this; another "
    "planner may do: planner='distance', swapout_threshold=..."
)
NOT_VERIFIED = "No step was run to verify this: {why}. The first steps of the training will tell; see lms.report()"
ASSUMED = "Placeholders without a known rank were fed to verify this: {shapes}"


class LmsLog:
    """The log of one `LMS`: lines of level 0 on rank 0, once per job; lines for debugging on every rank."""

    def __init__(self, rank: int = 0, size: int = 1, *, debug: bool = False, debug_level: int = 1) -> None:
        self.rank, self.size = rank, size
        self._level = debug_level if debug else 0
        self._warned: set[str] = set()

    def info(self, text: str, level: int = 0, offset: int = 0) -> None:
        """Log a line, if its level is asked for."""
        if level > self._level or (level == 0 and self.rank != 0):
            return
        _log(logging.INFO, f"{self._prefix}[LMS][{level}] {' ' * offset}{text}")

    def warn_once(self, text: str) -> None:
        """Warn the user, one time for each text."""
        if text in self._warned:
            return
        self._warned.add(text)
        if self.rank == 0:
            _log(logging.WARNING, f"{self._prefix}[LMS][0] {text}")

    @property
    def _prefix(self) -> str:
        return f"[{self.rank}] " if self.size > 1 else ""


def _log(level: int, text: str) -> None:
    is_shown = log.hasHandlers() and log.isEnabledFor(level)
    (log if is_shown else _tensorflow).log(level, "%s", text)


def gib(nbytes: float) -> float:
    """Return a size in GiB as the original rounds it."""
    return round(nbytes / (1 << 30), 2)


def size_lines(n_ops: int, n_edges: int, nbytes_learned: int) -> list[str]:
    """Return what is said of any graph."""
    return [
        f"The graph has {n_ops} vertices and {n_edges} edges.",
        f"The graph has {round(nbytes_learned / (1 << 20), 2)} MiB of learning parameters.",
    ]


def largest_line(name: str, nbytes: int, *, is_gpu: bool) -> str:
    """Return what is said of the operation that needs most."""
    return f"The largest {'GPU ' if is_gpu else ''}operation is {name} consuming {gib(nbytes)} GiB"


def available_line(nbytes: int, ratio: float) -> str:
    """Return what the search begins with."""
    return f"[Simulator] Available memory for simulation: {gib(nbytes)} GiB (memory ratio: {ratio})"


def found_line(parameters: dict[str, Any]) -> str:
    """Return what the search found."""
    names = ("swapout_threshold", "swapin_ahead", "swapin_groupby", "sync_mode")
    return f"[Simulator] Found a parameter set: {', '.join(f'{name} {parameters[name]}' for name in names)}"


def parameter_lines(parameters: dict[str, Any]) -> list[str]:
    """Return the four values that the distance planner goes by."""
    mode = parameters["sync_mode"]
    ignored = f" (ignored since sync_mode is {mode})" if mode in (2, 3) else ""
    return [
        f"sync_mode: {mode} ({SYNC_MODES[mode]})",
        f"swapout_threshold: {parameters['swapout_threshold']}",
        f"swapin_ahead: {parameters['swapin_ahead']}{ignored}",
        f"swapin_groupby: {parameters['swapin_groupby']}{ignored}",
    ]


def host_warning(nbytes: int) -> str:
    """Return the warning of host memory that will not do; names the variable to raise."""
    return (
        "Warning: This configuration is likely to hit an out of memory error on the host allocator. It is recommended "
        "to increase the values of the TF_GPU_HOST_MEM_LIMIT_IN_MB environment variable to "
        f"{round(nbytes / (1 << 20))} or more."
    )


def added_line(n_out: int, nbytes_out: int, n_in: int, nbytes_in: int) -> str:
    """Return what was done to the graph."""
    return (
        f"Added {n_out + n_in} operations to the model ({n_out} swap-out operations ({gib(nbytes_out)} GiB) and "
        f"{n_in} swap-in operations ({gib(nbytes_in)} GiB))"
    )


def verified_line(peak: int, budget: int) -> str:
    """Return what a step was seen to take."""
    if peak >= _NO_MEMORY:
        return f"NOT kept: a step ran out of memory, with a memory budget of {nbytes_text(budget)}"
    kept = "Verified: a step took {peak}, within the memory budget of {budget}"
    over = "NOT kept: a step took {peak}, more than the memory budget of {budget}"
    return (kept if peak <= budget else over).format(peak=nbytes_text(peak), budget=nbytes_text(budget))


def not_kept(peak: int, budget: int) -> str:
    """Return the warning of a budget that is not kept, and what to do; `peak` is that of the best plan tried."""
    seen = (
        "runs out of memory"
        if peak >= _NO_MEMORY
        else f"takes {nbytes_text(peak)} with the best plan found, more than the memory budget of {nbytes_text(budget)}"
    )
    return (
        f"A step {seen}: raise memory_budget{_to(peak)}, lower the batch size, lower swapout_threshold, or set "
        "TF_LMS_SIMULATOR_MEM_RATIO lower"
    )


def _to(peak: int) -> str:
    return "" if peak >= _NO_MEMORY else f" to {nbytes_text_up(peak + peak // 20)}"


def planned_lines(parameters: Mapping[str, Any], budget: int | None, needs: int | None) -> list[str]:
    """Return what the cost planner plans, in units for people."""
    sizes = {name: nbytes_text(parameters[name]) for name in ("peak_before", "peak_after", "floor")}
    before_ms, after_ms = parameters["time_before_ns"] / 1e6, parameters["time_after_ns"] / 1e6
    lines = [] if budget is None else [f"memory budget: {nbytes_text(budget)} for a step"]
    if needs is not None and needs != parameters["peak_after"]:
        others = nbytes_text(needs - parameters["peak_after"])
        lines.append(f"expected peak: {nbytes_text(needs)}, with {others} for what is no tensor")
    return [
        *lines,
        f"tensors: {sizes['peak_after']}, without the plan {sizes['peak_before']}, at least {sizes['floor']}",
        f"simulated time: {after_ms:.0f} ms, without the plan {before_ms:.0f} ms",
        f"tensors swapped: {parameters['n_swapped']}, computed again: {parameters['n_recomputed']}",
    ]
