"""Things that train: what is saved of them, and how they change, each in the way of its library.

All start from the same values on every rank and change the same, so that replicated tensors stay equal.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import hpcckpt as hc
from hpcckpt.restoring.reader import rank_name
from hpcckpt.state.tree import flatten

Array = np.ndarray[Any, Any]
SHAPES = {"kernel": (613, 217), "bias": (217,), "deep": (3, 5, 7, 11), "scalar": (), "wide": (2, 150_001)}


def initial(seed: int) -> dict[str, Array]:
    """Return the values to start from."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


class Subject:
    """What a case saves.

    Parameters
    ----------
    rank : int
        Whose it is.
    """

    incremental = False

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def reset(self, seed: int) -> None:
        """Begin again, with values that follow from the seed."""
        raise NotImplementedError

    @property
    def tree(self) -> Any:
        """What is given to save()."""
        raise NotImplementedError

    def update(self, number: int) -> None:
        """Take one step of training."""
        raise NotImplementedError

    def copies(self) -> dict[str, Array]:
        """Return copies of all values as they are now, by the names they have in a checkpoint."""
        raise NotImplementedError

    @contextmanager
    def still(self) -> Iterator[None]:
        """Keep still for the length of a block."""
        yield

    def end(self) -> None:
        """End what goes on in the background."""


# -- NumPy, and what shares memory with it -----------------------------------------------------------


class NumpyLoop(Subject):
    """Arrays that are updated in place: contiguous, transposed, and with gaps."""

    def reset(self, seed: int) -> None:
        self.arrays = initial(seed)
        self.arrays["transposed"] = np.asfortranarray(self.arrays["kernel"] * 2)
        self.arrays["gaps"] = np.repeat(self.arrays["wide"], 2, axis=1)[:, ::2]
        self.arrays["whole"] = (self.arrays["wide"] * 1000).astype(np.int64)

    @property
    def tree(self) -> Any:
        return {"numpy": self.arrays}

    def update(self, number: int) -> None:
        for array in self.arrays.values():
            array *= np.asarray(1 + number % 3, array.dtype)
            array += np.asarray(number, array.dtype)

    def copies(self) -> dict[str, Array]:
        return {f"numpy/{name}": np.array(array, order="C") for name, array in self.arrays.items()}


class NumpyThread(NumpyLoop):
    """Arrays that a thread of the program updates all the time, but while save() is called."""

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self.may_run, self.is_ended = threading.Lock(), False
        self.thread = threading.Thread(target=self._go_on, daemon=True)
        self.thread.start()

    def _go_on(self) -> None:
        number = 0
        while not self.is_ended:
            number += 1
            with self.may_run:
                super().update(number)
            threading.Event().wait(0.0002)

    @property
    def tree(self) -> Any:
        return {"numpy": {name: hc.PerRank(array) for name, array in self.arrays.items()}}

    def update(self, number: int) -> None:
        threading.Event().wait(0.001)

    def copies(self) -> dict[str, Array]:
        return {rank_name(name, self.rank): copy for name, copy in super().copies().items()}

    @contextmanager
    def still(self) -> Iterator[None]:
        with self.may_run:
            yield

    def end(self) -> None:
        self.is_ended = True
        self.thread.join()


class Torch(Subject):
    """A module of PyTorch under Adam; what is saved shares memory with its parameters and the optimizer's state."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        import torch

        torch.set_num_threads(1)
        self.torch = torch

    def reset(self, seed: int) -> None:
        torch = self.torch
        self.parameters = {name: torch.nn.Parameter(torch.from_numpy(a)) for name, a in initial(seed).items()}
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=0.01)
        self.update(0)

    @property
    def tree(self) -> Any:
        values = {name: p.detach().numpy() for name, p in self.parameters.items()}
        moments = {name: self.optimizer.state[p]["exp_avg"].numpy() for name, p in self.parameters.items()}
        return {"torch": values, "moments": moments}

    def update(self, number: int) -> None:
        for parameter in self.parameters.values():
            parameter.grad = parameter.detach() * 0.5 + number
        self.optimizer.step()

    def copies(self) -> dict[str, Array]:
        return {f"{part}/{name}": a.copy() for part, arrays in self.tree.items() for name, a in arrays.items()}


# -- TensorFlow --------------------------------------------------------------------------------------


def tensorflow() -> Any:
    """Import TensorFlow, quietly."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow as tf
    return tf


class TensorFlow(Subject):
    """Variables of TensorFlow, made once and set again for each case; subclasses say how they are updated."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.tf = tensorflow()
        values = initial(0)
        self.variables = {name: self.tf.Variable(array, name=name) for name, array in values.items()}
        self.moments = {name: self.tf.Variable(np.zeros_like(a), name=f"m_{name}") for name, a in values.items()}
        self.step = self._build()

    def _build(self) -> Callable[[Any], None]:
        raise NotImplementedError

    def reset(self, seed: int) -> None:
        for name, array in initial(seed).items():
            self.variables[name].assign(array)
            self.moments[name].assign(np.zeros_like(array))

    @property
    def tree(self) -> Any:
        return {"tf": self.variables, "moments": self.moments}

    def update(self, number: int) -> None:
        self.step(self.tf.constant(float(number % 7)))

    def copies(self) -> dict[str, Array]:
        trees = self.tree.items()
        return {f"{part}/{n}": np.array(v.numpy(), copy=True) for part, found in trees for n, v in found.items()}

    @property
    def _pairs(self) -> list[tuple[Any, Any]]:
        return [(self.variables[name], self.moments[name]) for name in self.variables]


class Assign(TensorFlow):
    """Variables that are assigned, eagerly."""

    def _build(self) -> Callable[[Any], None]:
        def step(number: Any) -> None:
            for variable, moment in self._pairs:
                moment.assign(variable * 0.5)
                variable.assign_add(moment * 0.1 + number)

        return step


class Dense(TensorFlow):
    """Variables under the fused Adam that writes in place, in a tf.function."""

    is_compiled: bool | None = None

    def _build(self) -> Callable[[Any], None]:
        tf = self.tf
        second = {name: tf.Variable(tf.ones_like(v), name=f"v_{name}") for name, v in self.variables.items()}
        rates = {"beta1_power": 0.9, "beta2_power": 0.99, "lr": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-7}

        @tf.function
        def step(number: Any) -> None:
            for name, variable in self.variables.items():
                slots = {"m": self.moments[name].handle, "v": second[name].handle}
                tf.raw_ops.ResourceApplyAdam(var=variable.handle, **slots, **rates, grad=variable * 0.5 + number)

        self.second = second
        return step

    def reset(self, seed: int) -> None:
        super().reset(seed)
        for variable in self.second.values():
            variable.assign(self.tf.ones_like(variable))


class Compiled(TensorFlow):
    """Variables under a step that XLA compiled: it gives buffers away to itself."""

    def _build(self) -> Callable[[Any], None]:
        @self.tf.function(jit_compile=True)
        def step(number: Any) -> None:
            for variable, moment in self._pairs:
                moment.assign(0.9 * moment + 0.1 * (variable * 0.5 + number))
                variable.assign_sub(0.01 * moment)

        return step


class Sparse(TensorFlow):
    """An embedding of which some rows are updated in place; others share their buffers with it."""

    def _build(self) -> Callable[[Any], None]:
        tf = self.tf

        @tf.function
        def step(number: Any) -> None:
            rows = tf.range(tf.cast(number, tf.int32), 600, 7)
            for variable, moment in [(self.variables["kernel"], self.moments["kernel"])]:
                slices = tf.IndexedSlices(tf.gather(variable, rows) * 0.25 + number, rows)
                moment.scatter_add(slices)
                variable.scatter_sub(slices)
            self.variables["bias"].assign_add(self.moments["bias"] + number)

        return step


class Frozen(TensorFlow):
    """Large variables that do not change for some steps, and then change; saved incrementally."""

    incremental = True

    def _build(self) -> Callable[[Any], None]:
        tf = self.tf
        count = 300_000
        self.large = {name: tf.Variable(tf.zeros([count]), name=name) for name in ("base", "late", "dense")}

        @tf.function
        def change(name: str, number: Any) -> None:
            self.large[name].assign_add(tf.fill([count], number + 1.0))

        def step(number: Any) -> None:
            self.variables["bias"].assign_add(self.moments["bias"] + number)
            change("dense", number)
            if int(number) == 5:
                change("late", number)

        return step

    def reset(self, seed: int) -> None:
        super().reset(seed)
        for n, variable in enumerate(self.large.values()):
            variable.assign(self.tf.fill(variable.shape, float(seed % 1000 + n)))

    @property
    def tree(self) -> Any:
        return {**super().tree, "large": self.large}

    def update(self, number: int) -> None:
        super().update(number * 7 if number % 5 else 5)


class Keras(Subject):
    """A model of Keras with its optimizer, under train_on_batch."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.tf = tensorflow()
        keras = self.tf.keras
        layers = [keras.layers.Input((64,)), keras.layers.Dense(512, "relu"), keras.layers.BatchNormalization()]
        self.model = keras.Sequential([*layers, keras.layers.Dense(257)])
        self.model.compile(keras.optimizers.Adam(0.01), "mse")
        self.update(0)

    def reset(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for variable in self._sources().values():
            values = np.abs(rng.standard_normal(tuple(variable.shape), np.float32))
            variable.assign(values.astype(np.asarray(variable.numpy()).dtype))

    @property
    def tree(self) -> Any:
        return {"model": self.model}

    def _sources(self) -> dict[str, Any]:
        leaves = flatten(self.tree).tensors
        return {name: leaf.source for name, leaf in leaves.items() if leaf.source is not None}

    def update(self, number: int) -> None:
        rng = np.random.default_rng(number)
        x, y = rng.standard_normal((32, 64), np.float32), rng.standard_normal((32, 257), np.float32)
        self.model.train_on_batch(x, y)

    def copies(self) -> dict[str, Array]:
        return {name: np.array(variable.numpy(), copy=True) for name, variable in self._sources().items()}


NUMPY: dict[str, type[Subject]] = {"NumPy, loop": NumpyLoop, "NumPy, thread": NumpyThread}
TORCH: dict[str, type[Subject]] = {"PyTorch, Adam": Torch}
TF: dict[str, type[Subject]] = {
    "TensorFlow, assign": Assign,
    "TensorFlow, Adam": Dense,
    "TensorFlow, XLA": Compiled,
    "TensorFlow, sparse": Sparse,
    "TensorFlow, incremental": Frozen,
    "Keras, fit": Keras,
}
KINDS = {**NUMPY, **TORCH, **TF}


@functools.cache
def subject(kind: str, rank: int) -> Subject:
    """Return the subject of one rank; it is made once in a process, for making it takes long."""
    return KINDS[kind](rank)
