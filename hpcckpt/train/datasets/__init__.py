"""Images to train with, one folder per data set: a parser, a converter to TFRecords, and datasets.

``<name>/parser.py``           ``parse()``: the raw data as arrays
``<name>/raw_to_tfrecord.py``  ``convert()``: from there to shards of TFRecords, also ``python -m …raw_to_tfrecord``
``<name>/dataset.py``          ``from_raw()`` and ``from_tfrecord()``: a pair of ``tf.data`` datasets, to train and to
                               validate with, of which each rank has its share

``folders`` and ``shards`` are for images of one's own, more than fit into memory: read as they are needed
(``streaming``).

For custom data sets (``docs/train-parts.md``): a parser returns `Raw` of `Images`, `Feeding` describes batches and
order, `from_arrays` makes the datasets; a `Recipe` describes how the data is made, `convert_once` makes TFRecords of
it, `from_records` datasets of those.

Importing this package loads neither TensorFlow nor what a data set needs; names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach
from hpcckpt.train.datasets.sharing import Share, share, sharing

if TYPE_CHECKING:
    from hpcckpt.train.datasets import digits, folders, mnist, shards, synthetic
    from hpcckpt.train.datasets.feeding import Feeding
    from hpcckpt.train.datasets.images import Images, Raw
    from hpcckpt.train.datasets.pipelines import from_arrays
    from hpcckpt.train.datasets.tfrecords.converting import Recipe, convert_once
    from hpcckpt.train.datasets.tfrecords.reading import from_records

_FOLDERS = ("digits", "folders", "mnist", "shards", "synthetic")
_HOME = {
    "Feeding": "feeding",
    "Images": "images",
    "Raw": "images",
    "Recipe": "tfrecords.converting",
    "convert_once": "tfrecords.converting",
    "from_arrays": "pipelines",
    "from_records": "tfrecords.reading",
}

__all__ = [
    "Feeding",
    "Images",
    "Raw",
    "Recipe",
    "Share",
    "convert_once",
    "digits",
    "folders",
    "from_arrays",
    "from_records",
    "mnist",
    "shards",
    "share",
    "sharing",
    "synthetic",
]

__getattr__, __dir__ = attach(__name__, __all__, _HOME, _FOLDERS)
