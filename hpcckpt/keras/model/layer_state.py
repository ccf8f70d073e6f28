"""State of layers that is in no weight: vocabularies, bins, and what a layer saves by Keras' ``save_own_variables``.

Each is one leaf of bytes, and a checkpoint may lack some of them. Values are given to the layers after
all weights have theirs, because ``load_own_variables`` may use weights.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.errors import StateError
from hpcckpt.keras.model.finalize import finalize
from hpcckpt.keras.model.layers import named_layers
from hpcckpt.state.packing import pack, unpack
from hpcckpt.state.tf_variables import VariableLeaf
from hpcckpt.state.tree import Array, DynamicPart, Finish, Leaf, Resolved, TensorLeaf, declare, join

_log = logging.getLogger("hpcckpt")
_Read = Callable[[], Array]
_Write = Callable[[Array], None]


class LayerStateLeaf(TensorLeaf):
    """The leaf of such a state. `assign` keeps a value, and `finish` gives it to the layer."""

    def __init__(self, declaration: Declaration, value: Array, write: _Write) -> None:
        self.value: Array | None = None
        super().__init__(declaration, lambda: value, self._keep)
        self._write = write

    def _keep(self, new: Array) -> None:
        self.value = new

    def fitted(self, spec: TensorSpec) -> LayerStateLeaf:
        """Return a leaf for the same state as a checkpoint has it. Pure."""
        return LayerStateLeaf(Declaration(spec, Extent.whole(spec.shape)), self.read(), self._write)

    def finish(self) -> None:
        """Give the layer the value that was assigned, if one was. Independent."""
        if self.value is not None:
            self._write(self.value)


def layer_state_leaves(model: Any, name: str) -> Iterator[LayerStateLeaf]:
    """Yield the leaves of what the layers of a model keep outside of weights. Independent."""
    for path, layer in (("", model), *named_layers(model)):
        for part, read, write in _states_of(layer):
            value, full = read(), join(name, join(path, part))
            yield LayerStateLeaf(declare(value, full, "root"), value, write)


def finish(model: Any, leaves: Iterable[TensorLeaf]) -> None:
    """Give layers their state, and let them derive what they compute with, after all leaves are assigned. Independent.

    Parameters
    ----------
    model : keras.Model
        The model.
    leaves : iterable of TensorLeaf
        The leaves that were assigned.
    """
    states = [leaf for leaf in leaves if isinstance(leaf, LayerStateLeaf)]
    for leaf in states:
        leaf.finish()
    finalize(model, is_changed=any(leaf.value is not None for leaf in states))


def fitted(leaf: TensorLeaf, spec: TensorSpec) -> TensorLeaf:
    """Return the leaf for what a checkpoint has, if `leaf` takes any length; else `leaf` itself. Pure."""
    if isinstance(leaf, LayerStateLeaf):
        return leaf.fitted(spec) if (spec.dtype, len(spec.shape)) == ("uint8", 1) else leaf
    if not isinstance(leaf, VariableLeaf) or leaf.source.shape.is_fully_defined():
        return leaf
    if not leaf.source.shape.is_compatible_with(spec.shape):
        return leaf
    return VariableLeaf(Declaration(spec, Extent.whole(spec.shape)), leaf.source)


def restoring_parts(model: Any, leaves: Iterable[TensorLeaf]) -> Iterator[Leaf]:
    """Yield what a restore does beside assigning a model's leaves: fit them to the checkpoint, and finish."""
    own = {leaf.declaration.spec.name: leaf for leaf in leaves}
    now = dict(own)

    def resolve(specs: Mapping[str, TensorSpec], _objects: Mapping[str, Any]) -> Resolved:
        now.update({name: fitted(leaf, specs[name]) for name, leaf in own.items() if name in specs})
        absent = [name for name in own if name not in specs and isinstance(own[name], LayerStateLeaf)]
        warn_of_absent(absent)
        return Resolved([leaf for name, leaf in now.items() if leaf is not own[name]], absent)

    yield DynamicPart(resolve)
    yield Finish(lambda: finish(model, now.values()))


def warn_of_absent(names: Iterable[str]) -> None:
    """Log which states of layers a checkpoint has not: older versions did not save them. Independent."""
    for name in names:
        _log.warning("hpcckpt: %s is not in the checkpoint: the layer keeps what it has", name)


def _states_of(layer: Any) -> Iterator[tuple[str, _Read, _Write]]:
    """Yield the states of one layer: their names, and functions that read and write them."""
    if hasattr(layer, "_lookup_table_from_tokens") and layer.input_vocabulary is None:
        yield "vocabulary", functools.partial(_tokens, layer), functools.partial(_set_tokens, layer)
    if _keeps_bins(layer):
        yield "bins", lambda: pack({}, layer.bin_boundaries), functools.partial(_set_bins, layer)
    if _keras_class(layer) is not None:
        yield "own_variables", functools.partial(_own_variables, layer), functools.partial(_set_own, layer)


# -- vocabularies ----------------------------------------------------------------------------------


def _tokens(layer: Any) -> Array:
    """Return a vocabulary as bytes, without the tokens that the layer's configuration has."""
    import tensorflow as tf

    tokens = layer.get_vocabulary(include_special_tokens=False) if layer.vocabulary_size() else []
    idf = getattr(layer, "idf_weights_const", None)
    held = tf.io.serialize_tensor(tf.convert_to_tensor(list(tokens), layer.vocabulary_dtype)).numpy()
    return pack({"tokens": np.frombuffer(held, np.uint8), **({} if idf is None else {"idf_weights": np.asarray(idf)})})


def _set_tokens(layer: Any, packed: Array) -> None:
    import tensorflow as tf

    arrays, _ = unpack(packed)
    tokens = tf.io.parse_tensor(arrays["tokens"].tobytes(), layer.vocabulary_dtype)
    empty = layer._uninitialized_lookup_table
    layer.lookup_table = layer._lookup_table_from_tokens(tokens) if tf.size(tokens) else empty()
    if "idf_weights" in arrays:
        layer.load_own_variables({"idf_weights": arrays["idf_weights"]})
    layer._record_vocabulary_size()


# -- bins of Keras 3, which are no weights there ---------------------------------------------------


def _keeps_bins(layer: Any) -> bool:
    is_adapted = hasattr(layer, "bin_boundaries") and getattr(layer, "num_bins", None) is not None
    return is_adapted and not hasattr(layer, "input_bin_boundaries")


def _set_bins(layer: Any, packed: Array) -> None:
    layer.bin_boundaries = unpack(packed)[1]


# -- what a layer saves itself ---------------------------------------------------------------------


def _keras_class(layer: Any) -> type[Any] | None:
    """Return the class of Keras that a layer of the program derives from, if it saves variables in its own way."""
    for cls in type(layer).__mro__:
        if cls.__module__.partition(".")[0] == "keras":
            return None
        if "save_own_variables" in vars(cls) or "load_own_variables" in vars(cls):
            break
    return next((cls for cls in type(layer).__mro__ if cls.__module__.partition(".")[0] == "keras"), None)


def _own_variables(layer: Any) -> Array:
    """Return what a layer saves, as bytes, without the weights among it: these are leaves themselves."""
    own, weights = _store(layer, type(layer)), _store(layer, _keras_class(layer))
    return pack({key: value for key, value in own.items() if not _is_weight(key, value, weights)})


def _set_own(layer: Any, packed: Array) -> None:
    own, weights = _store(layer, type(layer)), _store(layer, _keras_class(layer))
    held = [(each, np.array(each)) for each in layer.weights if not hasattr(each, "get_tensors")]
    layer.load_own_variables({key: weights[key] for key in own if key in weights} | unpack(packed)[0])
    for weight, value in held:  # of a layer that stores another form of them, such as merged ones
        weight.assign(value)


def _store(layer: Any, cls: Any) -> dict[str, Array]:
    found: dict[str, Any] = {}
    cls.save_own_variables(layer, found)
    arrays = {key: _as_text(np.asarray(value)) for key, value in found.items()}
    odd = [key for key, array in arrays.items() if array.dtype.hasobject]
    if odd:
        raise StateError(
            f"layer {layer.name}: save_own_variables stores {', '.join(odd)}, which is no array of numbers or text"
        )
    return arrays


def _as_text(array: Array) -> Array:
    """Return an array of texts, which Keras' files take as objects, in a dtype for text; any other as it is."""
    is_text = array.dtype.hasobject and array.size > 0 and {*map(type, array.flat)} in ({str}, {bytes})
    return array.astype(type(array.flat[0])) if is_text else array


def _is_weight(key: str, value: Array, weights: Mapping[str, Array]) -> bool:
    return key in weights and value.dtype == weights[key].dtype and value.tobytes() == weights[key].tobytes()
