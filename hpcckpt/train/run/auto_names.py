"""The names that Keras makes up for models and layers that were given none, such as ``dense`` and ``dense_1``.

Keras counts them over the life of a process.  A cycle that a resumed run begins with would so get other names than in a
run that came to it through the cycles before, and its checkpoints would differ in nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import MutableMapping
from typing import Any


def begin() -> None:
    """Count from one again, as ``keras.backend.clear_session`` does; all else that it clears is left. Independent."""
    _counts().clear()


def _counts() -> MutableMapping[Any, int]:
    import keras

    counts: MutableMapping[Any, int]
    if keras.__version__.startswith("3"):
        from keras.src.backend.common import global_state

        counts = global_state.get_global_attribute("object_name_uids", defaultdict(int), set_to_default=True)
    else:
        from keras.src import backend

        counts = backend.get_default_graph_uid_map()
    return counts
