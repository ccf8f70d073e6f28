"""Builds a cycle: its data, its model, and the loop that trains it; trains nothing.

Random numbers are seeded twice: identically on all ranks for the data, so that all have the same order; and differently
on each rank for model and loop, so that their dropout differs. Initial weights are those of rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hpcckpt.collective import launchers
from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import HpcckptError, StateError
from hpcckpt.keras.model.layers import is_layer, named_weights
from hpcckpt.train.config.cycles import Cycle
from hpcckpt.train.config.factories import Factory
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError, inside
from hpcckpt.train.datasets import sharing
from hpcckpt.train.loop.distribution import Team
from hpcckpt.train.loop.train_loop import TrainLoop
from hpcckpt.train.names.allow_list import Catalogue
from hpcckpt.train.run import auto_names, seeding, submodels
from hpcckpt.train.run.lms_callback import large_model_support

T = TypeVar("T")
_UNKNOWN, _INFINITE = -2, -1
"""TensorFlow's words for how many batches a dataset has."""
_LAST_TURN = 2


@dataclass(slots=True)
class Built:
    """A cycle, ready to be trained.

    Attributes
    ----------
    cycle : Cycle
        What it was built of.
    model : keras.Model
        Compiled, its submodels frozen.
    loop : TrainLoop
        What trains it.
    train, valid : tf.data.Dataset or None
        This rank's data.
    n_train, n_valid : int or None
        How many batches of it there are in an epoch.
    frozen : dict of str to layer
        What is frozen.
    swaps : LMS or None
        What trains it with less memory.
    """

    cycle: Cycle
    model: Any
    loop: TrainLoop
    train: Any
    valid: Any = None
    n_train: int | None = None
    n_valid: int | None = None
    frozen: dict[str, Any] = field(default_factory=dict)
    swaps: Any = None


def build(cycle: Cycle, catalogue: Catalogue, team: Team) -> Built:
    """Build all that a cycle needs. Collective.

    Raises
    ------
    TrainConfigError
        If something of it cannot be built; it says what, and where in the configuration.
    """
    auto_names.begin()
    seeding.begin(cycle.seed, cycle.index)
    train, valid = _datasets(cycle, catalogue, team)
    seeding.begin(cycle.seed, cycle.index, team.rank)

    def make() -> Built:
        with in_turn(team.comm) if cycle.model.may_download else nullcontext():
            model = _model(cycle, catalogue, train)
        loop = _loop(cycle, catalogue)
        built = Built(cycle, model, loop, train, valid)
        built.frozen = _freeze(built)
        built.swaps = large_model_support(cycle, team)
        return built

    built = together(team.comm, f"build cycle {cycle.index + 1}", make)
    _count_batches(built, team)
    return built


def compile_for(built: Built, catalogue: Catalogue, team: Team) -> None:
    """Compile the model, and have its optimizer average over the ranks. Collective."""
    cycle = built.cycle

    def act() -> None:
        options: dict[str, Any] = dict(team.compiling)
        if cycle.lms is not None:
            options["jit_compile"] = False  # XLA plans its memory itself
        loss = cycle.loss.build(catalogue) if isinstance(cycle.loss, Factory) else cycle.loss
        metrics = metrics_of(cycle, catalogue)
        built.model.compile(optimizer=cycle.optimizer.build(catalogue), loss=loss, metrics=metrics or None, **options)

    together(team.comm, f"compile cycle {cycle.index + 1}", act)
    together(team.comm, f"average gradients of cycle {cycle.index + 1}", lambda: team.wrap(built.model))
    together(team.comm, f"prepare cycle {cycle.index + 1}", lambda: built.loop.prepare(built.model, built.train))


def metrics_of(cycle: Cycle, catalogue: Catalogue) -> Any:
    """Return the metrics: a list, or those of each head by its name (`hpcckpt.train.losses.per_head`)."""
    metrics = [each.build(catalogue) if isinstance(each, Factory) else each for each in cycle.metrics]
    by_head = [n for n, each in enumerate(metrics) if isinstance(each, Mapping)]
    if by_head and len(metrics) > 1:
        where = inside(inside(inside("", cycle.index), "metrics"), by_head[0])
        remedy = "let it be the only entry, with all metrics of each head"
        raise TrainConfigError.of([ConfigProblem(where, "gives metrics by head beside other metrics", remedy)])
    return metrics[0] if by_head else metrics


def try_out(built: Built, team: Team) -> frozenset[str] | None:
    """Make the graphs of a step that trains and of one that validates, without running them. Collective.

    Returns
    -------
    frozenset of str or None
        The names of the metrics of an epoch, without what callbacks add; ``None`` if they are not known.

    Raises
    ------
    TrainConfigError
        If model, loss, metrics and data do not make a step.
    """
    model, cycle = built.model, built.cycle

    def act() -> frozenset[str] | None:
        import tensorflow as tf

        names: set[str] = set()
        is_known = not model.run_eagerly and type(built.loop).fit is TrainLoop.fit
        steps = [("train", "", model.train_step, built.train), ("validate", "val_", model.test_step, built.valid)]
        for purpose, prefix, step, data in steps:
            try:
                if data is not None and not model.run_eagerly:
                    metrics = tf.function(step).get_concrete_function(data.element_spec).structured_outputs
                    is_known = is_known and isinstance(metrics, Mapping)
                    names.update(f"{prefix}{name}" for name in (metrics if is_known else ()))
            except HpcckptError:
                raise
            except Exception as error:
                text = f"a step to {purpose} cannot be made: {_cause(error)}"
                remedy = "let model, loss, metrics and labels fit each other"
                raise TrainConfigError.of([ConfigProblem(inside("", cycle.index), text, remedy)]) from error
        return frozenset(names) if is_known else None

    return together(team.comm, f"try out cycle {cycle.index + 1}", act)


def _cause(error: Exception) -> str:
    """Return an error's message; of a message that contains a traceback only the last line."""
    text = str(error).strip()
    last = text.splitlines()[-1].strip() if text.startswith("in user code") else " ".join(text.split())
    return last[:500] if last.startswith(type(error).__name__) else f"{type(error).__name__}: {last[:500]}"


def together(comm: Communicator, phase: str, fn: Callable[[], T]) -> T:
    """Run a function that may fail; raise on all ranks if it fails on any. Collective.

    If all ranks have the same configuration error, or there is only one rank, that error is raised.

    Raises
    ------
    CollectiveError
        If the errors of ranks differ.
    """
    if comm.size == 1:
        return fn()
    result: Any = None
    error: Exception | None = None
    try:
        result = fn()
    except Exception as caught:  # noqa: BLE001 - raised again below, when the others know
        error = caught
    texts = comm.distinct([None if error is None else str(error)])
    if isinstance(error, TrainConfigError) and len(texts) == 1:
        raise error

    def again() -> T:
        if error is not None:
            raise error
        value: T = result
        return value

    return comm.agree(phase, again)


@contextmanager
def in_turn(comm: Communicator) -> Iterator[None]:
    """Let root go first, then the first rank of each node, then the others. Collective.

    Keras downloads into the very file that it reads, so another rank would find a part of it.
    """
    launch = launchers.here().launch
    is_first_of_node = launch is not None and launch.local_rank is not None and launch.local_rank.value == 0
    turn = 0 if comm.is_root else 1 if is_first_of_node else _LAST_TURN
    for _ in range(turn):
        comm.barrier()
    try:
        yield
    finally:
        for _ in range(_LAST_TURN - turn):
            comm.barrier()


# -- parts -----------------------------------------------------------------------------------------


def _datasets(cycle: Cycle, catalogue: Catalogue, team: Team) -> tuple[Any, Any]:
    """Return this rank's share of the data: to train with, and to validate with if there is some."""

    def make() -> Any:
        with sharing(team.rank, team.size, comm=team.comm, seed=cycle.seed):
            return cycle.datasets.build(catalogue)

    made = together(team.comm, f"datasets of cycle {cycle.index + 1}", make)
    pair = tuple(made) if isinstance(made, tuple | list) else (made, None)
    if not 1 <= len(pair) <= 2 or any(one is not None and not _is_dataset(one) for one in pair) or pair[0] is None:
        text = f"gives {_kind_of(made)}, not a tf.data.Dataset to train with and one to validate with"
        raise TrainConfigError.of([ConfigProblem(cycle.datasets.where, text, "return (train, valid), or train alone")])
    return pair if len(pair) == 2 else (pair[0], None)


def _is_dataset(value: Any) -> bool:
    return hasattr(value, "element_spec") and hasattr(value, "cardinality")


def _kind_of(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(type(item).__name__ for item in value)})"
    return type(value).__name__


def _model(cycle: Cycle, catalogue: Catalogue, train: Any) -> Any:
    model = cycle.model.build(catalogue)
    if not is_layer(model) or not hasattr(model, "compile"):
        text = f"gives {_kind_of(model)}, not a Keras model"
        raise TrainConfigError.of(
            [ConfigProblem(cycle.model.where, text, "name a class of models, or a function that returns one")]
        )
    try:
        build_for(model, train)
    except Exception as error:
        text = f"the model does not take the data: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
        raise TrainConfigError.of(
            [ConfigProblem(cycle.model.where, text, "let shapes of data and model fit")]
        ) from error
    return model


def _loop(cycle: Cycle, catalogue: Catalogue) -> TrainLoop:
    loop = cycle.train_loop.build(catalogue)
    if not isinstance(loop, TrainLoop):
        text = f"gives {_kind_of(loop)}, not a train loop"
        remedy = "use hpcckpt.train.KerasTrainLoop, or a subclass of hpcckpt.train.CustomTrainLoop"
        raise TrainConfigError.of([ConfigProblem(cycle.train_loop.where, text, remedy)])
    return loop


def _freeze(built: Built) -> dict[str, Any]:
    """Freeze submodels; find those that are to be saved and loaded, so that a wrong path is found out now."""
    loop, place = built.loop, built.cycle.train_loop.place_of
    paths = {
        "freeze_submodels": loop.freeze_submodels,
        "save_submodels": [each.name for each in loop.save_submodels],
        "load_submodels": [each.name for each in loop.load_submodels],
    }
    problems = [problem for key, names in paths.items() for problem in _missing(built.model, place(key), names)]
    if problems:
        raise TrainConfigError.of(problems)
    layers = submodels.freeze(built.model, loop.freeze_submodels)
    return dict(zip(loop.freeze_submodels, layers, strict=True))


def _missing(model: Any, where: str, paths: Sequence[str]) -> list[ConfigProblem]:
    problems = []
    for number, path in enumerate(paths):
        try:
            submodels.find(model, path)
        except submodels.SubmodelNotFoundError as error:
            problems.append(ConfigProblem(f"{where}[{number}]", str(error)))
    return problems


# -- how many batches ------------------------------------------------------------------------------


def _count_batches(built: Built, team: Team) -> None:
    """Have all ranks train on as many batches: a rank with more would wait for the others for ever. Collective."""
    built.n_train = built.loop.num_train_steps
    own = _cardinality(built.train)
    _refuse_endless(built, own, "train", "num_train_steps")
    if built.n_train is not None:
        _refuse_too_few(built, team.comm.distinct([own]))
    else:
        if own == _UNKNOWN and team.size > 1:
            own = together(team.comm, "count batches", lambda: sum(1 for _ in built.train))
        least = team.comm.allreduce(own, min)
        _refuse_none(built, least, "train", team.size)
        built.train = built.train if least == own else built.train.take(least)
        built.n_train = None if least == _UNKNOWN else least
    if built.valid is not None:
        _count_valid_batches(built, team)


def _count_valid_batches(built: Built, team: Team) -> None:
    """Find out how many batches this rank validates on, for the means over the ranks. Collective."""
    own, limit = _cardinality(built.valid), built.loop.num_valid_steps
    _refuse_endless(built, own, "validate", "num_valid_steps")
    _refuse_none(built, team.comm.allreduce(own, min), "validate", team.size)
    known = [number for number in (own, limit) if number is not None and number >= 0]
    built.n_valid = min(known, default=None)


def _refuse_endless(built: Built, n_batches: int, purpose: str, option: str) -> None:
    if n_batches == _INFINITE and getattr(built.loop, option) is None:
        remedy = f"say how many batches to take: {built.cycle.train_loop.place_of(option)}"
        problem = ConfigProblem(built.cycle.datasets.where, f"the dataset to {purpose} with never ends", remedy)
        raise TrainConfigError.of([problem])


def _refuse_none(built: Built, n_batches: int, purpose: str, n_ranks: int) -> None:
    if n_batches == 0:
        where = f" on one of {n_ranks} ranks" if n_ranks > 1 else ""
        text = f"there is not one batch to {purpose} on{where}"
        raise TrainConfigError.of(
            [ConfigProblem(built.cycle.datasets.where, text, "give more data, or smaller batches")]
        )


def _refuse_too_few(built: Built, every: Sequence[int]) -> None:
    """Refuse data that would end before the last epoch: Keras reads on in it, unless an epoch is just all of it."""
    steps, epochs = built.loop.num_train_steps, built.loop.num_epochs
    short = [n for n in every if 0 <= n < steps * epochs and n != steps]
    if not short:
        return
    text = f"{epochs} epochs of {steps} batches need {steps * epochs}, and the data has {min(short)}"
    remedy = "leave it out, so that each epoch has all data; or let the data repeat itself"
    raise TrainConfigError.of([ConfigProblem(built.cycle.train_loop.place_of("num_train_steps"), text, remedy)])


def _cardinality(dataset: Any) -> int:
    return int(dataset.cardinality())


# -- models that their first batch builds ---------------------------------------------------------


def build_for(model: Any, data: Any) -> None:
    """Have a model make its weights for the batches of a dataset; nothing is trained. Independent.

    Raises
    ------
    StateError
        If the model still has layers without weights.
    """
    if not _is_built(model):
        model(_inputs(data), training=False)
    named_weights(model)


def _is_built(model: Any) -> bool:
    try:
        named_weights(model)
    except StateError:
        return False
    return bool(model.built)


def inputs_of(batch: Any) -> Any:
    """Return what of a batch goes into the model: Keras takes the first of a tuple. Pure."""
    return batch[0] if isinstance(batch, tuple) else batch


def _inputs(data: Any) -> Any:
    """Return inputs of one row, zeros if all of its shape is known, else of a batch that is read."""
    import tensorflow as tf

    specs = inputs_of(data.element_spec)
    flat = tf.nest.flatten(specs)
    if all(isinstance(spec, tf.TensorSpec) and _is_known(spec) for spec in flat):
        return tf.nest.map_structure(lambda spec: tf.zeros([1, *spec.shape[1:]], spec.dtype), specs)
    batch = next(iter(data.take(1)))
    return inputs_of(batch)


def _is_known(spec: Any) -> bool:
    return spec.shape.rank is not None and spec.shape.rank >= 1 and all(dim is not None for dim in spec.shape[1:])
