"""Every error the library raises, sorted by what the caller will do about it.

======================  =====================================================
:class:`RetryError`     try again: later, or after freeing something
:class:`OlderStepError` use an older step: this one is damaged or absent
:class:`ConfigError`    fix the configuration or the command
:class:`CodeError`      fix the program that calls us
======================  =====================================================

Each error also derives from the built-in exception a Python user would expect, and has a stable
``kind`` that programs may match on (kinds are append-only).  Across ranks only ``kind`` and text
travel; :func:`collective_error` makes the same typed error of them on every rank.
"""

from __future__ import annotations

import errno
import functools
import unicodedata
from collections.abc import Mapping
from typing import ClassVar, NamedTuple


def printable(text: str) -> str:
    """Return text with control characters escaped. Pure.

    Unescaped, they could change what a terminal or a log shows.
    """
    if text.isprintable():
        return text
    return "".join(char if char in "\n\t" or not _is_control(char) else _escaped(char) for char in text)


def _is_control(char: str) -> bool:
    return unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp"}


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


class HpcckptError(Exception):
    """Root of all errors of this library."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """Return the text; names and contents of files that are in it may be hostile."""
        return printable(super().__str__())  # no __init__: AutoGraph makes such an error again from its text alone


class Failure(NamedTuple):
    """A failure of one rank, in the only form in which ranks send errors."""

    kind: str
    text: str


class Problem(NamedTuple):
    """One thing that is wrong with some input; validation returns all of them. `loc` is empty if the message has it."""

    loc: str
    message: str
    kind: str = "invalid"

    def __str__(self) -> str:
        return f"{self.loc}: {self.message}" if self.loc else self.message


def list_problems(problems: list[Problem], limit: int = 20) -> str:
    """Join problems into one text, the first `limit` in full."""
    lines = [str(problem) for problem in problems[:limit]]
    if len(problems) > limit:
        lines.append(f"… and {len(problems) - limit} more")
    return "; ".join(lines)


# -- retry ---------------------------------------------------------------------------------------


class RetryError(HpcckptError):
    """Nothing is wrong with program or data: try again, later or elsewhere."""

    kind = "retry"


class LockedError(RetryError, BlockingIOError):
    """Another job writes in this run directory."""

    kind = "locked"
    exit_code = 8


class LockLostError(RetryError):
    """The run's lock was taken over while this job held it; the save was not committed."""

    kind = "lock-lost"
    exit_code = 8


class NoSpaceError(RetryError, OSError):
    """The file system or the quota is full; no committed step was touched."""

    kind = "no-space"
    exit_code = 7


class StorageError(RetryError, OSError):
    """The operating system refused an operation on a file."""

    kind = "storage"


class ReadOnlyError(StorageError, PermissionError):
    """This user may not write to the run directory, or may not read a file in it."""

    kind = "read-only"


class UnreadableError(StorageError):
    """The operating system could not read a file of a step; other steps may be readable."""

    kind = "unreadable"


class RetiredError(RetryError):
    """The step was retired by retention while it was being read; pin steps you read for long."""

    kind = "retired"


class HostMemoryError(RetryError, MemoryError):
    """Values do not fit into the host's free memory."""

    kind = "host-memory"


# -- use an older step ---------------------------------------------------------------------------


class OlderStepError(HpcckptError):
    """This step cannot be used; another one may."""

    kind = "older-step"


class StepNotFoundError(OlderStepError, FileNotFoundError):
    """There is no such step, or no step at all."""

    kind = "step-not-found"
    exit_code = 4


class CorruptError(OlderStepError, ValueError):
    """Bytes on disk are not the bytes that were saved."""

    kind = "corrupt"
    exit_code = 3


class UnprovenDamageError(CorruptError):
    """Bytes are not those that were saved, but the reader may have looked in the wrong place: no damage is recorded."""

    kind = "unproven-damage"


class NoRestorableStepError(CorruptError):
    """The run has steps, and none of them can be restored: it must not be taken for an empty run."""

    kind = "no-restorable-step"
    exit_code = 4


class ManifestError(CorruptError):
    """The manifest is absent, unreadable, or has invalid content."""

    kind = "manifest"


class NonFiniteError(OlderStepError, FloatingPointError):
    """The state holds NaN or infinite values, and ``nan_guard`` keeps it from displacing a good step."""

    kind = "non-finite"


# -- fix the configuration -----------------------------------------------------------------------


class ConfigError(HpcckptError):
    """An option, a path or the installation is wrong."""

    kind = "config"
    exit_code = 2


class OptionError(ConfigError, ValueError):
    """An option has a value that is not accepted."""

    kind = "option"


class MemoryBudgetError(OptionError):
    """No plan keeps a training step within this memory.

    Attributes
    ----------
    nearest : int
        The smallest budget that can be met, in bytes.
    """

    kind = "memory-budget"
    nearest: int = 0


class StepExistsError(ConfigError, FileExistsError):
    """The step exists already and is intact."""

    kind = "step-exists"
    exit_code = 1


class PinnedStepError(ConfigError, FileExistsError):
    """A step that a user pinned would be replaced or moved aside."""

    kind = "pinned-step"
    exit_code = 1


class NewerStepError(ConfigError, FileExistsError):
    """An older step cannot be saved: the run has a newer one."""

    kind = "newer-step"
    exit_code = 1


class UnsafeDirectoryError(ConfigError, PermissionError):
    """Other users own or can write a directory whose content only this user may have written."""

    kind = "unsafe-directory"


class FormatVersionError(ConfigError):
    """The checkpoint was written in a format this version does not read."""

    kind = "format-version"
    exit_code = 1


class BackendNotFoundError(ConfigError, LookupError):
    """No backend has this name."""

    kind = "backend-not-found"


class BackendConflictError(ConfigError):
    """Two installed backends have the same name, or ranks see different backends."""

    kind = "backend-conflict"


class BackendError(ConfigError):
    """A backend cannot be loaded, or failed in another way."""

    kind = "backend"
    exit_code = 1


class PluginError(BackendError, OSError):
    """A shared library cannot be loaded as a plugin: not found, broken, or built for something else."""

    kind = "plugin"


class MpiError(ConfigError):
    """MPI is absent where it is needed, finalized too early, or two MPI libraries meet in one process."""

    kind = "mpi"
    exit_code = 1


class StateMismatchError(ConfigError, ValueError):
    """State and checkpoint differ in names, shapes or dtypes."""

    kind = "state-mismatch"
    exit_code = 5


class ForeignFormatError(ConfigError, ValueError):
    """A file of another format is invalid, ambiguous, or would run code if read."""

    kind = "foreign-format"
    exit_code = 1


# -- fix the code --------------------------------------------------------------------------------


class CodeError(HpcckptError):
    """The calling program breaks a rule of the interface."""

    kind = "code"


class StateError(CodeError, TypeError):
    """The state holds something that cannot be saved."""

    kind = "state"


class TreeMismatchError(CodeError, ValueError):
    """States of different structure on different ranks."""

    kind = "tree-mismatch"


class ReplicaMismatchError(CodeError, ValueError):
    """A tensor that should be equal on all ranks is not."""

    kind = "replica-mismatch"
    exit_code = 5


class PlanMismatchError(CodeError, ValueError):
    """Ranks would change the graphs of their training steps in different ways."""

    kind = "plan-mismatch"


class ShardingError(CodeError, ValueError):
    """The shards of a tensor overlap, leave a gap, or lie outside its shape."""

    kind = "sharding"


class ClosedError(CodeError, RuntimeError):
    """The checkpointer is closed."""

    kind = "closed"


class ForkedError(CodeError, RuntimeError):
    """A forked child used a checkpointer of its parent; the parent is not affected."""

    kind = "forked"


# -- across ranks --------------------------------------------------------------------------------


class CollectiveError(HpcckptError):
    """One or more ranks failed in a collective phase; raised on every rank.

    Attributes
    ----------
    phase : str
        What was being done.
    failures : dict of int to str
        The error text of each rank that failed.
    kinds : dict of int to str
        The kind of each rank's failure.
    """

    kind = "collective"
    phase: str = ""
    failures: Mapping[int, str] = {}
    kinds: Mapping[int, str] = {}


class CollectiveMisuseError(CollectiveError, CodeError, RuntimeError):
    """Ranks made different calls, or one of them ended; the checkpointer cannot be used any more."""

    kind = "collective-misuse"


class PeerTimeoutError(CollectiveError, RetryError, TimeoutError):
    """A rank took longer than ``peer_timeout_s`` in a call; the checkpointer cannot be used any more."""

    kind = "peer-timeout"


def _subclasses(cls: type[HpcckptError]) -> list[type[HpcckptError]]:
    found = [cls]
    for child in cls.__subclasses__():
        found += _subclasses(child)
    return found


@functools.cache
def error_class(kind: str) -> type[HpcckptError]:
    """Return the error class of a ``kind``; the root class if there is none."""
    for cls in _subclasses(HpcckptError):
        if cls.__dict__.get("kind") == kind and "_is_joint" not in cls.__dict__:
            return cls
    return HpcckptError


@functools.cache
def _joint_class(kind: str) -> type[CollectiveError]:
    """Return a class that is both a CollectiveError and the class of `kind`."""
    cls = error_class(kind)
    if issubclass(CollectiveError, cls):
        return CollectiveError
    if issubclass(cls, CollectiveError):
        return cls
    body = {"_is_joint": True, "__module__": cls.__module__, "__doc__": cls.__doc__, "kind": cls.kind}
    joint: type[CollectiveError] = type(cls.__name__, (CollectiveError, cls), {**body, "exit_code": cls.exit_code})
    return joint


def collective_error(phase: str, failures: Mapping[int, Failure]) -> CollectiveError:
    """Return the error that every rank raises for the failures of some ranks.

    It is an instance of :class:`CollectiveError`.  If all failures are of one kind, it is also an
    instance of the class of this kind, so that callers may catch either.
    """
    kinds = {failure.kind for failure in failures.values()}
    cls = _joint_class(kinds.pop()) if len(kinds) == 1 else CollectiveError
    error = cls(_collective_text(phase, failures))
    error.phase = phase
    error.failures = {rank: failure.text for rank, failure in failures.items()}
    error.kinds = {rank: failure.kind for rank, failure in failures.items()}
    return error


def error_of(failure: Failure) -> HpcckptError:
    """Return the error of a failure that concerns all ranks.

    It has the same class and text on all of them.
    """
    error = error_class(failure.kind)(failure.text)
    if isinstance(error, CollectiveError):
        error.kinds = {0: failure.kind}
        error.failures = {0: failure.text}
    return error


def _collective_text(phase: str, failures: Mapping[int, Failure]) -> str:
    by_text: dict[str, list[int]] = {}
    for rank, failure in sorted(failures.items()):
        by_text.setdefault(failure.text, []).append(rank)
    parts = [f"[{_rank_list(ranks)}] {text}" for text, ranks in by_text.items()]
    return f"{phase}: " + "; ".join(parts)


def _rank_list(ranks: list[int], limit: int = 8) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:limit])
    more = f" and {len(ranks) - limit} more" if len(ranks) > limit else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def as_failure(error: BaseException) -> Failure:
    """Return what other ranks need to know about an exception."""
    if isinstance(error, HpcckptError):
        return Failure(error.kind, str(error))
    if isinstance(error, OSError):
        translated = from_os_error(error)
        return Failure(translated.kind, str(translated))
    if isinstance(error, MemoryError):
        cause = f": {error}" if str(error) else ""
        return Failure(HostMemoryError.kind, printable(f"this host has not enough free memory{cause}"))
    return Failure("collective", printable(f"{type(error).__name__}: {error}"))


_SPACE_ERRNOS = {errno.ENOSPC, errno.EDQUOT}
_DENIED_ERRNOS = {errno.EACCES, errno.EPERM}
_READ_ONLY_ERRNOS = {errno.EROFS, *_DENIED_ERRNOS}


def from_os_error(error: OSError, doing: str = "") -> HpcckptError:
    """Translate an ``OSError`` into the error class that tells what to do."""
    text = _os_error_text(error, doing)
    if error.errno in _SPACE_ERRNOS:
        return NoSpaceError(f"{text}; free space or quota, committed steps are untouched")
    if error.errno in _READ_ONLY_ERRNOS:
        return ReadOnlyError(f"{text}; make the directory writable or choose another one")
    return StorageError(text)


def from_read_error(error: OSError, doing: str) -> HpcckptError:
    """Translate an ``OSError`` from reading a file or directory."""
    if error.errno in _DENIED_ERRNOS:
        return ReadOnlyError(f"{_os_error_text(error, doing)}; make it readable for this user")
    return from_os_error(error, doing)


def _os_error_text(error: OSError, doing: str) -> str:
    place = f" {error.filename}" if error.filename else ""
    return f"{doing or 'file operation'}{place}: {error.strerror or error}"
