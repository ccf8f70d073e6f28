"""A small transformer for images."""

from __future__ import annotations

from typing import Any

import keras

from hpcckpt.train.models.components import PatchEmbedding, TransformerBlock
from hpcckpt.train.models.configured import Network, base_config, check_counts, known

layers = keras.layers


@known
class SmallTransformer(Network):
    """Features of images by attention between their patches, https://arxiv.org/abs/2010.11929.

    ``patches``, then ``block1``, ``block2`` and so on, then the mean over all places. It learns the positions of
    patches, so all images have the size of the first.

    Parameters
    ----------
    patch_size : int
        Height and width of a patch.
    dim : int
        Length of the vectors, and of the features.
    depth : int
        How many blocks.
    n_heads, mlp_ratio, dropout : int, int, float
        As in `TransformerBlock`.
    **kwargs
        Of `keras.Model`.
    """

    def __init__(
        self,
        patch_size: int = 7,
        dim: int = 64,
        depth: int = 2,
        n_heads: int = 4,
        mlp_ratio: int = 2,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_counts("SmallTransformer", depth=depth)
        self.patch_size, self.dim, self.depth = patch_size, dim, depth
        self.n_heads, self.mlp_ratio, self.rate = n_heads, mlp_ratio, dropout
        self.patches = PatchEmbedding(patch_size, dim, name="patches")
        for number in range(1, depth + 1):
            block = TransformerBlock(dim, n_heads, mlp_ratio, dropout, name=f"block{number}")
            setattr(self, f"block{number}", block)
        self.norm = layers.LayerNormalization(epsilon=1e-6, name="norm")
        self.mean = layers.GlobalAveragePooling1D(name="mean")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return a vector of features for each image."""
        sequence = self.patches(inputs)
        for number in range(1, self.depth + 1):
            sequence = getattr(self, f"block{number}")(sequence, training=training)
        return self.mean(self.norm(sequence))

    def get_config(self) -> dict[str, Any]:
        """Return what it was made of."""
        return {
            **base_config(self),
            "patch_size": self.patch_size,
            "dim": self.dim,
            "depth": self.depth,
            "n_heads": self.n_heads,
            "mlp_ratio": self.mlp_ratio,
            "dropout": self.rate,
        }
