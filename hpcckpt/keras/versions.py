"""Which Keras is installed."""

from __future__ import annotations

import keras

IS_KERAS_3 = not keras.__version__.startswith("2.")
