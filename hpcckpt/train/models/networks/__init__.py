"""Networks that turn images or sequences into features, and back; importing it loads no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.models.networks.res_net import ResNet
    from hpcckpt.train.models.networks.sequences import SequenceDecoder, SequenceEncoder
    from hpcckpt.train.models.networks.small_conv_net import SmallConvNet
    from hpcckpt.train.models.networks.small_res_net import SmallResNet
    from hpcckpt.train.models.networks.small_transformer import SmallTransformer

_HOME = {
    "ResNet": "res_net",
    "SequenceDecoder": "sequences",
    "SequenceEncoder": "sequences",
    "SmallConvNet": "small_conv_net",
    "SmallResNet": "small_res_net",
    "SmallTransformer": "small_transformer",
}

__all__ = ["ResNet", "SequenceDecoder", "SequenceEncoder", "SmallConvNet", "SmallResNet", "SmallTransformer"]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
