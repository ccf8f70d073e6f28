"""The train cycles of a configuration: each inherits what it leaves out from the one before.

A key that is given replaces the whole value; nothing is merged below it.  ``null`` takes a key back to its default.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hpcckpt.train.config import overrides, schema
from hpcckpt.train.config.factories import Factory, FactoryEntry, written
from hpcckpt.train.config.factory_parse import parse
from hpcckpt.train.config.plain_values import kind_of, plain
from hpcckpt.train.config.read import Document, read
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError, inside, nearest

if TYPE_CHECKING:
    from hpcckpt.train.names.allow_list import Catalogue

Distributed = Literal["auto", "none", "horovod", "mpi4py"]
_EXAMPLES = {
    "datasets": '{"hpcckpt.train.datasets.digits.from_raw": {}}, say',
    "model": '{"hpcckpt.train.models.LeNet5": {}}, say',
    "loss": '{"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": true}}, say; or null for none',
}


BUILT = (*schema.FACTORIES, "loss", "metrics")
"""The keys whose values are built."""


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """How a cycle is checkpointed: the key ``checkpoint``; `CheckpointKeys` in `schema` says what each is."""

    directory: str | None = None
    every_n_batches: int | None = None
    every_n_minutes: float | Literal["auto"] | None = None
    max_to_keep: int | None = 3
    keep_best: int | None = None
    monitor: str = "val_loss"
    async_save: bool = True
    backend: str = "rankfile"
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    scratch: str | None = None
    scratch_bandwidth: float | None = None
    batch_norm: Literal["rank0", "mean", "per-rank"] = "rank0"


@dataclass(frozen=True, slots=True)
class Cycle:
    """One train cycle, complete: what it left out is inherited, or a default.

    Attributes
    ----------
    index : int
        Its number in the list, from 0.
    datasets, model, optimizer, train_loop : Factory
        What is built.
    loss : Factory or str or None
        A loss, the name of one of Keras' own, or nothing where the model or the loop has its own.
    metrics : tuple of Factory or str
        Metrics, or names of Keras' own.
    checkpoint : CheckpointSettings
        How it is checkpointed.
    lms : mapping or None
        Options of `hpcckpt.lms.LMS`; ``None`` trains without it.
    distributed : str
        How ranks train together.
    seed : int or None
        What random numbers begin with.
    """

    index: int
    datasets: Factory
    model: Factory
    loss: Factory | str | None
    optimizer: Factory
    train_loop: Factory
    metrics: tuple[Factory | str, ...] = ()
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    lms: Mapping[str, Any] | None = None
    distributed: Distributed = "auto"
    seed: int | None = None


def cycles(
    config: Any, sets: Sequence[str] = (), source: str = "", catalogue: Catalogue | None = None
) -> tuple[Cycle, ...]:
    """Return the cycles of a configuration. Independent.

    Parameters
    ----------
    config : list of dict, dict, path_like, Document, or sequence of Cycle
        The configuration, or the file it is in; a single mapping is one cycle; cycles are returned as they are.
    sets : sequence of str
        ``PATH=VALUE``, as the option ``--set`` takes them: changes made before anything is inherited.
    source : str
        Where it comes from, for messages.
    catalogue : Catalogue, optional
        What names may mean: with it they and their arguments are checked too; without it nothing is imported.

    Raises
    ------
    TrainConfigError
        With everything that is wrong.
    """
    if isinstance(config, Sequence) and config and all(isinstance(each, Cycle) for each in config):
        return tuple(config)
    document = _document(config, source)
    problems: list[ConfigProblem] = []
    raw = _listed(document.raw, problems)
    if raw and not (problems or document.problems):
        raw = overrides.changed(raw, sets, problems)
    parts: list[FactoryEntry] = []
    found = _inherited(raw, problems, parts)
    if catalogue is not None:
        from hpcckpt.train.config.validate import check_parts

        problems += check_parts(parts, catalogue)
    if problems or document.problems:
        follow = tuple(each.where.removesuffix("…") for each in document.problems)  # the same, seen again further up
        others = [each for each in problems if not each.where.startswith(follow)]
        raise TrainConfigError.of([*document.problems, *others], document.source)
    return tuple(found)


def parts_of(whole: Iterable[Cycle]) -> list[FactoryEntry]:
    """Return what is to be built for cycles, each part once, with its place."""
    found: list[FactoryEntry] = []
    before: Cycle | None = None
    for cycle in whole:
        for name in BUILT:
            value = getattr(cycle, name)
            if before is None or value is not getattr(before, name):  # else it is inherited
                found += _split(name, value, inside(f"[{cycle.index}]", name))
        before = cycle
    return found


def check(whole: Iterable[Cycle], catalogue: Catalogue) -> list[ConfigProblem]:
    """Return what is wrong with the factories of cycles: names and arguments. Independent.

    Parameters
    ----------
    whole : iterable of Cycle
        As `cycles` returns them.
    catalogue : Catalogue
        What names may mean.
    """
    from hpcckpt.train.config.validate import check_parts

    return check_parts(parts_of(whole), catalogue)


def effective(whole: Sequence[Cycle]) -> list[dict[str, Any]]:
    """Return cycles as a configuration that leaves nothing out, of what JSON has; `cycles` makes the same of it."""
    return [_written(cycle) for cycle in whole]


def _written(cycle: Cycle) -> dict[str, Any]:
    parts = {name: written(getattr(cycle, name)) for name in schema.CycleKeys.model_fields}
    return parts | {"checkpoint": asdict(cycle.checkpoint)}


# -- what was given --------------------------------------------------------------------------------


def _document(config: Any, source: str) -> Document:
    if isinstance(config, Document):
        return config
    if isinstance(config, str | os.PathLike):
        return read(config)
    problems: list[ConfigProblem] = []
    raw = [config] if isinstance(config, Mapping) else config
    if isinstance(raw, list | tuple):
        raw = plain(raw, "", problems)
    return Document(raw, source, tuple(problems))


def _listed(raw: Any, problems: list[ConfigProblem]) -> list[Any]:
    """Return the cycles that are mappings, each at its place; what is none becomes an empty one, and a problem."""
    example = '[ { "datasets": …, "model": …, "loss": … } ]'
    if not isinstance(raw, list) or not raw:
        text = "there is no train cycle" if raw == [] else f"is {kind_of(raw)}, no list of train cycles"
        problems.append(ConfigProblem("the configuration", text, f"write {example}"))
        return []
    for number, cycle in enumerate(raw):
        if not isinstance(cycle, dict):
            problems.append(
                ConfigProblem(f"[{number}]", f"is {kind_of(cycle)}, no train cycle", f"write {example[2:-2]}")
            )
    return [cycle if isinstance(cycle, dict) else {} for cycle in raw]


# -- inheriting ------------------------------------------------------------------------------------


def _inherited(
    raw: Sequence[Mapping[str, Any]], problems: list[ConfigProblem], parts: list[FactoryEntry]
) -> list[Cycle]:
    found: list[Cycle] = []
    so_far: dict[str, Any] = {}
    for index, given in enumerate(raw):
        where = f"[{index}]"
        problems += schema.check_keys(given, where)
        if index == 0:
            problems += _missing(given, where)
            so_far = _parsed(schema.DEFAULTS, where, [])
        own = _parsed(given, where, problems)
        parts += [part for name in BUILT for part in _split(name, own.get(name), inside(where, name))]
        so_far |= own
        if not problems:
            found.append(Cycle(index, **so_far))
    return found


def _split(name: str, value: Any, place: str) -> list[FactoryEntry]:
    """Return the parts under a key, without those that could not be read."""
    several = [(each, inside(place, number)) for number, each in enumerate(value or ())] if name == "metrics" else []
    return [
        FactoryEntry(name, each, where)
        for each, where in several or [(value, place)]
        if isinstance(each, str | Factory)
    ]


def _missing(given: Mapping[str, Any], where: str) -> list[ConfigProblem]:
    """Return the required keys that the first cycle lacks; misspelt ones are reported under their wrong name."""
    unknown = [name for name in given if name not in schema.CycleKeys.model_fields]
    meant = {nearest(name, schema.CycleKeys.model_fields) for name in unknown}
    missing = [name for name in _EXAMPLES if name not in given and name not in meant]
    return [
        ConfigProblem(inside(where, name), "is missing", f"the first cycle must say it: {_EXAMPLES[name]}")
        for name in missing
    ]


def _parsed(given: Mapping[str, Any], where: str, problems: list[ConfigProblem]) -> dict[str, Any]:
    """Return the known keys of a cycle with their values as `Cycle` has them; what is wrong is left out."""
    found: dict[str, Any] = {}
    for name in schema.CycleKeys.model_fields:
        if name not in given:
            continue
        value, place = given[name], inside(where, name)
        if value is None and name in schema.DEFAULTS:
            value = schema.DEFAULTS[name]
        found[name] = _part(name, value, place, problems)
    return found


def _part(name: str, value: Any, place: str, problems: list[ConfigProblem]) -> Any:
    if name in schema.FACTORIES:
        factory = parse(value, place, problems)
        if factory is not None and not factory.is_called:
            problems.append(
                ConfigProblem(place, f"{factory.name} is only named here", f'write {{"{factory.name}": {{}}}}')
            )
        return factory
    if name == "loss":
        return value if value is None else _named(value, place, problems)
    if name == "metrics":
        return _metrics(value, place, problems)
    if name == "checkpoint":
        return CheckpointSettings(**value) if isinstance(value, dict) and not problems else None
    return value


def _named(value: Any, place: str, problems: list[ConfigProblem]) -> Factory | str | None:
    return value if isinstance(value, str) and "." not in value and value else parse(value, place, problems)


def _metrics(value: Any, place: str, problems: list[ConfigProblem]) -> tuple[Factory | str | None, ...]:
    if isinstance(value, list):
        return tuple(_named(item, inside(place, number), problems) for number, item in enumerate(value))
    problems.append(ConfigProblem(place, f"is {kind_of(value)}, no list", "write a list, also for one metric: [ … ]"))
    return ()
