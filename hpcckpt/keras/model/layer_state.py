"""State of layers in no weight: vocabularies, bins, what layers save by ``save_own_variables`` and ``save_assets``.

Each is one leaf of bytes, and a checkpoint may lack some of them. Values are given to the layers after
all weights have theirs, because ``load_own_variables`` may use weights.
"""

from __future__ import annotations

import functools
import logging
import tempfile
import weakref
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import Extent, TensorSpec
from hpcckpt.errors import CorruptError, StateError
from hpcckpt.keras.model.finalize import finalize
from hpcckpt.keras.model.layers import named_layers
from hpcckpt.state.packing import pack, unpack
from hpcckpt.state.tf_variables import VariableLeaf
from hpcckpt.state.tree import Array, DynamicPart, Finish, Leaf, Resolved, TensorLeaf, declare, join

_log = logging.getLogger("hpcckpt")
_Read = Callable[[], Array]
_Write = Callable[[Array], None]
_OWN, _ASSETS = ("save_own_variables", "load_own_variables"), ("save_assets", "load_assets")


class LayerStateLeaf(TensorLeaf):
    """The leaf of such a state. `assign` keeps a value, and `finish` gives it to the layer.

    It `is_given` where the program made the layer with it, so that it is there without a checkpoint too.
    """

    def __init__(
        self,
        declaration: Declaration,
        value: Array,
        write: _Write,
        place: tuple[str, int, str],
        *,
        is_given: bool = False,
    ) -> None:
        self.is_given = is_given
        self.value: Array | None = None
        super().__init__(declaration, lambda: value, self._keep)
        self._write, self._place = write, place

    def _keep(self, new: Array) -> None:
        self.value = new

    def fitted(self, spec: TensorSpec) -> LayerStateLeaf:
        """Return a leaf for the same state as a checkpoint has it. Pure."""
        declaration = Declaration(spec, Extent.whole(spec.shape))
        return LayerStateLeaf(declaration, self.read(), self._write, self._place, is_given=self.is_given)

    @property
    def is_compared(self) -> bool:
        """Whether it must be equal on all ranks: what layers make of their input; what they save may differ."""
        return self._place[-1] in {"vocabulary", "bins"}

    def place(self) -> Hashable:
        """Return which state of which layer it is."""
        return self._place

    def finish(self) -> None:
        """Give the layer the value that was assigned, if one was. Independent."""
        if self.value is not None:
            self._write(self.value)


def layer_state_leaves(model: Any, name: str) -> Iterator[LayerStateLeaf]:
    """Yield the leaves of what the layers of a model keep outside of weights. Independent."""
    for path, layer in (("", model), *named_layers(model)):
        for part, read, write in _states_of(layer):
            value, full = read(), join(name, join(path, part))
            is_given = part == "vocabulary" and _has_fixed_vocabulary(layer)
            yield LayerStateLeaf(
                replace(declare(value, full, "root"), is_value=True),
                value,
                write,
                ("layer", id(layer), part),
                is_given=is_given,
            )


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


def restoring_parts(model: Any, leaves: Iterable[TensorLeaf], optional: Container[str] = ()) -> Iterator[Leaf]:
    """Yield what a restore does beside assigning a model's leaves: fit them to the checkpoint, and finish.

    Of the leaves, checkpoints may lack the states of layers, and those whose names are `optional`.
    """
    own = {leaf.declaration.spec.name: leaf for leaf in leaves}
    now = dict(own)

    def resolve(specs: Mapping[str, TensorSpec], _objects: Mapping[str, Any]) -> Resolved:
        now.update({name: fitted(leaf, specs[name]) for name, leaf in own.items() if name in specs})
        may_lack = {name for name, leaf in own.items() if isinstance(leaf, LayerStateLeaf) or name in optional}
        absent = [name for name in own if name in may_lack and name not in specs]
        warn_of_absent({name: own[name] for name in absent})
        return Resolved([leaf for name, leaf in now.items() if leaf is not own[name]], absent)

    yield DynamicPart(resolve)
    yield Finish(lambda: finish(model, now.values()))


def warn_of_absent(leaves: Mapping[str, TensorLeaf]) -> None:
    """Log which states of layers a checkpoint has not: older versions did not save them. Independent."""
    for name, leaf in leaves.items():
        if not (isinstance(leaf, LayerStateLeaf) and leaf.is_given):
            _log.warning("hpcckpt: %s is not in the checkpoint: the layer keeps what it has", name)


def _states_of(layer: Any) -> Iterator[tuple[str, _Read, _Write]]:
    """Yield the states of one layer: their names, and functions that read and write them."""
    if _has_fixed_vocabulary(layer):
        yield "vocabulary", functools.partial(_fixed_tokens, layer), functools.partial(_replace_tokens, layer)
    elif _is_lookup(layer):
        yield "vocabulary", functools.partial(_tokens, layer), functools.partial(_set_tokens, layer)
    if _keeps_bins(layer):
        yield "bins", lambda: pack({}, layer.bin_boundaries), functools.partial(_set_bins, layer)
    if _keras_class(layer, *_OWN) is not None:
        yield "own_variables", functools.partial(_own_variables, layer), functools.partial(_set_own, layer)
    if _keras_class(layer, *_ASSETS) is not None and all(hasattr(layer, method) for method in _ASSETS):
        yield "assets", functools.partial(_assets, layer), functools.partial(_set_assets, layer)


# -- vocabularies ----------------------------------------------------------------------------------


_FIXED: weakref.WeakKeyDictionary[Any, tuple[Any, Array]] = weakref.WeakKeyDictionary()
"""Vocabularies that layers were given when they were made, as bytes, each with its table: another one has a new one."""


def _is_lookup(layer: Any) -> bool:
    return hasattr(layer, "_lookup_table_from_tokens")


def _has_fixed_vocabulary(layer: Any) -> bool:
    """Return True for a layer that was given its vocabulary when it was made."""
    return _is_lookup(layer) and layer.input_vocabulary is not None


def _fixed_tokens(layer: Any) -> Array:
    table, packed = _FIXED.get(layer, (None, None))
    if packed is None or table is not layer.lookup_table:
        packed = _tokens(layer)
        _FIXED[layer] = layer.lookup_table, packed
    return packed


def _replace_tokens(layer: Any, packed: Array) -> None:
    """Give a layer the vocabulary of a checkpoint if it was made with another one, in its configuration too."""
    if np.array_equal(packed, _fixed_tokens(layer)):
        return
    _log.warning("hpcckpt: layer %s has the vocabulary of the checkpoint, not the one it was made with", layer.name)
    _set_tokens(layer, packed)
    layer.input_vocabulary = layer.get_vocabulary(include_special_tokens=False)
    layer.input_idf_weights = unpack(packed)[0].get("idf_weights")


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


def _keras_class(layer: Any, *methods: str) -> type[Any] | None:
    """Return the class of Keras that a layer of the program derives from, if the program has one of the methods."""
    for cls in type(layer).__mro__:
        if cls.__module__.partition(".")[0] == "keras":
            return None
        if any(method in vars(cls) for method in methods):
            break
    return next((cls for cls in type(layer).__mro__ if cls.__module__.partition(".")[0] == "keras"), None)


def _own_variables(layer: Any) -> Array:
    """Return what a layer saves, as bytes, without the weights among it: these are leaves themselves."""
    own, weights = _store(layer, type(layer)), _store(layer, _keras_class(layer, *_OWN))
    return pack({key: value for key, value in own.items() if not _is_weight(key, value, weights)})


def _set_own(layer: Any, packed: Array) -> None:
    own, weights = _store(layer, type(layer)), _store(layer, _keras_class(layer, *_OWN))
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


# -- files that a layer saves itself -----------------------------------------------------------------


def _assets(layer: Any) -> Array:
    """Return the files that a layer saves by ``save_assets``, as bytes."""
    with tempfile.TemporaryDirectory(prefix="hpcckpt-assets-") as name:
        layer.save_assets(name)
        files = [path for path in sorted(Path(name).rglob("*")) if path.is_file()]
        return pack({str(path.relative_to(name)): np.frombuffer(path.read_bytes(), np.uint8) for path in files})


def _set_assets(layer: Any, packed: Array) -> None:
    with tempfile.TemporaryDirectory(prefix="hpcckpt-assets-") as name:
        for file, content in unpack(packed)[0].items():
            path = Path(name, file)
            if ".." in path.parts or not path.is_relative_to(name):
                raise CorruptError(f"layer {layer.name}: the checkpoint has an asset outside of its directory: {file}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.tobytes())
        layer.load_assets(name)
