"""Weights of submodels, saved apart when a cycle is complete, and loaded before one begins."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import HpcckptError, OptionError
from hpcckpt.keras.files.load_model import load_weights
from hpcckpt.rundir.discovery import scan
from hpcckpt.train.config.cycles import Cycle
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError
from hpcckpt.train.loop.train_loop import SubmodelWeights
from hpcckpt.train.run import submodels, weights
from hpcckpt.train.run.build_cycle import Built, together
from hpcckpt.train.run.run_directory import TrainingDirectory

FOLDER = "submodels"
MARK = "submodel"
"""Name among the objects of a checkpoint that holds the weights of a submodel."""


def place_of(this: SubmodelWeights, directory: TrainingDirectory) -> Path:
    """Return where the weights of a submodel are. Pure."""
    return Path(this.path) if this.path is not None else directory.path / FOLDER / this.name


def check(built: Built, whole: Sequence[Cycle], directory: TrainingDirectory, comm: Communicator) -> None:
    """Refuse places where the weights of submodels would take that of other checkpoints. Collective.

    Parameters
    ----------
    built : Built
        The cycle that saves them.
    whole : sequence of Cycle
        All cycles: no place may be that of their checkpoints.
    directory : TrainingDirectory
        Where these are.
    comm : Communicator
        The ranks.

    Raises
    ------
    TrainConfigError
        Naming each of them.
    """
    places = [(this.name, place_of(this, directory)) for this in built.loop.save_submodels]
    where = built.cycle.train_loop.place_of("save_submodels")
    find = functools.partial(_misplaced, places, _places_of_cycles(whole, directory))
    texts = comm.on_root("look at places of submodels", find) if places else []
    if texts:
        remedy = "give it its own directory"
        raise TrainConfigError.of([ConfigProblem(f"{where}[{number}]", text, remedy) for number, text in texts])


def save(
    built: Built, directory: TrainingDirectory, comm: Communicator, step: int, storage: weights.Storage
) -> Iterator[str]:
    """Save the submodels of a cycle that are to be saved; yield what was done, in words. Collective.

    Raises
    ------
    OptionError
        If there are checkpoints of something else by now.
    """
    for this in built.loop.save_submodels:
        path = place_of(this, directory)
        comm.on_root(f"look for checkpoints in {path}", functools.partial(_check_free, path))
        objects = {MARK: this.name}
        weights.save(submodels.find(built.model, this.name), path, comm, step, storage=storage, objects=objects)
        yield f"submodel {this.name} saved in {path}"


def load(built: Built, directory: TrainingDirectory, comm: Communicator) -> Iterator[str]:
    """Load the submodels of a cycle that are to be loaded; yield what was done, in words. Collective.

    Raises
    ------
    TrainConfigError
        If there are no such weights, or they do not fit.
    """
    where = built.cycle.train_loop.place_of("load_submodels")
    for number, this in enumerate(built.loop.load_submodels):
        path = place_of(this, directory)

        def act(name: str = this.name, path: Path = path, place: str = f"{where}[{number}]") -> int:
            try:
                layer = submodels.find(built.model, name)
                return len(load_weights(layer, path, optimizer=False).loaded)
            except HpcckptError as error:
                raise TrainConfigError.of([ConfigProblem(place, str(error))]) from error

        yield f"submodel {this.name} takes {together(comm, 'load submodels', act)} tensors of {path}"


def _places_of_cycles(whole: Sequence[Cycle], directory: TrainingDirectory) -> dict[str, int]:
    """Return the number of each cycle by the directories that its checkpoints and its last weights are in."""
    roots = [(cycle.index, cycle.checkpoint.directory) for cycle in whole]
    places = [(place(index, root), index + 1) for index, root in roots for place in (directory.cycle, directory.final)]
    return {os.path.realpath(path): number for path, number in places}


def _misplaced(places: Sequence[tuple[str, Path]], cycles: Mapping[str, int]) -> list[tuple[int, str]]:
    """Return what is wrong with places of submodels, by their numbers. Root only."""
    names: dict[str, str] = {}
    found = []
    for number, (name, path) in enumerate(places):
        real = os.path.realpath(path)
        if real in cycles:
            found.append((number, f"{path} is for the checkpoints of cycle {cycles[real]}"))
        elif real in names:
            found.append((number, f"{path} is for the weights of {names[real]!r} already"))
        elif text := _why_not(path):
            found.append((number, text))
        names[real] = name
    return found


def _why_not(path: Path) -> str:
    """Return why no submodel is saved in a directory; "" if nothing but such weights is there."""
    for info in scan(path):
        objects = info.manifest.objects.get("user", {}) if info.manifest is not None else {}
        if MARK not in objects:
            return f"{info.path} is a checkpoint, and weights of a submodel take the place of what is there"
    return ""


def _check_free(path: Path) -> None:
    why_not = _why_not(path)
    if why_not:
        raise OptionError(f"{why_not}; give the submodel its own directory")
