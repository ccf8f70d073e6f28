"""What networks are made of; importing it loads no framework."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcckpt.train.models.components.convolution import ConvBlock
    from hpcckpt.train.models.components.patches import PatchEmbedding, PositionEmbedding
    from hpcckpt.train.models.components.residual import ResidualBlock, ResidualStage
    from hpcckpt.train.models.components.transformer import TransformerBlock

_HOME = {
    "ConvBlock": "convolution",
    "PatchEmbedding": "patches",
    "PositionEmbedding": "patches",
    "ResidualBlock": "residual",
    "ResidualStage": "residual",
    "TransformerBlock": "transformer",
}

__all__ = ["ConvBlock", "PatchEmbedding", "PositionEmbedding", "ResidualBlock", "ResidualStage", "TransformerBlock"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
