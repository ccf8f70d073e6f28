"""A sequence encoder and a sequence decoder."""

from __future__ import annotations

from typing import Any

import keras

from hpcckpt.train.models.configured import Network, base_config, check_part, known, parts_from_config


@known
class EncoderDecoderNet(Network):
    """A network that turns sequences into vectors and these into sequences.

    https://arxiv.org/abs/1409.3215. The outputs are numbers, or logits for each step.

    Parameters
    ----------
    encoder : keras.Model
        Returns a vector for each sequence, such as `networks.SequenceEncoder`.
    decoder : keras.Model
        Returns a sequence for each vector, such as `networks.SequenceDecoder`.
    **kwargs
        Arguments of `keras.Model`.
    """

    def __init__(self, encoder: Any, decoder: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_part("EncoderDecoderNet", "encoder", encoder)
        check_part("EncoderDecoderNet", "decoder", decoder)
        self.encoder, self.decoder = encoder, decoder

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return a sequence for each sequence."""
        return self.decoder(self.encoder(inputs, training=training), training=training)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that it was made with."""
        parts = {"encoder": self.encoder, "decoder": self.decoder}
        return base_config(self) | {name: keras.saving.serialize_keras_object(part) for name, part in parts.items()}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> EncoderDecoderNet:
        """Return a model like the one that gave `config`, with new weights."""
        return cls(**parts_from_config(config, ["encoder", "decoder"], custom_objects))
