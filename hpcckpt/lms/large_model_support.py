"""The class `LMS`: a Keras callback, a hook of sessions, and `run`. What it does is in the modules of its two paths."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import tensorflow as tf
from keras.callbacks import Callback

from hpcckpt.collective.communicator import Communicator
from hpcckpt.collective.connect import as_communicator
from hpcckpt.errors import OptionError
from hpcckpt.lms import messages
from hpcckpt.lms.graph.filters import Filters
from hpcckpt.lms.messages import LmsLog
from hpcckpt.lms.report.report import Report
from hpcckpt.lms.runtime import keras_model, process_stats, tf_session
from hpcckpt.lms.runtime.apply_to_graph import is_edited
from hpcckpt.lms.runtime.collect_report import report_of
from hpcckpt.lms.runtime.options import FILTERS, FilterProperty, LmsOptions, LmsOutcome
from hpcckpt.lms.runtime.tf_function import FunctionPath
from hpcckpt.lms.runtime.watched_function import WatchedFunction, plan_on_first_call
from hpcckpt.lms.settings import LmsSettings, Planner, checked
from hpcckpt.lms.storage_tiers import Tier

__all__ = ["LMS"]


class LMS(Callback, tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]  # neither has types
    """Train with less memory by swapping tensors out while unused. Collective.

    It is used like `TFLMSv2`: ``LMS().run()`` before a session, ``hooks=[lms]`` for an Estimator, ``callbacks=[lms]``
    for Keras; and ``step = lms.watch(step)`` for a `tf.function`. Losses and weights are bit-identical to those without
    LMS, with two exceptions (docs/lms.md).

    Parameters
    ----------
    swapout_threshold : int
        Swap tensors that are needed again more than this many levels later; smaller values swap more tensors. -1: a
        search finds the value.
    swapin_groupby : int
        Consumers of a tensor within this many levels share a swap-in. -1: a search finds the value.
    swapin_ahead : int
        Swap a tensor in this many levels before it is needed. -1: a search finds the value.
    sync_mode : {0, 1, 2, 3}
        What waits: nothing (0); compute for swap-outs (1); swap-ins for compute (2); both (3).
    serialization : list of int or str
        Levels whose ops run one after the other: ``[1, '3:5', 7]`` is 1, 3, 4, 5 and 7.
    serialization_by_size : float
        Also serialize all levels that need more than this many GiB; 0 for none.
    debug, debug_level : bool, int
        Print each swap and control edge, ``[LMS][1]``; at level 2 each operation too, ``[LMS][2]``.
    cpu_device, gpu_device : str, optional
        The device that tensors are swapped to; the GPU that this object is for, in a model of several towers.
    planner : {"cost", "distance"}, optional
        ``"cost"`` plans for a budget, by exact liveness and measured cost; ``"distance"`` plans by distance, as TFLMSv2
        does. By default the cost planner is used if there is a budget, or a device whose memory is the budget, unless
        one of the parameters above is given.
    memory_budget : int or str, optional
        The memory that a step may use beyond what was used before it: ``"600 MiB"``; ``"600 MB"`` is 600 * 10**6 bytes.
    tier : {"auto", "host", "file", "host-then-file"}
        Where swapped tensors are kept: in host memory, in a file on the node's own disk, or in host memory up to
        `host_limit` and the others in the file.
    directory : path_like, optional
        The directory of the file; the file has no name, and ends with the process.
    min_bytes : int or str, optional
        Do not swap smaller tensors.
    window : int or str, optional
        How many bytes may be in transit while compute continues; with 0, the default, compute waits until their memory
        is free.
    host_limit, file_limit : int or str, optional
        The capacity of each tier; ``"host-then-file"`` needs the first.
    recompute : bool
        Whether the cost planner may recompute cheap ops instead of swapping their outputs.
    verify : bool
        If there is a budget: whether to run a step, measure its memory, and plan again if it exceeds the budget.
    comm : mpi4py communicator or Communicator, optional
        The ranks that train together; ``None`` means MPI.COMM_WORLD when launched under MPI. With Horovod over some
        ranks: ``hpcckpt.horovod.communicator(process_set)``.

    Attributes
    ----------
    batch_size : int or None
        The size assumed for an unknown first dimension; read from Keras' ``fit`` if possible.
    is_training : bool
        Whether the model is trained; otherwise it only predicts.
    autotune_gpu_mem : float or None
        The device's memory in GiB, as assumed by the search.
    autotune_plot : bool
        Write the histogram of distances, and pictures, into ``.lms/``.
    excl_output_by_scopes, excl_output_by_types, excl_input_by_scopes, excl_input_by_types : set of str
        Ops whose outputs are not swapped; ops that do not consume swapped tensors.
    incl_output_by_scopes, incl_output_by_types, incl_input_by_scopes, incl_input_by_types : set of str
        If given: the only ops whose outputs are swapped; the only ops that consume swapped tensors.

    Raises
    ------
    OptionError
        If a value is not accepted; it is a ``ValueError``.
    """

    excl_output_by_scopes = FilterProperty()
    excl_output_by_types = FilterProperty()
    excl_input_by_scopes = FilterProperty()
    excl_input_by_types = FilterProperty()
    incl_output_by_scopes = FilterProperty()
    incl_output_by_types = FilterProperty()
    incl_input_by_scopes = FilterProperty()
    incl_input_by_types = FilterProperty()

    def __init__(
        self,
        swapout_threshold: int = -1,
        swapin_groupby: int = -1,
        swapin_ahead: int = -1,
        sync_mode: int = 0,
        serialization: Sequence[int | str] | None = None,
        serialization_by_size: float = 0,
        debug: bool = False,
        debug_level: int = 1,
        cpu_device: str = "/cpu:0",
        gpu_device: str | None = None,
        *,
        planner: Planner | None = None,
        memory_budget: int | str | None = None,
        tier: Tier = "auto",
        directory: str | PathLike[str] | None = None,
        min_bytes: int | str | None = None,
        window: int | str | None = None,
        host_limit: int | str | None = None,
        file_limit: int | str | None = None,
        recompute: bool = True,
        verify: bool = True,
        comm: Any = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in LmsSettings.__dataclass_fields__}
        super().__init__()
        self._supports_tf_logs = True  # Keras 2.15: no copy of the logs to the host after each batch
        self.settings = checked(**given)
        self.batch_size: int | None = None
        self.is_training = True
        self.autotune_gpu_mem: float | None = None
        self.autotune_plot = False
        self._comm_given = comm
        self._comm: Communicator | None = None
        self._lms_log: LmsLog | None = None
        self._edited: LmsOutcome | None = None
        self._path = FunctionPath(self._options, self._nbytes_learned)
        self._graph: Any = None
        self._edited_function: Any = None
        self._n_swapped_before: int | None = None

    # -- sessions

    def run(self, graph: Any = None, keras: bool = False) -> set[Any]:
        """Edit a graph in place, before a session runs it. Collective.

        Parameters
        ----------
        graph : tf.Graph, optional
            The graph; by default TensorFlow's default graph.
        keras : bool
            Whether it is the graph of a Keras model.

        Returns
        -------
        set of tf.Operation
            The operations that were added; none if LMS is not necessary, or has edited the graph before.

        Raises
        ------
        CodeError
            If a session has finalized the graph.
        OptionError
            If the batch size is needed and not known, there is a while loop to tune, a scope matches nothing, or no
            plan meets the budget.
        """
        lms_log = self._options().lms_log
        if graph is None:
            if tf.executing_eagerly():
                self._path.note(messages.EAGER.format(what=messages.EAGER_RUN))
                return set()
            graph = tf.compat.v1.get_default_graph()
            lms_log.info(messages.NO_GRAPH)
        outcome = tf_session.edit(self._options(keras=keras), graph)
        if outcome.mode != "none":
            self._edited, self._graph = outcome, graph
        return set(outcome.added)

    def begin(self) -> None:
        """Edit the default graph.

        An Estimator or a MonitoredSession calls this before it finalizes the graph.
        """
        self.run(tf.compat.v1.get_default_graph())

    # -- functions

    def watch(self, function: Any) -> Any:
        """Return a `tf.function` that is planned when it is first called.

        Use it as ``step = lms.watch(step)``, or as a decorator.
        """
        return plan_on_first_call(function, self._path)

    # -- Keras

    def set_params(self, params: Any) -> None:
        """Take Keras' parameters of the training; in graph mode, edit its graph."""
        super().set_params(params)
        if params and params.get("batch_size"):
            self.batch_size = int(params["batch_size"])
        if not tf.executing_eagerly() and getattr(self, "model", None) is not None:
            self._run_in_graph_mode()

    def set_model(self, model: Any) -> None:
        """Take the model, whose next training step will be planned.

        `load_model(path, callbacks=[lms])` calls this too.
        """
        super().set_model(model)
        if tf.executing_eagerly() and self.is_training and getattr(model, "optimizer", None) is not None:
            self._take("train_function", keras_model.TRAINING)

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras' names
        """Plan the training step when TensorFlow compiles it."""
        if tf.executing_eagerly() and self.is_training:
            self.batch_size = self.batch_size or keras_model.batch_size_of_fit()
            self._take("train_function", keras_model.TRAINING)

    def on_predict_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras' names
        """With ``is_training = False``, plan the function that predicts."""
        if tf.executing_eagerly() and not self.is_training:
            self.batch_size = self.batch_size or keras_model.batch_size_of_fit()
            self._take("predict_function", keras_model.PREDICTING)

    def _take(self, name: str, pattern: str) -> None:
        """Replace a function of the model by one that is planned when it is called.

        An existing function is built again: if it has run, it cannot be changed any more.
        """
        why = keras_model.trouble(self.model)
        if why:
            self._path.note(why)
            return
        there = getattr(self.model, name, None)
        if isinstance(there, WatchedFunction) and there.path is self._path:
            return
        model = self.model

        def remake() -> Any:
            function = keras_model.made(model, name)
            setattr(model, name, planned)
            return function

        planned = WatchedFunction(keras_model.made(model, name), self._path, pattern, remake)
        setattr(model, name, planned)

    def _run_in_graph_mode(self) -> None:
        # Not the graph of Keras' session: getting that sends all operations to the runtime, where they cannot be
        # edited.
        graph = tf.compat.v1.get_default_graph()
        if self.is_training and not is_edited(graph):
            why = keras_model.graph_trouble(self.model)
            if why and not self._path.notes:  # Keras calls twice
                self._path.note(why)
            if why:
                return
            keras_model.make_train_function(self.model)
        self.run(graph, keras=True)
        self._edited_function = getattr(self.model, "train_function", None)
        self._n_swapped_before = process_stats.n_swapped()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras' names
        """In graph mode, report after the first batch if no planned swap happened."""
        before, self._n_swapped_before = self._n_swapped_before, None
        result = self._edited.result if self._edited is not None else None
        if before is None or result is None or not (result.is_necessary and result.plan.swap_outs):
            return
        if process_stats.n_swapped() == before:
            self._path.note(self._replaced() or messages.GRAPH_KNOWN.format(model=getattr(self.model, "name", "")))

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras' names
        """In graph mode, report if Keras has replaced the edited training function."""
        why = self._replaced()
        if why:
            self._path.note(why)

    def _replaced(self) -> str:
        """Return a message if Keras has replaced the training function that was edited, or ""."""
        edited, now = self._edited_function, getattr(self.model, "train_function", None)
        is_same = edited is None or now is edited
        return "" if is_same else messages.GRAPH_REPLACED.format(model=getattr(self.model, "name", ""))

    # -- what there is to tell

    def report(self) -> Report:
        """Return what was done, and what was measured. Independent."""
        outcome = self._edited or self._path.outcome or LmsOutcome()
        return report_of(self._options(), outcome, self._path.notes)

    def stats(self) -> dict[str, Any]:
        """Return counters of swaps and waits, and the memory of GPUs. Independent.

        They count everything so far in this process.
        """
        return process_stats.stats()

    def session_config(self) -> Any:
        """Return the ``ConfigProto`` that TFLMSv2 recommends. Independent."""
        return process_stats.session_config()

    def write_graph(self, logdir: str | PathLike[str]) -> Path:
        """Write the edited graph for TensorBoard; return the directory. Independent.

        Raises
        ------
        OptionError
            If nothing was edited.
        """
        outcome = self._edited or self._path.outcome
        if outcome is None or outcome.result is None or outcome.context is None:
            raise OptionError("write_graph: nothing was planned yet; run, fit or call the watched function first")
        return process_stats.write_graph(self._graph if self._edited else None, outcome, logdir)

    # -- inside

    def _options(self, *, keras: bool = False) -> LmsOptions:
        if self._comm is None:
            self._comm = as_communicator(self._comm_given)
            debug, level = self.settings.debug, self.settings.debug_level
            self._lms_log = LmsLog(self._comm.rank, self._comm.size, debug=debug, debug_level=level)
        assert self._lms_log is not None
        return LmsOptions(
            self.settings,
            Filters.of(**{name: getattr(self, name) or None for name in FILTERS}),
            self.batch_size,
            self.is_training,
            keras,
            self.autotune_gpu_mem,
            self.autotune_plot,
            self._comm,
            self._lms_log,
        )

    def _nbytes_learned(self) -> int:
        model = getattr(self, "model", None)
        return keras_model.nbytes_of(model.trainable_variables) if model is not None else 0
