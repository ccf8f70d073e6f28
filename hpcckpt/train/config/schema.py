"""The keys of a configuration: names, what they take, defaults. The reference in the documentation is made of this."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpcckpt.train.config.plain_values import kind_of
from hpcckpt.train.config_errors import ConfigProblem, did_you_mean, inside, nearest, shown

FACTORY = '{"dotted.path": {arguments}}'
DEFAULTS: Mapping[str, Any] = {
    "metrics": [],
    "optimizer": {"tf.keras.optimizers.Adam": {}},
    "train_loop": {"hpcckpt.train.KerasTrainLoop": {}},
    "checkpoint": {},
    "lms": None,
    "distributed": "auto",
    "seed": None,
}
"""What a key is where no cycle so far has given it; the others must be given in the first cycle."""
FACTORIES = ("datasets", "model", "optimizer", "train_loop")

Count = Annotated[int, Field(ge=1)]
FilePath = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f\x7f]*$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Keys(BaseModel):
    """A mapping with these keys only, each of just its type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def key(default: Any, accepts: str, text: str, **more: Any) -> Any:
    """Return a key: its default, what it takes, and what it is."""
    return Field(default, description=text, json_schema_extra={"accepts": accepts}, **more)


class CheckpointKeys(Keys):
    """The key ``checkpoint``: how a cycle is saved, and what is kept."""

    directory: FilePath | None = key(
        None,
        "a path, or null",
        "Holds the checkpoints of this run, in `cycle-1`, `cycle-2`, …; null: the run directory.",
    )
    every_n_batches: Count | None = key(
        None, "a number from 1, or null", "Also save every N batches, in addition to each epoch."
    )
    every_n_minutes: Positive | Literal["auto"] | None = key(
        None,
        'a positive number, "auto", or null',
        'Also save at this interval; "auto" computes it from what saves cost and how often jobs fail.',
    )
    max_to_keep: Count | None = key(
        3, "a number from 1, or null", "How many of the newest are kept; null: all of them."
    )
    keep_best: Count | None = key(
        None, "a number from 1, or null", "How many with the best values of `monitor` are kept in addition."
    )
    monitor: str = key(
        "val_loss",
        "the name of a metric",
        'The metric for `keep_best`; "max:NAME" or "min:NAME" sets the direction.',
        min_length=1,
    )
    async_save: bool = key(True, "true or false", "Whether training continues while a checkpoint is written.")
    backend: str = key(
        "rankfile", "the name of a backend", "What writes checkpoints; `hpcckpt backends` lists them.", min_length=1
    )
    backend_options: dict[str, Any] = key({}, "a mapping", "Options of the backend.")
    scratch: FilePath | None = key(
        None,
        "a path, or null",
        "A faster directory on each node: checkpoints are committed there, and drained to `directory`.",
    )
    scratch_bandwidth: Positive | None = key(
        None, "a positive number, or null", "Bytes per second that all ranks together may drain."
    )
    batch_norm: Literal["rank0", "mean", "per-rank"] = key(
        "rank0", '"rank0", "mean" or "per-rank"', "Whose statistics of BatchNorm are saved."
    )


Nbytes = Annotated[int, Field(ge=0)] | str
_SIZE = 'bytes as a number, or with a unit as "600 MiB" or "629 MB"; or null'


class LmsKeys(Keys):
    """The key ``lms``: options of `hpcckpt.lms.LMS`; ``{}`` takes the defaults, ``null`` trains without it."""

    swapout_threshold: int = key(
        -1,
        "a number from 1, or -1",
        "Swap tensors needed again more than this many levels later; -1 is found by a search.",
    )
    swapin_groupby: int = key(
        -1,
        "a number from 0, or -1",
        "Consumers of a tensor within this many levels share a swap-in; -1 is found by a search.",
    )
    swapin_ahead: int = key(
        -1, "a number from 1, or -1", "Swap a tensor in this many levels before it is needed; -1 is found by a search."
    )
    sync_mode: Literal[0, 1, 2, 3] = key(
        0, "0, 1, 2 or 3", "What waits: nothing; compute for swap-outs; swap-ins for compute; both."
    )
    serialization: list[int | str] = key(
        [], "a list of levels and slices", 'Levels whose ops run one after the other: [1, "3:5", 7].'
    )
    serialization_by_size: float = key(
        0, "a number", "The same for levels that need more than this many GiB; 0 is none."
    )
    debug: bool = key(False, "true or false", "Log what the rewriting does.")
    debug_level: int = key(1, "a whole number", "How much of it is logged.")
    cpu_device: str = key("/cpu:0", "a device", "The device that holds swapped tensors.")
    gpu_device: str | None = key(
        None, "a device, or null", "The GPU whose tensors are swapped, in a model of several towers."
    )
    planner: Literal["cost", "distance"] | None = key(
        None, '"cost", "distance" or null', "Plan by measured cost, within a budget; or by distance."
    )
    memory_budget: Nbytes | None = key(None, _SIZE, "Memory for a step, on top of the process' own.")
    tier: Literal["auto", "host", "file", "host-then-file"] = key(
        "auto", '"auto", "host", "file" or "host-then-file"', "Where swapped tensors are stored."
    )
    directory: FilePath | None = key(None, "a path, or null", "The directory of the swap file, on a disk of this node.")
    min_bytes: Nbytes | None = key(None, _SIZE, "Tensors smaller than this are not swapped.")
    window: Nbytes | None = key(None, _SIZE, "How many bytes may be in transit while compute continues.")
    host_limit: Nbytes | None = key(None, _SIZE, "Host memory for swapped tensors, at most.")
    file_limit: Nbytes | None = key(None, _SIZE, "Space in the file for swapped tensors, at most.")
    recompute: bool = key(True, "true or false", "Whether cheap ops may be computed again instead of swapped.")
    verify: bool = key(True, "true or false", "Whether to run one step first and measure its memory.")


class CycleKeys(Keys):
    """The keys of a train cycle."""

    datasets: Any = key(
        None, FACTORY, "What to train and validate with: something that returns both as `tf.data.Dataset`s."
    )
    model: Any = key(None, FACTORY, "The model.")
    loss: Any = key(
        None,
        f"{FACTORY}, the name of one of Keras' own, or null",
        "The loss; null where the model or the loop has its own.",
    )
    metrics: Any = key([], "a list of factories, and of names of Keras' own", "The metrics.")
    optimizer: Any = key(None, FACTORY, "The optimizer.")
    train_loop: Any = key(None, FACTORY, "How to train: epochs, callbacks, submodels.")
    checkpoint: CheckpointKeys | None = key(None, "a mapping", "When and where to save, and how much to keep.")
    lms: LmsKeys | None = key(None, "a mapping, or null", "Large Model Support; null: without.")
    distributed: Literal["auto", "none", "horovod", "mpi4py"] | None = key(
        "auto", '"auto", "none", "horovod" or "mpi4py"', "What averages gradients over the ranks."
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = key(
        None,
        f"a number from 0 to {2**32 - 1}, or null",
        "What all random numbers begin with; null: a new one for each run.",
    )


PARTS: Mapping[str, type[Keys]] = {"checkpoint": CheckpointKeys, "lms": LmsKeys}
_ARGUMENTS = {
    "train_loop": "callbacks epochs num_epochs num_valid_steps freeze_submodels save_submodels load_submodels",
    "datasets": "batch_size dataset_dir data",
    "optimizer": "learning_rate lr",
    "model": "base_model num_outputs dropout",
}


def check_keys(given: Mapping[str, Any], where: str) -> list[ConfigProblem]:
    """Return what is wrong with the keys of a cycle, but for factories.

    Parameters
    ----------
    given : mapping
        The cycle as it was written, of what JSON has.
    where : str
        Its place.
    """
    problems = []
    try:
        CycleKeys.model_validate(dict(given))
    except ValidationError as error:
        problems = [_problem(each["loc"], each["type"], given, where) for each in error.errors()]
    problems += _backend_problems(given.get("checkpoint"), inside(where, "checkpoint"))
    problems += _monitor_problems(given.get("checkpoint"), inside(where, "checkpoint"))
    if not any(problem.where.startswith(inside(where, "lms")) for problem in problems):
        problems += _lms_problems(given.get("lms"), inside(where, "lms"))
    return list(dict.fromkeys(problems))


def _problem(loc: tuple[int | str, ...], kind: str, given: Mapping[str, Any], where: str) -> ConfigProblem:
    """Make our problem of one of pydantic's; those of the branches of a union become the same one."""
    name = str(loc[0])
    part = PARTS.get(name) if len(loc) > 1 else None
    keys: type[Keys] = part or CycleKeys
    key_name = str(loc[1]) if part else name
    place = inside(inside(where, name), key_name) if part else inside(where, name)
    if kind == "extra_forbidden" and len(loc) == (2 if part else 1):
        return ConfigProblem(place, "there is no such key", _other_key(key_name, keys))
    value = given[name][key_name] if part else given[name]
    return ConfigProblem(place, f"{_value_text(value)} is not accepted", f"give {accepts(keys, key_name)}")


def accepts(keys: type[Keys], name: str) -> str:
    """Return a description of what a key accepts."""
    extra = keys.model_fields[name].json_schema_extra
    return str(extra["accepts"]) if isinstance(extra, dict) else ""


def _other_key(name: str, keys: type[Keys]) -> str:
    if nearest(name, keys.model_fields) is None and keys is CycleKeys:
        for part, model in PARTS.items():
            if name in model.model_fields:
                return f"it is a key of {part!r}"
        for part, arguments in _ARGUMENTS.items():
            if name in arguments.split():
                return f"it is an argument of the factory under {part!r}"
    return did_you_mean(name, keys.model_fields, "the keys are")


def _value_text(value: Any) -> str:
    if isinstance(value, dict | list):
        return kind_of(value)
    text = json.dumps(value, ensure_ascii=False)
    return shown(text if len(text) <= 80 else f"{text[:80]}…")


def _backend_problems(checkpoint: Any, where: str) -> list[ConfigProblem]:
    from hpcckpt.backends.registry import discover

    name = checkpoint.get("backend") if isinstance(checkpoint, dict) else None
    if not isinstance(name, str) or not name:
        return []
    known = {info.name for info in discover()}
    base, _, variant = name.partition(":")
    if base not in known:
        text = f"there is no backend {shown(name)!r}"
        return [ConfigProblem(inside(where, "backend"), text, did_you_mean(base, known, "there are"))]
    if base == "plugin" and not variant.isidentifier():
        text = f"{shown(name)!r} names no plugin"
        return [ConfigProblem(inside(where, "backend"), text, 'give "plugin:NAME"; hpcckpt backends lists them')]
    return []


def _monitor_problems(checkpoint: Any, where: str) -> list[ConfigProblem]:
    from hpcckpt.core.options import parse_best
    from hpcckpt.errors import OptionError

    monitor = checkpoint.get("monitor") if isinstance(checkpoint, dict) else None
    try:
        parse_best(monitor if isinstance(monitor, str) and monitor else None)
    except OptionError as error:
        return [ConfigProblem(inside(where, "monitor"), str(error))]
    return []


def _lms_problems(lms: Any, where: str) -> list[ConfigProblem]:
    """Return what `LMS` itself would say of options of the right types."""
    if lms is None:
        return []
    from hpcckpt.errors import OptionError
    from hpcckpt.lms.settings import checked

    try:
        checked(**{**LmsKeys().model_dump(), **lms})
    except OptionError as error:
        return [ConfigProblem(where, str(error), "see the options of LMS in docs/lms.md")]
    return []
