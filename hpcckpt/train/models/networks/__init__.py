"""Networks that turn images into features, whatever those are for; importing it loads no framework."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcckpt.train.models.networks.small_conv_net import SmallConvNet
    from hpcckpt.train.models.networks.small_res_net import SmallResNet
    from hpcckpt.train.models.networks.small_transformer import SmallTransformer

_HOME = {
    "SmallConvNet": "small_conv_net",
    "SmallResNet": "small_res_net",
    "SmallTransformer": "small_transformer",
}

__all__ = ["SmallConvNet", "SmallResNet", "SmallTransformer"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
