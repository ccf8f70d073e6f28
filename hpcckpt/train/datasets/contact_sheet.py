"""A picture of images of a data set with their labels: of any that gives batches of both. Needs Matplotlib."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcckpt.errors import OptionError, from_os_error
from hpcckpt.train.datasets.checks import is_whole
from hpcckpt.train.datasets.errors import PackageMissingError

_INCHES = 1.2
"""Of an image and its label."""


def contact_sheet(
    dataset: Any,
    path: str | os.PathLike[str],
    n_images: int = 32,
    *,
    columns: int = 8,
    class_names: Sequence[str] | None = None,
) -> int:
    """Write the first images of a dataset with their labels as a PNG; return how many. Independent.

    Parameters
    ----------
    dataset : tf.data.Dataset
        Batches of images, from 0 to 1, and of labels: numbers, or one-hot.
    path : path_like
        Where to.
    n_images : int
        At most so many.
    columns : int
        Images in a row.
    class_names : sequence of str, optional
        What to write for each label; by default what the dataset has as `class_names`, else the number.

    Raises
    ------
    PackageMissingError
        If Matplotlib is not installed.
    OptionError
        If the dataset gives something else.
    StorageError, NoSpaceError, ReadOnlyError
        If the file cannot be written.
    """
    if not (is_whole(n_images, 1) and is_whole(columns, 1)):
        raise OptionError(f"n_images: {n_images!r}, columns: {columns!r} – positive numbers")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PackageMissingError(
            f"a contact sheet is drawn by Matplotlib, which cannot be loaded ({error}): pip install 'hpcckpt[plot]'"
        ) from error
    names = class_names if class_names is not None else getattr(dataset, "class_names", ())
    found = list(itertools.islice(_examples(dataset), n_images))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(_INCHES * min(columns, len(found)), _INCHES * 1.15 * rows), layout="tight")
    FigureCanvasAgg(figure)
    for number, (image, label) in enumerate(found, 1):
        axes = figure.add_subplot(rows, min(columns, len(found)), number)
        axes.imshow(image, cmap="gray", vmin=0, vmax=1)
        axes.set_title(names[label] if label < len(names) else str(label), fontsize=7, parse_math=False)
        axes.set_axis_off()
    try:
        figure.savefig(path, format="png", dpi=100)
    except OSError as error:
        raise from_os_error(error, "write") from error
    return len(found)


def _examples(dataset: Any) -> Iterator[tuple[Any, int]]:
    """Yield an image that Matplotlib draws, and its label."""
    for batch in dataset:
        if not isinstance(batch, tuple) or len(batch) < 2 or len(batch[0].shape) != 4:
            raise OptionError("a contact sheet needs batches of images (batch, height, width, channels) and of labels")
        images, labels = batch[0].numpy(), batch[1].numpy()
        for image, label in zip(images, labels, strict=True):
            is_number = np.ndim(label) == 0
            drawn = image[..., 0] if image.shape[-1] < 3 else image[..., :3]
            yield np.clip(drawn, 0, 1), int(label if is_number else np.argmax(label))
