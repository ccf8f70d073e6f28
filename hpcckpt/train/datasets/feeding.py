"""How a data set is handed out: what the dataset functions of all data sets take, checked at the door."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcckpt.errors import OptionError, Problem, list_problems
from hpcckpt.train.datasets.checks import is_whole
from hpcckpt.train.datasets.images import VALIDATION
from hpcckpt.train.datasets.sharing import Share, seed_or_default, share

N_AHEAD = 2
"""Batches that are made while one is trained on; the state of an iterator holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeding:
    """How images are batched. Defaults are those of the dataset functions.

    Parameters
    ----------
    batch_size : int
        Images in a batch of one rank.
    validation : float, optional
        Fraction of the training images that is used for validation instead.
    limit : int, optional
        Train on at most this many images.
    force_rgb : bool
        Whether to return three channels, whatever the images have.
    image_size : int, optional
        Height and width to which the images are scaled.
    seed : int, optional
        Seed of the order; ``None`` is the seed of `sharing`, else 0.
    shuffle_buffer : int
        Number of records from which the next one is drawn, if records are read sequentially.
    share : Share, optional
        The part of the data that this rank reads; by default that of `sharing`.

    Raises
    ------
    OptionError
        Naming everything that is invalid.
    """

    batch_size: int = 64
    validation: float | None = None
    limit: int | None = None
    force_rgb: bool = False
    image_size: int | None = None
    seed: int | None = None
    shuffle_buffer: int = 1024
    share: Share = field(default_factory=share)

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("batch_size", "limit", "image_size", "shuffle_buffer")}
        optional = {"limit", "image_size"}
        problems = [
            Problem(name, f"{value!r} – a positive number{', or nothing' if name in optional else ''}")
            for name, value in counts.items()
            if not is_whole(value, 1) and not (value is None and name in optional)
        ]
        if self.seed is not None and not (is_whole(self.seed, 0) and self.seed < 2**63):
            problems.append(Problem("seed", f"{self.seed!r} – a whole number from 0 on, below 2^63"))
        if problems:
            raise OptionError(list_problems(problems))

    @property
    def order(self) -> int:
        """The seed of the order."""
        return seed_or_default(self.seed)

    @property
    def share_of_validation(self) -> float:
        """Fraction for validation, if a data set has no validation images."""
        return VALIDATION if self.validation is None else self.validation

    def limited(self, n_train: int) -> int:
        """Return how many images to train on."""
        return n_train if self.limit is None else min(n_train, self.limit)

    def n_steps(self, n_train: int) -> int:
        """Return how many batches each rank trains on in an epoch.

        Raises
        ------
        OptionError
            If there are not enough images for one batch on each rank.
        """
        per_step = self.batch_size * self.share.size
        if n_train < per_step:
            raise OptionError(
                f"batch_size: {self.batch_size} on each of {self.share.size} ranks needs {per_step} images, and there "
                f"are {n_train} to train on; choose a smaller one, or fewer ranks"
            )
        return n_train // per_step

    def check_validation(self, n_valid: int) -> None:
        """Raise `OptionError` if a rank would have nothing to validate with."""
        if n_valid < self.share.size:
            raise OptionError(
                f"validation: {n_valid} images are too few for {self.share.size} ranks; a larger share, or fewer ranks"
            )
