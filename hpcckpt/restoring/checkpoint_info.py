"""`info`: what a checkpoint holds, without its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcckpt.core.tensors import TensorSpec
from hpcckpt.format.manifest import Manifest
from hpcckpt.restoring.reader import open_step, rank_name
from hpcckpt.rundir import discovery, pins
from hpcckpt.rundir.journal import epoch_of
from hpcckpt.state.arrays import JSON_SUFFIX, json_value

_SUFFIX = f"/{JSON_SUFFIX}"


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a checkpoint holds.

    Attributes
    ----------
    step, epoch : int
        Its number; and the epoch, ``None`` if the state has none.
    path : pathlib.Path
        The step directory.
    created : str
        Time of the save, ISO 8601 in UTC.
    ranks : int
        Number of ranks that saved it.
    backend, level : str
        Storage backend, and what a resumed run gets back: ``exact``, ``state`` or ``weights``.
    nbytes, tensor_nbytes : int
        Bytes of the files; and bytes of the tensors, each counted once (a per-rank tensor once for each rank).
    metrics : dict of str to float
        As passed to `save`.
    objects : dict
        Values that are not tensors: ``objects["state"]`` has those of the state, by name; ``objects["user"]`` has the
        ``objects`` that were passed to `save`.
    per_rank : mapping of str to list
        For each per-rank name the values of all ranks, in rank order. They are read from the files when the name is
        looked up.
    tensors : dict of str to TensorSpec
        Name, dtype, shape and kind of each tensor. `hpcckpt.load` returns their values.
    environment : dict of str to str
        Versions of the software that saved it.
    pinned : bool
        Whether it is pinned, so that retention keeps it.
    """

    step: int
    epoch: int | None
    path: Path
    created: str
    ranks: int
    backend: str
    level: str
    nbytes: int
    tensor_nbytes: int
    metrics: Mapping[str, float]
    objects: Mapping[str, Any]
    per_rank: Mapping[str, list[Any]] = field(repr=False)
    tensors: Mapping[str, TensorSpec] = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    pinned: bool = False


def info(path: discovery.PathLike, step: int | str | None = None) -> CheckpointInfo:
    """Return what a checkpoint holds; only its manifest is read. Independent.

    Parameters
    ----------
    path : path_like
        A run directory, or a step directory.
    step : int or {"latest", "best"}, optional
        Which step of a run directory; by default the newest that can be restored.

    Raises
    ------
    StepNotFoundError
        If there is no such step.
    CorruptError
        If its manifest is damaged.
    """
    found = discovery.find_step(path, step)
    manifest = found.manifest or discovery.read_manifest(found.path)
    return CheckpointInfo(
        step=manifest.step,
        epoch=epoch_of(manifest.objects),
        path=found.path,
        created=manifest.created,
        ranks=manifest.n_ranks,
        backend=manifest.backend,
        level=manifest.level,
        nbytes=manifest.nbytes,
        tensor_nbytes=tensor_nbytes(manifest),
        metrics=dict(manifest.metrics),
        objects=manifest.objects,
        per_rank=PerRankValues(found.path, manifest),
        tensors={spec.name: spec for spec in manifest.tensors},
        environment=dict(manifest.environment),
        pinned=manifest.step in pins.pins(found.path.parent),
    )


def tensor_nbytes(manifest: Manifest) -> int:
    """Return the bytes of one copy of every tensor; of per-rank ones, one for each rank. Pure."""
    return sum(spec.nbytes * (manifest.n_ranks if spec.kind == "per-rank" else 1) for spec in manifest.tensors)


class PerRankValues(Mapping[str, list[Any]]):
    """Values of which each rank has its own, by the names that the state has for them.

    Parameters
    ----------
    path : pathlib.Path
        The step directory.
    manifest : Manifest
        Its manifest.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path = path
        self._specs = {base_name(spec): spec for spec in manifest.tensors if spec.kind == "per-rank"}

    def __getitem__(self, name: str) -> list[Any]:
        """Return the value of each rank, verified: an array, or the JSON value."""
        spec = self._specs[name]
        reader = open_step(self._path)
        ranks = sorted(entry.rank for entry in reader.index[spec.name])
        arrays = [reader.load_rank(spec.name, rank) for rank in ranks]
        return [json_value(array, spec.name) for array in arrays] if is_rank_json(spec) else arrays

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._specs)

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._specs)


def is_rank_json(spec: TensorSpec) -> bool:
    """Return True if a tensor holds a JSON value of each rank, as its UTF-8 bytes. Pure."""
    return spec.kind == "per-rank" and spec.name.endswith(_SUFFIX) and spec.dtype == "uint8"


def base_name(spec: TensorSpec) -> str:
    """Return the name that the state has for a per-rank value. Pure."""
    return spec.name.removesuffix(_SUFFIX) if is_rank_json(spec) else spec.name


def split_rank_name(name: str, specs: Mapping[str, TensorSpec]) -> tuple[str, int | None]:
    """Return the tensor and the rank that ``NAME`` or ``NAME#RANK`` means; a JSON value needs no ``/json``. Pure."""
    for known in (name, f"{name}{_SUFFIX}"):
        if known in specs:
            return known, None
    base, mark, rank = name.rpartition("#")
    if mark and rank.isdecimal() and len(rank) < 10 and rank_name(base, int(rank)) == name:
        for known in (base, f"{base}{_SUFFIX}"):
            if known in specs and specs[known].kind == "per-rank":
                return known, int(rank)
    return name, None
