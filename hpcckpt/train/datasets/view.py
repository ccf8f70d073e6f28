"""Shows images of a data set with their labels: ``python -m hpcckpt.train.datasets.view CONFIG -o sheet.png``.

It works for every data set that gives batches of images and of labels, and needs Matplotlib (``hpcckpt[plot]``).
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.errors import HpcckptError, OptionError
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
    figure.savefig(path, format="png", dpi=100)
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


def main(argv: Sequence[str] | None = None) -> int:
    """Write a contact sheet of a configuration's data; return the exit code."""
    parser = argparse.ArgumentParser(description="Draw images of a configuration's data set, with their labels.")
    parser.add_argument("config", metavar="CONFIG", help="JSON or Hjson, as for hpcckpt train")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", type=Path, help="the PNG to write")
    parser.add_argument("-n", "--images", type=int, default=32, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--columns", type=int, default=8, metavar="N", help="in a row (default: %(default)s)")
    parser.add_argument("--cycle", type=int, default=1, metavar="N", help="the cycle (default: %(default)s)")
    parser.add_argument("--valid", action="store_true", help="the images to validate with")
    parser.add_argument("--allow", action="append", default=[], metavar="ROOT", help="as for hpcckpt train")
    asked = parser.parse_args(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        n = contact_sheet(_configured(asked), asked.output, asked.images, columns=asked.columns)
    except HpcckptError as error:
        print(f"hpcckpt: error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{asked.output}: {n} images")
    return 0


def _configured(asked: argparse.Namespace) -> Any:
    """Return the dataset that a configuration names."""
    from hpcckpt.train.config.cycles import cycles
    from hpcckpt.train.names.allow_list import Catalogue

    catalogue = Catalogue(asked.allow)
    whole = cycles(asked.config, catalogue=catalogue)
    if not 1 <= asked.cycle <= len(whole):
        raise OptionError(f"--cycle {asked.cycle}: {asked.config} has {len(whole)} cycles, counted from 1")
    made = whole[asked.cycle - 1].datasets.build(catalogue)
    pair = tuple(made) if isinstance(made, tuple | list) else (made,)
    if asked.valid and len(pair) < 2:
        raise OptionError(f"--valid: {asked.config} has no images to validate with")
    return pair[1 if asked.valid else 0]


if __name__ == "__main__":
    sys.exit(main())
