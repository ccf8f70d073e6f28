"""What networks are made of; importing it loads no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcckpt.core.lazy import attach

if TYPE_CHECKING:
    from hpcckpt.train.models.components.convolution import ConvBlock
    from hpcckpt.train.models.components.patches import PatchEmbedding, PositionEmbedding
    from hpcckpt.train.models.components.res_net_block import ResNetBlock
    from hpcckpt.train.models.components.residual import ResidualBlock, ResidualStage
    from hpcckpt.train.models.components.transformer import TransformerBlock

_HOME = {
    "ConvBlock": "convolution",
    "PatchEmbedding": "patches",
    "PositionEmbedding": "patches",
    "ResNetBlock": "res_net_block",
    "ResidualBlock": "residual",
    "ResidualStage": "residual",
    "TransformerBlock": "transformer",
}

__all__ = [
    "ConvBlock",
    "PatchEmbedding",
    "PositionEmbedding",
    "ResNetBlock",
    "ResidualBlock",
    "ResidualStage",
    "TransformerBlock",
]

__getattr__, __dir__ = attach(__name__, __all__, _HOME)
