"""The reasons why a resume of a ``fit`` would not give the same bits; if there is none, it is exact.

1. Before anything is restored: compile the training step, if the model is not built; that creates its weights.
2. Before the first batch: read the Python values that the program's code uses, compile the training step, and find the
   variables that it uses and that nothing else saves.  Those are saved with the rest.
3. At each save: what the compiled steps draw from and run, callbacks whose state is unknown, Python values that are not
   what they were in 2, and a model that was compiled again.  Each is a reason against ``exact``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcckpt.errors import StateError
from hpcckpt.keras.callbacks.callback_state import is_known, may_call_program
from hpcckpt.keras.model.layers import named_layers, unbuilt_layers
from hpcckpt.keras.model.optimizers import held_optimizers, is_built
from hpcckpt.keras.program.captured_variables import named_variables, owners
from hpcckpt.keras.program.declarations import is_stateless
from hpcckpt.keras.program.python_values import Values, holds_program
from hpcckpt.keras.program.traced_steps import TracedStep, concrete_functions, inspect, trace, trace_eager
from hpcckpt.state import random_streams
from hpcckpt.state.tf_variables import tensorflow_variable

_COUNTERS = ("_train_counter", "_test_counter", "_predict_counter")
"""Keras 2.15's counts of batches: the first is saved, the others begin at 0 each time."""
_REBUILT = ("compiled_loss", "compiled_metrics")
"""What Keras 2.15 rebuilds when it traces the first step: what is in there has other paths then."""
COMPILED_AGAIN = "the model was compiled again while it trains"
_SHOWN = 3
_CAUSE = re.compile(r"^\s*\w+: ", re.MULTILINE)


class Exactness:
    """What is known about one ``fit``.

    Parameters
    ----------
    model : keras.Model
        The model.
    callbacks : mapping of str to Callback
        The other callbacks.
    more : sequence of object
        What the user has saved besides.
    saved : callable
        Returns the variables of TensorFlow that are saved anyway.

    Attributes
    ----------
    variables : dict of str to tf.Variable
        Those that the training step uses and that nothing else saves, by name.
    lost : list of str
        What was not restored when this run was resumed.
    """

    def __init__(
        self, model: Any, callbacks: Mapping[str, Any], more: Sequence[Any], saved: Callable[[], Sequence[Any]]
    ) -> None:
        self.model, self.callbacks, self._more, self._saved = model, callbacks, more, saved
        self.variables: dict[str, Any] = {}
        self.lost: list[str] = []
        self._owners: dict[str, Any] = {}
        self._layers: list[tuple[str, Any]] = []
        self._values = Values()
        self._traced: Any = None
        self._why_not_traced: Exception | None = None
        self._is_drawn_by_numpy = False
        self._compiled: tuple[Any, Any] = (None, None)
        self._steps: dict[str, tuple[object, TracedStep]] = {}

    # -- before the first batch ------------------------------------------------------------------

    def build(self, element_spec: Any) -> None:
        """Create the weights of a model that is not built yet, and of its optimizer. Independent.

        Keras does so with the first batch, which is too late to restore them; here the shapes of the data suffice.

        Parameters
        ----------
        element_spec : nested structure of tf.TypeSpec
            What the data is made of; ``None`` if that is not known: then nothing is done.

        Raises
        ------
        StateError
            If the model cannot be built for this data; with what Keras or the program raised.
        """
        is_built_already = all(is_built(optimizer) for _, optimizer, _ in held_optimizers(self.model))
        if element_spec is None or (is_built_already and not unbuilt_layers(self.model)):
            return
        error = trace_eager(self.model, element_spec) if self._is_eager() else self._trace(element_spec)
        if error is not None and unbuilt_layers(self.model):
            raise StateError(
                f"the model is not built, and its training step cannot be traced for this data before the first batch "
                f"({_in_one_line(error)}); build the model before fit: give it an Input, call "
                "model.build(input_shape), or call it once on a batch"
            ) from error

    def _trace(self, element_spec: Any) -> Exception | None:
        """Compile the training step, once as it is now; return what kept it from that."""
        function = getattr(self.model, "train_function", None)
        if function is not self._traced:
            self._traced = function
            before = _of_numpy()
            self._why_not_traced = trace(self.model, element_spec)
            self._is_drawn_by_numpy = before != _of_numpy()
        return self._why_not_traced

    def begin(self, element_spec: Any) -> None:
        """Read Python values, compile the training step, and find its variables. Independent.

        Parameters
        ----------
        element_spec : nested structure of tf.TypeSpec
            What the data is made of; ``None`` if that is not known, or nothing will be trained.
        """
        self._layers = [("model", self.model), *named_layers(self.model)]
        owners_now = {path or "model": owner for path, owner in owners(self.model)}
        owners_now |= {name: callback for name, callback in self.callbacks.items() if may_call_program(callback)}
        self._owners = {path: owner for path, owner in owners_now.items() if holds_program(owner)}
        self._values = self._read_values()
        self._compiled = (getattr(self.model, "optimizer", None), getattr(self.model, "train_function", None))
        if element_spec is None or self._is_eager():
            return
        self._trace(element_spec)
        self._values.replace(self._read_values(), _REBUILT)
        step = self._step("train_function")
        if step is not None:
            self.variables = named_variables(self.model, step.variables)
            self._steps.clear()  # there, those variables were not saved yet

    def restore(self, arrays: Mapping[str, Any], derived_from: tuple[object, ...] = ()) -> list[str]:
        """Give the variables their values; return the names of those that are not here. Independent.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray
            Values by name.
        derived_from : tuple, optional
            On another number of ranks, what new states of generators are derived from.
        """
        gone, variables = [], self.variables
        if arrays.keys() - variables.keys():  # older steps have some here that now belong to the model
            used = inspect(getattr(self.model, "train_function", None)).variables
            variables = named_variables(self.model, used) | variables
        for name, array in arrays.items():
            variable = variables.get(name)
            if variable is None or not variable.shape.is_compatible_with(array.shape):
                gone.append(name)
            elif derived_from and variable.name.partition(":")[0].endswith(_GENERATOR_STATES):
                random_streams.derive_variable(variable, name, *derived_from)
            else:
                variable.assign(array)
        return sorted(gone)

    # -- at each save ----------------------------------------------------------------------------

    def reasons(self) -> list[str]:
        """Return the reasons why a resume from the present state is not exact. Independent."""
        every = [*self._of_steps(), *self._of_callbacks(), *self._of_values(), *self._of_compiling(), *self.lost]
        return list(dict.fromkeys(every))

    def _of_steps(self) -> Iterator[str]:
        if self._is_eager():
            yield "run_eagerly runs the program's Python with each batch, and what that changes cannot be seen"
            return
        if self._why_not_traced is not None:
            kind = type(self._why_not_traced).__name__
            yield f"the training step could not be traced before the first batch ({kind})"
        if self._is_drawn_by_numpy:
            yield "the training step draws from NumPy's generator when it is traced: draw from TensorFlow's or Keras'"
        for which, name in (("training", "train_function"), ("validation", "test_function")):
            step = self._step(name)
            if step is None:
                continue
            yield from step.reasons
            if step.variables:
                names = [variable.name for variable in step.variables]
                yield f"the {which} step uses variables that are not saved: {_few(names)}; pass them in state="

    def _of_callbacks(self) -> Iterator[str]:
        own = [name for name, callback in self.callbacks.items() if not is_known(callback)]
        unknown = [name for name in own if not is_stateless(self.callbacks[name])]
        if unknown:
            yield (
                f"a state of callback {_few(unknown)} would not be saved: give it state_dict and load_state_dict, or "
                "declare it with hpcckpt.keras.stateless"
            )

    def _of_values(self) -> Iterator[str]:
        if self._is_eager():
            return  # that reason covers all of Python
        now = self._read_values()
        changed = self._values.changed(now)
        if changed:
            yield f"{_few(changed)} changed since training began, and is not saved: keep it in a variable"
        if now.unknown:
            known = [f"{path} ({why})" for path, why in sorted(now.unknown.items())]
            yield f"whether {_few(known)} changes cannot be seen"

    def _of_compiling(self) -> Iterator[str]:
        optimizer, function = self._compiled
        if getattr(self.model, "optimizer", None) is not optimizer or (
            function is not None and getattr(self.model, "train_function", None) is not function
        ):
            yield (
                f"{COMPILED_AGAIN}: a resumed run has to compile it in the same way, and set the same layers "
                "trainable, before fit"
            )

    # -- what it is found with -------------------------------------------------------------------

    def _is_eager(self) -> bool:
        import tensorflow as tf

        return bool(getattr(self.model, "run_eagerly", False)) or tf.config.functions_run_eagerly()

    def _step(self, name: str) -> TracedStep | None:
        """Return what is known of a compiled step, with the variables that are not saved; ``None`` before it ran."""
        function = getattr(self.model, name, None)
        compiled = concrete_functions(function)
        if not compiled and name == "test_function":
            return None
        known = self._steps.get(name)
        key = (id(function), len(compiled))
        if known is None or known[0] != key:
            handles = self._handles()
            step = inspect(function, handles)
            left = [variable for variable in step.variables if id(variable.handle) not in handles]
            left = [variable for variable in left if not is_stateless(variable)]
            known = self._steps[name] = (key, replace(step, variables=tuple(left)))
        return known[1]

    def _handles(self) -> set[int]:
        """Return the identities of the handles of all variables that are saved."""
        counters = [getattr(self.model, name) for name in _COUNTERS if hasattr(self.model, name)]
        metrics = [variable for metric in self.model.metrics for variable in metric.variables]
        streams = random_streams.variables()
        every = [tensorflow_variable(variable, "") for variable in (*counters, *metrics, *streams)]
        return {id(variable.handle) for variable in (*self._saved(), *every, *self.variables.values())}

    def _read_values(self) -> Values:
        found = Values.read(self._owners, self._more)
        for path, layer in self._layers:
            found.digests[f"{path}.trainable"] = bool(getattr(layer, "_trainable", True))
        return found


_GENERATOR_STATES = ("StateVar", "seed_generator_state")


def _of_numpy() -> bytes:
    """Return the state of NumPy's global generator, as far as it can be saved."""
    state = random_streams.read_streams().get("numpy")
    return b"" if state is None else state.tobytes()


def _in_one_line(error: Exception) -> str:
    """Return the class and the cause of an error; TensorFlow puts the lines of the program before the cause."""
    text = f"{type(error).__name__}: {error}"
    *_, cause = _CAUSE.finditer(text)
    return " ".join(text[cause.start() :].split())[:300]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
