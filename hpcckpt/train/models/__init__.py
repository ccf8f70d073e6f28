"""Models to train: whole ones, networks that turn images into features, and the components of both.

``OneHeadNet(num_outputs, base_model)``  any Keras model, followed by one dense layer
``MultiHeadNet(heads, base_model)``      the same, followed by one dense layer for each task
``TripletNet(dim, base_model)``          the same, followed by vectors that are near to each other within a class
``EncoderDecoderNet(encoder, decoder)``  sequences of sequences
``LeNet5(num_outputs)``                  the classic, whole
``networks``                             features of images: `SmallConvNet`, `SmallResNet`, `ResNet`, `SmallTransformer`;
                                         of sequences: `SequenceEncoder`; and back: `SequenceDecoder`
``components``                           what those are made of

All of them are Keras models or layers with a config of plain values, on Keras 2.15 and Keras 3. Their parts are
attributes that are named as their layers are, so that ``base_model@layer1@resample`` is a path, and the same in each.
Importing this package loads no framework; names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.models import components, networks
    from hpcckpt.train.models.encoder_decoder_net import EncoderDecoderNet
    from hpcckpt.train.models.lenet5 import LeNet5
    from hpcckpt.train.models.multi_head_net import MultiHeadNet
    from hpcckpt.train.models.one_head_net import OneHeadNet
    from hpcckpt.train.models.triplet_net import TripletNet

_HOME = {
    "EncoderDecoderNet": "encoder_decoder_net",
    "LeNet5": "lenet5",
    "MultiHeadNet": "multi_head_net",
    "OneHeadNet": "one_head_net",
    "TripletNet": "triplet_net",
}
_MODULES = ("components", "networks")

__all__ = [
    "EncoderDecoderNet",
    "LeNet5",
    "MultiHeadNet",
    "OneHeadNet",
    "TripletNet",
    "components",
    "networks",
]

__getattr__, __dir__ = attach(__name__, __all__, _HOME, _MODULES)
