"""What a conversion says of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcckpt.core.tensors import TensorSpec
from hpcckpt.restoring.reader import select


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a conversion left out.

    Attributes
    ----------
    names : tuple of str
        Tensors, or objects.
    reason : str
        Why.
    """

    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion wrote; its fields are the keys of ``hpcckpt convert --json``.

    Attributes
    ----------
    source, path : pathlib.Path
        What was read, and what was written.
    source_format, format : str
        Their formats; ``hpcckpt`` is a run directory.
    step : int
        The step that was read or written.
    weights, optimizer, other : int
        Tensors that were written: of models, of optimizers, and all others.
    nbytes : int
        Bytes of these.
    left_out : tuple of LeftOut
        What was not written.
    remarks : tuple of str
        What else the user should know.
    """

    source: Path
    source_format: str
    path: Path
    format: str
    step: int
    weights: int
    optimizer: int
    other: int
    nbytes: int
    left_out: tuple[LeftOut, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def tensors(self) -> int:
        """All tensors that were written."""
        return self.weights + self.optimizer + self.other


def is_of_optimizer(name: str) -> bool:
    """Return True if a tensor belongs to an optimizer: it is below ``optimizer`` or ``critic_optimizer``. Pure."""
    return any(part.endswith("optimizer") for part in name.split("/")[:-1])


def is_of_model(name: str) -> bool:
    """Return True if a tensor belongs to a model: it is below a part named ``model``, and to no optimizer. Pure."""
    return "model" in name.split("/")[:-1] and not is_of_optimizer(name)


def count_parts(names: Iterable[str], *, are_of_model: bool = False) -> dict[str, int]:
    """Return how many tensors are of models, of optimizers, and neither: fields of `Converted`. Pure.

    In the file of one model all that is not its optimizer's is its own, whatever it is called.
    """
    counts = {"weights": 0, "optimizer": 0, "other": 0}
    for name in names:
        counts[
            "optimizer" if is_of_optimizer(name) else "weights" if are_of_model or is_of_model(name) else "other"
        ] += 1
    return counts


def choose(
    known: Iterable[str], patterns: Iterable[str] | None, *, with_optimizer: bool
) -> tuple[list[str], list[LeftOut]]:
    """Return the selected names, in order, and what is left out. Pure.

    Raises
    ------
    OptionError
        If a pattern matches nothing.
    """
    every = list(known)
    chosen = select(every, patterns)
    unwanted = [name for name in chosen if not with_optimizer and is_of_optimizer(name)]
    left = [LeftOut(tuple(unwanted), "the optimizer was not asked for")] if unwanted else []
    others = tuple(sorted(set(every) - set(chosen)))
    if others:
        left.append(LeftOut(others, "not asked for (--only)"))
    return [name for name in chosen if name not in set(unwanted)], left


def nbytes_of(specs: Mapping[str, TensorSpec], names: Iterable[str]) -> int:
    """Return the bytes of these tensors. Pure."""
    return sum(specs[name].nbytes for name in names)
