"""`Environment`: trains what a configuration says."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcckpt.collective.communicator import Communicator
from hpcckpt.errors import HpcckptError
from hpcckpt.preemption.signals import catching
from hpcckpt.rundir.discovery import find_step
from hpcckpt.train.config.cycles import Cycle, check, cycles, effective
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError, inside
from hpcckpt.train.names.allow_list import Catalogue
from hpcckpt.train.run import resume_point
from hpcckpt.train.run.run_context import default_run_dir, locked, started, tell_of, write_down
from hpcckpt.train.run.run_directory import TrainingDirectory

if TYPE_CHECKING:
    from hpcckpt.train.loop.distribution import Team
    from hpcckpt.train.run.build_cycle import Built

__all__ = ["CycleSummary", "Environment"]

Config = Sequence[Mapping[str, Any]] | Sequence[Cycle] | Mapping[str, Any] | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class CycleSummary:
    """What `Environment.check` found out about a cycle.

    Attributes
    ----------
    number : int
        From 1.
    model, train_loop : str
        What they are.
    parameters, trained : int
        How many numbers the model has, and how many of them are trained.
    frozen : tuple of str
        Submodels that are not.
    epochs : int
        How often it goes through the data.
    batches, valid_batches : int or None
        Of one rank, in an epoch; ``None`` if that is not known.
    ranks : int
        How many train together.
    warnings : tuple of str
        What ends no training, but is not what was meant.
    """

    number: int
    model: str
    train_loop: str
    parameters: int
    trained: int
    frozen: tuple[str, ...]
    epochs: int
    batches: int | None
    valid_batches: int | None
    ranks: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Read:
    """A configuration that was read and checked."""

    cycles: tuple[Cycle, ...]
    document: list[dict[str, Any]]
    source: str


class Environment:
    """Trains a configuration, on one rank or on many, from where it was interrupted.

    Parameters
    ----------
    run_dir : path_like, optional
        The run directory; by default one in ``runs``, named after the configuration's file, or the program.
    resume : str or int
        ``"auto"`` resumes if there is a checkpoint, else starts; ``"latest"`` resumes or fails; ``"best"`` resumes from
        the checkpoint with the best metric; a number resumes from this step, ``"2:500"`` from step 500 of cycle 2;
        ``"never"`` starts, and fails if there is a run already.
    allow : iterable of str
        Packages, modules or names that a configuration may name in addition to those always allowed: they are trusted.
    comm : mpi4py communicator, optional
        The ranks that train together; ``None`` is all ranks of the job.
    verbose : int
        0 is silent; 1 writes lines, or on a terminal shows a bar, on rank 0.
    overwrite : bool
        With ``resume="never"``: move an existing run aside, into ``.aside-…`` of the run directory.

    Attributes
    ----------
    model : keras.Model or None
        The model that `run` trained last; ``None`` where nothing was left to train.

    Raises
    ------
    OptionError
        If `resume` is invalid.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        resume: str | int = "auto",
        allow: Iterable[str] = (),
        comm: Any = None,
        verbose: int = 1,
        *,
        overwrite: bool = False,
    ) -> None:
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.verbose = verbose
        self._wanted = resume_point.parse(resume)
        self._catalogue = Catalogue(allow)
        self._comm, self._overwrite = comm, overwrite
        self.model: Any = None

    def run(self, config: Config, source: str = "") -> list[Any]:
        """Train all cycles of a configuration; return the history of each. Collective.

        Parameters
        ----------
        config : list of mapping, mapping, path_like or tuple of Cycle
            The cycles, one cycle, or the file that has them; or what `hpcckpt.train.config.cycles.cycles` makes of
            these.
        source : str
            Where a configuration that is passed as a list comes from. It names the run directory, and is shown in
            errors.

        Returns
        -------
        list of keras.callbacks.History
            One for each cycle, with the epochs of earlier jobs.

        Raises
        ------
        TrainConfigError
            If the configuration is invalid, naming all problems; or if it differs from that of the run in the run
            directory.
        StepNotFoundError
            If the checkpoint to resume from does not exist.
        LockedError
            If another job trains in the run directory.
        Preempted
            When the job was asked to stop, and has saved; a ``SystemExit`` with code 75.
        """
        found = self._read(config, source)
        with _of_file(found.source), catching(), started(found.cycles, self._comm) as team:
            return self._train(found, team)

    def check(self, config: Config, source: str = "") -> list[CycleSummary]:
        """Build all cycles of a configuration, without training. Collective.

        The run directory is not changed.

        Raises
        ------
        TrainConfigError
            If the configuration is invalid, or a part of it cannot be built.
        """
        found = self._read(config, source)
        from hpcckpt.train.run import submodel_weights
        from hpcckpt.train.run.build_cycle import build, compile_for, try_out
        from hpcckpt.train.run.check_checkpoint import check_backends

        directory = TrainingDirectory(self._place(found))
        saved: set[str] = set()
        summaries = []
        with _of_file(found.source), started(found.cycles, self._comm) as team:
            check_backends(found.cycles, team.comm)
            for cycle in found.cycles:
                built = build(cycle, self._catalogue, team)
                submodel_weights.check(built, found.cycles, directory, team.comm)
                _check_weights(built, saved, directory, team.comm)
                saved |= _saved_by(built, directory)
                compile_for(built, self._catalogue, team)
                metrics = try_out(built, team)
                summaries.append(_summary(built, team.size, metrics))
        return summaries

    # -- the parts of it -------------------------------------------------------------------------------

    def _read(self, config: Config, source: str) -> _Read:
        """Read a configuration, and check all of it that can be checked without building anything. Independent."""
        if isinstance(config, str | os.PathLike):
            source = source or os.fspath(config)
        whole = cycles(config, source=source, catalogue=self._catalogue)
        problems = check(whole, self._catalogue) + _check_together(whole)  # of cycles that came as such, names too
        if problems:
            raise TrainConfigError.of(problems, source)
        return _Read(whole, effective(whole), source)

    def _place(self, found: _Read) -> Path:
        """Return the run directory. Independent."""
        return Path(os.path.realpath(self.run_dir or default_run_dir(found.source)))

    def _train(self, found: _Read, team: Team) -> list[Any]:
        """Train, in a run directory that is ours alone."""
        from hpcckpt.train.run.check_checkpoint import check_backends
        from hpcckpt.train.run.run_cycles import TrainingRun, train

        comm = team.comm
        check_backends(found.cycles, comm)
        directory = TrainingDirectory(comm.bcast(self._place(found)))
        with locked(directory, comm, self._wanted):
            wanted = comm.on_root("read earlier jobs", lambda: resume_point.once(self._wanted, directory))
            start = self._begin(found, directory, wanted, comm)
            run = TrainingRun(found.cycles, found.document, self._catalogue, team, directory, self.verbose)
            write_down(run, start, str(wanted))
            if wanted != self._wanted:
                run.print_line(f"resume={self._wanted} is done already by this job: it resumes its newest step")
            try:
                trained = train(run, start.n_complete)
            except BaseException as error:
                tell_of(run, error)
                raise
            self.model = run.model
            return trained

    def _begin(
        self, found: _Read, directory: TrainingDirectory, wanted: resume_point.Wanted, comm: Communicator
    ) -> resume_point.ResumePoint:
        """Find where the run begins. Collective."""
        overwrite = self._overwrite

        def find() -> resume_point.ResumePoint | tuple[ConfigProblem, ...]:
            try:
                return resume_point.begin(
                    directory, found.cycles, found.document, wanted, overwrite=overwrite, source=found.source
                )
            except TrainConfigError as error:
                return error.problems

        start = comm.on_root("find where the run begins", find)
        if isinstance(start, tuple):
            raise TrainConfigError.of(start, found.source)
        return start


@contextlib.contextmanager
def _of_file(source: str) -> Iterator[None]:
    """Have errors of the configuration name the file that it came from."""
    try:
        yield
    except TrainConfigError as error:
        named = error.of_file(source)
        if named is error:
            raise
        raise named from error


def _check_together(whole: Sequence[Cycle]) -> list[ConfigProblem]:
    """Return what is wrong with cycles as a whole: ranks are started once."""
    first = whole[0].distributed
    return [
        ConfigProblem(
            inside(inside("", cycle.index), "distributed"),
            f"{cycle.distributed!r}, and {first!r} in the first cycle",
            "all cycles of a run train on the same ranks; say it in the first cycle only",
        )
        for cycle in whole
        if cycle.distributed != first
    ]


def _check_weights(built: Built, saved: Collection[str], directory: TrainingDirectory, comm: Communicator) -> None:
    """Refuse to load weights of submodels that are not there, and that no cycle before will have saved. Collective."""
    from hpcckpt.train.run import submodel_weights
    from hpcckpt.train.run.build_cycle import together

    where = built.cycle.train_loop.place_of("load_submodels")

    def look() -> None:
        problems = []
        for number, this in enumerate(built.loop.load_submodels):
            path = submodel_weights.place_of(this, directory)
            if os.path.realpath(path) not in saved:
                try:
                    find_step(path)
                except HpcckptError as error:
                    problems.append(ConfigProblem(inside(where, number), str(error)))
        if problems:
            raise TrainConfigError.of(problems)

    together(comm, "look for weights of submodels", look)


def _saved_by(built: Built, directory: TrainingDirectory) -> set[str]:
    """Return where there will be weights once a cycle is complete."""
    from hpcckpt.train.run import submodel_weights

    index, root = built.cycle.index, built.cycle.checkpoint.directory
    places = [submodel_weights.place_of(this, directory) for this in built.loop.save_submodels]
    return set(map(os.path.realpath, [*places, directory.cycle(index, root), directory.final(index, root)]))


def _summary(built: Built, n_ranks: int, metrics: frozenset[str] | None) -> CycleSummary:
    from hpcckpt.train.callbacks.progress import no_metric_text
    from hpcckpt.train.run.run_state import best_by
    from hpcckpt.train.run.submodels import count

    cycle, model = built.cycle, built.model
    name = best_by(cycle.checkpoint.monitor).metric
    is_missing = cycle.checkpoint.keep_best is not None and metrics is not None and name not in metrics
    by_callback = " (unless a callback adds it)" if built.loop.callbacks else ""
    return CycleSummary(
        number=cycle.index + 1,
        model=cycle.model.name,
        train_loop=cycle.train_loop.name,
        parameters=count(model.weights),
        trained=count(model.trainable_weights),
        frozen=tuple(built.frozen),
        epochs=built.loop.num_epochs,
        batches=built.n_train,
        valid_batches=built.n_valid,
        ranks=n_ranks,
        warnings=(f"{no_metric_text(name, metrics or ())}{by_callback}",) if is_missing else (),
    )
