"""Images as a sequence of patches, for networks that read sequences, https://arxiv.org/abs/2010.11929."""

from __future__ import annotations

from typing import Any

import keras

from hpcckpt.train.models.configured import Network, base_config, check_counts, known

layers = keras.layers


@known
class PositionEmbedding(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Adds to each place of a sequence what is learned for this place."""

    def build(self, input_shape: Any) -> None:
        """Make as many places as the sequences have."""
        self.places = self.add_weight(
            name="places", shape=tuple(input_shape[1:]), initializer=keras.initializers.RandomNormal(stddev=0.02)
        )
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        """Return the sequence with its places added."""
        return inputs + self.places


@known
class PatchEmbedding(Network):
    """Square patches of images as a sequence of vectors with position embeddings.

    Parameters
    ----------
    patch_size : int
        Height and width; what is left at the right and at the bottom is left out.
    dim : int
        Length of the vectors.
    **kwargs
        Of `keras.Model`.
    """

    def __init__(self, patch_size: int, dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_counts("PatchEmbedding", patch_size=patch_size, dim=dim)
        self.patch_size, self.dim = patch_size, dim
        self.project = layers.Conv2D(dim, patch_size, patch_size, name="project")
        self.in_a_row = layers.Reshape((-1, dim), name="in_a_row")
        self.position = PositionEmbedding(name="position")

    def call(self, inputs: Any) -> Any:
        """Return a sequence of patches for each image."""
        return self.position(self.in_a_row(self.project(inputs)))

    def get_config(self) -> dict[str, Any]:
        """Return what it was made of."""
        return {**base_config(self), "patch_size": self.patch_size, "dim": self.dim}
