"""Factories of a configuration: ``{"dotted.path": {arguments}}``, and what is built of them, innermost first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcckpt.errors import ConfigError, HpcckptError
from hpcckpt.train.config.signatures import as_expected
from hpcckpt.train.config.weights_cache import download_problem, may_download
from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError, inside, shown

if TYPE_CHECKING:
    from hpcckpt.train.names.allow_list import Catalogue

REFERENCE = "@"


@dataclass(frozen=True, slots=True)
class Factory:
    """What ``{"dotted.path": {arguments}}`` says, or ``{"@": "dotted.path"}``.

    Attributes
    ----------
    name : str
        The dotted path as it was written, or the bare name of something exported.
    kwargs : mapping
        The arguments; in them, at any depth, further factories.
    where : str
        Its place in the configuration, without its own name: ``[0].model``.
    is_called : bool
        Whether what it names is called; otherwise it is meant itself.
    """

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    is_called: bool = True

    @property
    def place(self) -> str:
        """Its place with its name: ``[0].model.ktf.models.OneHeadNet``."""
        return inside(self.where, self.name if self.is_called else REFERENCE)

    def place_of(self, argument: str) -> str:
        """Return the place of an argument, for messages: ``[0].model.ktf.models.OneHeadNet.base_model``."""
        return inside(self.place, argument)

    def build(self, catalogue: Catalogue, /, **given: Any) -> Any:
        """Build it, after the factories in its arguments. Independent.

        Parameters
        ----------
        catalogue : Catalogue
            What names may mean.
        **given : object
            Further arguments; those of the configuration go before them.

        Raises
        ------
        TrainConfigError
            If something cannot be built; it says what, and where in the configuration.
        """
        target = catalogue.target_of(self)
        if not self.is_called:
            return target
        kwargs = {**given, **_built(self.kwargs, catalogue)}
        kwargs = {name: as_expected(target, name, value) for name, value in kwargs.items()}
        try:
            return target(**kwargs)
        except TrainConfigError:
            raise
        except Exception as error:
            problem = self._problem(error, target)
            if problem is None:
                raise
            raise TrainConfigError.of([problem]) from error

    @property
    def may_download(self) -> bool:
        """Whether it, or a factory in its arguments, takes weights from the cache into which Keras downloads them."""
        return may_download(self.name, self.kwargs) or any(each.may_download for each in _factories_in(self.kwargs))

    def written(self) -> dict[str, Any]:
        """Return it as a configuration has it."""
        if not self.is_called:
            return {REFERENCE: self.name}
        return {self.name: {name: written(value) for name, value in self.kwargs.items()}}

    def _problem(self, error: Exception, target: Any) -> ConfigProblem | None:
        """Say what went wrong when it was called; ``None`` if that is no matter of the configuration."""
        if isinstance(error, HpcckptError) and not isinstance(error, ConfigError):
            return None
        not_downloaded = download_problem(error)
        if not_downloaded is not None:
            return ConfigProblem(self.place_of("weights"), *not_downloaded)
        text = " ".join(str(error).split()) or "no message"
        text = text if len(text) <= 600 else f"{text[:600]}…"
        if not isinstance(error, HpcckptError):
            text = f"{type(error).__name__}: {text}{_line_of(error, target)}"
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return ConfigProblem(self.place, text, "correct the path; relative ones begin at the working directory")
        return ConfigProblem(self.place, text, f"correct its arguments, {_names(self.kwargs)}")


def _names(kwargs: Mapping[str, Any]) -> str:
    return ", ".join(map(shown, kwargs)) or "it has none"


def _line_of(error: Exception, target: Any) -> str:
    """Return the last line that ran in the file of what was called, if that is a program of the user's."""
    import inspect

    module = str(getattr(target, "__module__", ""))
    if module.partition(".")[0] in {"keras", "tensorflow", "hpcckpt", "tf_keras"}:
        return ""
    try:
        home = inspect.getfile(target)
    except (TypeError, OSError):
        return ""
    line, step = None, error.__traceback__
    while step is not None:
        line = step.tb_lineno if step.tb_frame.f_code.co_filename == home else line
        step = step.tb_next
    return f" ({home}:{line})" if line else ""


def _factories_in(value: Any) -> Iterator[Factory]:
    """Yield the factories in a value, but not those in their arguments. Pure."""
    if isinstance(value, Factory):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _factories_in(item)


def _built(value: Any, catalogue: Catalogue) -> Any:
    """Build all factories in a value; report the problems of all of them at once."""
    if isinstance(value, Factory):
        return value.build(catalogue)
    if not isinstance(value, Mapping | list):
        return value
    problems: list[ConfigProblem] = []

    def part(item: Any) -> Any:
        try:
            return _built(item, catalogue)
        except TrainConfigError as error:
            problems.extend(error.problems)

    found: Any = (
        {name: part(item) for name, item in value.items()} if isinstance(value, Mapping) else [part(i) for i in value]
    )
    if problems:
        raise TrainConfigError.of(problems)
    return found


def written(value: Any) -> Any:
    """Return a value as a configuration has it."""
    if isinstance(value, Factory):
        return value.written()
    if isinstance(value, Mapping):
        return {name: written(item) for name, item in value.items()}
    return [written(item) for item in value] if isinstance(value, list | tuple) else value


class FactoryEntry(NamedTuple):
    """Something to build for a cycle.

    Attributes
    ----------
    key : str
        Of the cycle.
    value : Factory or str
        The factory, or the name of one of Keras' own classes.
    place : str
        Its place in the configuration.
    """

    key: str
    value: Factory | str
    place: str
