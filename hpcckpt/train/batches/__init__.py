"""Batch processors: each takes the datasets of a data set, and returns them with other batches.

``triplets``            each image with one of its class and one of another class, for `TripletLoss`
``centres``             where the digit is, in place of its class: for regression
``classes_and_centres``  both, by name: for `MultiHeadNet`
``rows``                the rows of the image from the last to the first: for `EncoderDecoderNet`

They are made of TensorFlow's operations and draw no random numbers, so the position in the data is saved and restored as
without them. Importing this package loads no framework; names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.batches.labels import centres, classes_and_centres, rows
    from hpcckpt.train.batches.mapping import each_batch
    from hpcckpt.train.batches.triplet import triplets

_HOME = {
    "centres": "labels",
    "classes_and_centres": "labels",
    "each_batch": "mapping",
    "rows": "labels",
    "triplets": "triplet",
}

__all__ = ["centres", "classes_and_centres", "each_batch", "rows", "triplets"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
