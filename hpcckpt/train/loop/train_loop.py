"""How a cycle is trained: what all loops are, and the one that is Keras' own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcckpt.errors import OptionError, Problem, list_problems

__all__ = ["KerasTrainLoop", "SubmodelWeights", "TrainLoop"]


@dataclass(frozen=True, slots=True)
class SubmodelWeights:
    """Weights of a submodel that are saved or loaded.

    Attributes
    ----------
    name : str
        The submodel's path: ``base_model@layer1``.
    path : str or None
        Where they are; ``None`` is ``submodels/<name>`` in the run directory.
    """

    name: str
    path: str | None = None


class TrainLoop:
    """Trains a cycle. Subclasses define what happens with a batch.

    Keras' ``fit`` iterates over the data. All loops are checkpointed, resumed and stopped in the same way.

    Parameters
    ----------
    num_epochs : int
        Number of epochs.
    num_valid_steps : int, optional
        Number of batches to validate on after each epoch; ``None`` is all of them.
    callbacks : sequence of keras.callbacks.Callback
        Keras' callbacks. Those that write files, and are not made for several ranks, are called on rank 0 only.
    freeze_submodels : sequence of str
        Submodels that are not changed, their statistics of BatchNorm included: ``["base_model@layer1"]``.
    save_submodels : sequence of str or mapping
        Submodels whose weights are saved separately when the cycle is complete: ``"base_model"`` is saved to
        ``submodels/base_model`` in the run directory, ``{"name": "base_model", "path": "weights/base"}`` to this path.
    load_submodels : sequence of mapping
        Submodels that begin with weights from elsewhere, ``{"name": …, "path": …}``: what `save_submodels` saved,
        or any checkpoint that has them.
    num_train_steps : int, optional
        Number of batches in an epoch; ``None`` is all data. An epoch begins where the previous one ended, so the data
        must be enough for all epochs, unless this is exactly the number of batches in the data.

    Raises
    ------
    OptionError
        Naming everything that is invalid.
    """

    model: Any = None

    def __init__(
        self,
        num_epochs: int = 1,
        num_valid_steps: int | None = None,
        callbacks: Sequence[Any] = (),
        freeze_submodels: Sequence[str] = (),
        save_submodels: Sequence[str | Mapping[str, str]] = (),
        load_submodels: Sequence[str | Mapping[str, str]] = (),
        num_train_steps: int | None = None,
    ) -> None:
        problems: list[Problem] = []
        self.num_epochs = _counted("num_epochs", num_epochs, problems)
        self.num_valid_steps = _counted("num_valid_steps", num_valid_steps, problems, may_be_none=True)
        self.num_train_steps = _counted("num_train_steps", num_train_steps, problems, may_be_none=True)
        self.callbacks = list(_listed("callbacks", callbacks, problems))
        self.freeze_submodels = _paths("freeze_submodels", freeze_submodels, problems)
        self.save_submodels = _weights("save_submodels", save_submodels, problems)
        self.load_submodels = _weights("load_submodels", load_submodels, problems)
        problems += [
            Problem(f"callbacks[{n}]", _no_callback(one))
            for n, one in enumerate(self.callbacks)
            if isinstance(one, type) or not callable(getattr(one, "on_train_batch_end", None))
        ]
        if problems:
            raise OptionError(list_problems(problems))

    def prepare(self, model: Any, data: Any) -> None:
        """Take over a compiled model, before it is trained. Collective.

        Parameters
        ----------
        model : keras.Model
            The model.
        data : tf.data.Dataset
            What it is trained on.
        """
        del data
        self.model = model

    def state(self) -> Mapping[str, Any]:
        """Return further state to save and restore, by name. Independent.

        Model, optimizer and callbacks are always saved.
        """
        return {}

    def fit(self, data: Any, valid: Any, callbacks: Sequence[Any], steps: int | None) -> Any:
        """Train, and return Keras' history. Collective."""
        return self.model.fit(
            data,
            epochs=self.num_epochs,
            steps_per_epoch=steps,
            validation_data=valid,
            validation_steps=self.num_valid_steps if valid is not None else None,
            callbacks=list(callbacks),
            shuffle=False,  # the data comes in the order that it is to have; Keras 3 would warn otherwise
            verbose=0,
        )


class KerasTrainLoop(TrainLoop):
    """Train by ``fit``, with the model's own step. See `TrainLoop`."""


# -- checks ------------------------------------------------------------------------------------------


def _counted(name: str, value: Any, problems: list[Problem], *, may_be_none: bool = False) -> Any:
    if value is None and may_be_none:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        problems.append(Problem(name, f"{value!r} – a whole number from 1 on{', or null' if may_be_none else ''}"))
        return 1
    return value


def _no_callback(value: Any) -> str:
    if isinstance(value, type):
        return f"{value.__name__} is a class – write its name with its arguments, so that it is called"
    return f"a {type(value).__name__} is no Keras callback"


def _listed(name: str, value: Any, problems: list[Problem]) -> Sequence[Any]:
    if value is None:
        return ()
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        problems.append(Problem(name, f"{value!r} – a list"))
        return ()
    return list(value)


def _paths(name: str, value: Any, problems: list[Problem]) -> list[str]:
    found = _listed(name, value, problems)
    wrong = [n for n, item in enumerate(found) if not isinstance(item, str) or not item]
    problems += [Problem(f"{name}[{n}]", f"{found[n]!r} – the path of a submodel, such as 'base_model'") for n in wrong]
    return [item for item in found if isinstance(item, str) and item]


def _weights(name: str, value: Any, problems: list[Problem]) -> list[SubmodelWeights]:
    needs_path = name == "load_submodels"
    found = []
    for number, item in enumerate(_listed(name, value, problems)):
        entry = {"name": item} if isinstance(item, str) else item
        is_good = isinstance(entry, Mapping) and {"name"} <= set(entry) <= {"name", "path"}
        if not is_good or not all(isinstance(text, str) and text and "\0" not in text for text in entry.values()):
            text = "{'name': 'base_model', 'path': 'weights/base_model'}" + (
                "" if needs_path else ", or its name alone"
            )
            problems.append(Problem(f"{name}[{number}]", f"{item!r} – {text}"))
        else:
            found.append(SubmodelWeights(entry["name"], entry.get("path")))
    return found
