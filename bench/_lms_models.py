"""The models that `lms.py` and `lms_budgets.py` train; none needs more than Keras."""

from __future__ import annotations

from typing import Any

import numpy as np

MODELS = ("resnet50", "mlp", "unet", "transformer", "mobilenet")
BATCHES = {"resnet50": 16, "mlp": 4096, "unet": 4, "transformer": 16, "mobilenet": 16, "conv": 256}


def build(name: str, batch: int) -> tuple[Any, tuple[Any, Any]]:
    """Return a compiled model and one batch."""
    import keras

    keras.utils.set_random_seed(7)
    chance = np.random.default_rng(7)
    model, shape, n_classes = _MAKERS[name](keras)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=n_classes == 2)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    x = chance.standard_normal((batch, *shape), np.float32)
    y = chance.integers(0, n_classes, (batch, *model.output_shape[1:-1])).astype(np.int32)
    return model, (x, y)


def _resnet50(keras: Any) -> tuple[Any, tuple[int, ...], int]:
    return keras.applications.ResNet50(weights=None), (224, 224, 3), 1000


def _mobilenet(keras: Any) -> tuple[Any, tuple[int, ...], int]:
    return keras.applications.MobileNetV2(weights=None), (224, 224, 3), 1000


def _mlp(keras: Any) -> tuple[Any, tuple[int, ...], int]:
    layers = [keras.layers.Dense(512, "relu") for _ in range(24)]
    model = keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(10, "softmax")])
    return model, (512,), 10


def _unet(keras: Any) -> tuple[Any, tuple[int, ...], int]:
    layers = keras.layers
    image = x = keras.Input((128, 128, 3))
    skips = []
    for width in (32, 64, 128):
        x = _double(layers, x, width)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = _double(layers, x, 256)
    for width in (128, 64, 32):
        x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = _double(layers, layers.Concatenate()([x, skips.pop()]), width)
    return keras.Model(image, layers.Conv2D(2, 1)(x)), (128, 128, 3), 2


def _double(layers: Any, x: Any, width: int) -> Any:
    for _ in range(2):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
    return x


def _transformer(keras: Any) -> tuple[Any, tuple[int, ...], int]:
    layers = keras.layers
    tokens = x = keras.Input((128, 256))
    for _ in range(6):
        x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(8, 32)(x, x)]))
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(256)(layers.Dense(1024, "gelu")(x))]))
    pooled = layers.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, layers.Dense(10, "softmax")(pooled)), (128, 256), 10


def _conv(keras: Any) -> tuple[Any, tuple[int, ...], int]:
    layers = [keras.layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(3)]
    head = [keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
    return keras.Sequential([keras.Input((28, 28, 1)), *layers, *head]), (28, 28, 1), 10


_MAKERS = {
    "conv": _conv,
    "resnet50": _resnet50, "mlp": _mlp, "unet": _unet, "transformer": _transformer, "mobilenet": _mobilenet
}  # fmt: skip
