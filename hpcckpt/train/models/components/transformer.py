"""A block of a transformer's encoder, normalized before and not after, https://arxiv.org/abs/2002.04745."""

from __future__ import annotations

from typing import Any

import keras

from hpcckpt.errors import OptionError
from hpcckpt.train.models.configured import Network, base_config, check_counts, check_share, known

layers = keras.layers


@known
class TransformerBlock(Network):
    """Attention of a sequence to itself, then two dense layers for each place; both are added to what came in.

    Parameters
    ----------
    dim : int
        Length of the vectors that come in and go out.
    n_heads : int
        Heads of attention; `dim` must be a multiple.
    mlp_ratio : int
        How many times longer vectors are between the dense layers.
    dropout : float
        Of attention, and after the dense layers.
    **kwargs
        Of `keras.Model`.
    """

    def __init__(self, dim: int, n_heads: int = 4, mlp_ratio: int = 2, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_counts("TransformerBlock", dim=dim, n_heads=n_heads, mlp_ratio=mlp_ratio)
        check_share("TransformerBlock", dropout=dropout)
        if dim % n_heads:
            raise OptionError(f"TransformerBlock: dim: {dim} – a multiple of n_heads, {n_heads}")
        self.dim, self.n_heads, self.mlp_ratio, self.rate = dim, n_heads, mlp_ratio, dropout
        self.norm1 = layers.LayerNormalization(epsilon=1e-6, name="norm1")
        self.attention = layers.MultiHeadAttention(n_heads, dim // n_heads, dropout=dropout, name="attention")
        self.add1 = layers.Add(name="add1")
        self.norm2 = layers.LayerNormalization(epsilon=1e-6, name="norm2")
        self.widen = layers.Dense(dim * mlp_ratio, activation="gelu", name="widen")
        self.narrow = layers.Dense(dim, name="narrow")
        self.dropout = layers.Dropout(dropout, name="dropout")
        self.add2 = layers.Add(name="add2")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return a sequence as long as the one that came in."""
        normal = self.norm1(inputs)
        sequence = self.add1([inputs, self.attention(normal, normal, training=training)])
        wide = self.narrow(self.widen(self.norm2(sequence)))
        return self.add2([sequence, self.dropout(wide, training=training)])

    def get_config(self) -> dict[str, Any]:
        """Return what it was made of."""
        return {
            **base_config(self),
            "dim": self.dim,
            "n_heads": self.n_heads,
            "mlp_ratio": self.mlp_ratio,
            "dropout": self.rate,
        }
