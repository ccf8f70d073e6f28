"""Weights of submodels, saved apart when a cycle is complete, and loaded before one begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import HpcckptError
from hpcckpt.keras.model_loading import load_weights
from hpcckpt.train import submodels, weights
from hpcckpt.train.building import Built, together
from hpcckpt.train.loops import SubmodelWeights
from hpcckpt.train.problems import ConfigError, Problem
from hpcckpt.train.run_directory import RunDirectory

FOLDER = "submodels"


def place_of(this: SubmodelWeights, directory: RunDirectory) -> Path:
    """Return where the weights of a submodel are. Pure."""
    return Path(this.path) if this.path is not None else directory.path / FOLDER / this.name


def save(
    built: Built, directory: RunDirectory, comm: Communicator, step: int, storage: weights.Storage
) -> Iterator[str]:
    """Save the submodels of a cycle that are to be saved; yield what was done, in words. Collective."""
    for this in built.loop.save_submodels:
        path = place_of(this, directory)
        weights.save(submodels.find(built.model, this.name), path, comm, step, storage=storage)
        yield f"submodel {this.name} saved in {path}"


def load(built: Built, directory: RunDirectory, comm: Communicator) -> Iterator[str]:
    """Load the submodels of a cycle that are to be loaded; yield what was done, in words. Collective.

    Raises
    ------
    ConfigError
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
                raise ConfigError.of([Problem(place, str(error))]) from error

        yield f"submodel {this.name} takes {together(comm, 'load submodels', act)} tensors of {path}"
