"""Errors: one kind per class, the built-in parents people catch, and one error of many ranks'."""

from __future__ import annotations

import errno
import inspect
import os

import pytest
from hypothesis import given, strategies as st

from hpcckpt import errors
from hpcckpt.errors import CollectiveError, Failure, HpcckptError, as_failure, collective_error

pytestmark = pytest.mark.one_case

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, HpcckptError)]
CATEGORIES = (errors.RetryError, errors.OlderStepError, errors.ConfigError, errors.CodeError)

KINDS = {
    "error", "retry", "locked", "lock-lost", "no-space", "storage", "read-only", "retired", "older-step",
    "step-not-found", "corrupt", "manifest", "config", "option", "step-exists", "newer-step", "format-version",
    "backend-not-found", "backend-conflict", "backend", "mpi", "state-mismatch", "code", "state", "tree-mismatch",
    "replica-mismatch", "sharding", "closed", "collective",
    "foreign-format", "no-restorable-step",
}  # fmt: skip
"""Programs match on these: add to them, never take one away."""

EXIT_CODES = {
    "corrupt": 3, "manifest": 3, "step-not-found": 4, "no-restorable-step": 4, "state-mismatch": 5, "no-space": 7,
    "locked": 8,
}  # fmt: skip


def test_no_kind_was_taken_away_and_each_is_unique():
    kinds = [cls.__dict__["kind"] for cls in CLASSES]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) >= KINDS


def test_a_class_is_found_by_its_kind():
    assert [errors.error_class(cls.kind) for cls in CLASSES] == CLASSES
    assert errors.error_class("no-such-kind") is HpcckptError


def test_every_error_says_what_the_caller_will_do():
    n_categories = {cls: sum(issubclass(cls, category) for category in CATEGORIES) for cls in CLASSES}
    assert [cls for cls, n in n_categories.items() if n != 1] == [CollectiveError, HpcckptError]


def test_exit_codes_are_those_of_the_command_line():
    for cls in CLASSES:
        expected = [code for kind, code in EXIT_CODES.items() if issubclass(cls, errors.error_class(kind))]
        assert cls.exit_code in (expected or {1, 2, 5, 8}), cls


PARENTS = {
    "step-not-found": FileNotFoundError, "step-exists": FileExistsError, "corrupt": ValueError, "option": ValueError,
    "no-space": OSError, "storage": OSError, "read-only": PermissionError, "locked": BlockingIOError,
    "backend-not-found": LookupError, "state": TypeError, "closed": RuntimeError, "state-mismatch": ValueError,
}  # fmt: skip


def test_an_error_is_also_the_built_in_one_that_people_catch():
    assert [kind for kind, parent in PARENTS.items() if not issubclass(errors.error_class(kind), parent)] == []


# -- across ranks --------------------------------------------------------------------------------


def test_failures_of_one_kind_are_an_error_of_that_class_too():
    for cls in CLASSES:
        error = collective_error("doing", {0: Failure(cls.kind, "text")})
        assert isinstance(error, CollectiveError), cls
        assert isinstance(error, cls), cls
        assert error.kind == (cls.kind if cls is not HpcckptError else "collective"), cls
        assert error.exit_code == (cls.exit_code if cls is not HpcckptError else 1), cls


def test_a_collective_error_of_one_kind_is_raised_again_across_ranks_as_that_kind():
    """A collective call inside another one must not lose the class."""
    inner = collective_error("inner", {0: Failure("no-space", "full")})
    outer = collective_error("outer", {2: as_failure(inner)})
    assert isinstance(outer, errors.NoSpaceError)
    assert "inner" in str(outer)


def test_failures_of_different_kinds_are_a_plain_collective_error():
    error = collective_error("doing", {0: Failure("no-space", "full"), 3: Failure("corrupt", "torn")})
    assert type(error) is CollectiveError
    assert error.failures == {0: "full", 3: "torn"}


failures = st.dictionaries(
    st.integers(0, 10**6),
    st.builds(Failure, st.sampled_from(sorted(KINDS)), st.text(min_size=1)),
    min_size=1,
    max_size=30,
)


@given(st.text(), failures)
def test_one_error_of_many_names_phase_ranks_and_texts(phase, failures):
    error = collective_error(phase, failures)
    assert str(error).startswith(errors.printable(f"{phase}: "))
    assert error.failures == {rank: failure.text for rank, failure in failures.items()}
    assert error.phase == phase
    assert all(errors.printable(failure.text) in str(error) for failure in failures.values())


def test_many_ranks_with_one_text_are_told_once():
    error = collective_error("p", {rank: Failure("storage", "disk gone") for rank in range(1000)})
    assert str(error) == "p: [ranks 0, 1, 2, 3, 4, 5, 6, 7 and 992 more] disk gone"


@given(st.sampled_from(sorted(errno.errorcode)), st.none() | st.text(min_size=1).filter(lambda t: "\0" not in t))
def test_any_error_of_the_operating_system_is_one_of_ours(number, filename):
    error = errors.from_os_error(OSError(number, os.strerror(number), filename), "do it")
    assert isinstance(error, OSError)
    assert isinstance(error, errors.RetryError)
    assert os.strerror(number) in str(error)
    assert str(error).startswith("do it")
    assert filename is None or errors.printable(filename) in str(error)


@pytest.mark.parametrize(
    ("number", "cls"),
    [
        (errno.ENOSPC, errors.NoSpaceError),
        (errno.EDQUOT, errors.NoSpaceError),
        (errno.EROFS, errors.ReadOnlyError),
        (errno.EACCES, errors.ReadOnlyError),
        (errno.EIO, errors.StorageError),
        (errno.ESTALE, errors.StorageError),
    ],
)
def test_errors_of_the_operating_system_are_sorted_by_what_to_do(number, cls):
    assert type(errors.from_os_error(OSError(number, "text"))) is cls
    assert as_failure(OSError(number, "text")).kind == cls.kind


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_denied_read_asks_for_the_right_to_read(number):
    error = errors.from_read_error(OSError(number, os.strerror(number), "/run/x"), "read")
    assert str(error) == f"read /run/x: {os.strerror(number)}; make it readable for this user"
    assert type(error) is errors.ReadOnlyError


def test_too_little_memory_on_a_rank_is_a_host_memory_error_on_all():
    error = collective_error("save step 1", {1: as_failure(MemoryError("Unable to allocate 8 GiB"))})
    assert isinstance(error, errors.HostMemoryError)
    assert "[rank 1] this host has not enough free memory: Unable to allocate 8 GiB" in str(error)
    assert not as_failure(MemoryError()).text.endswith(" ")


def test_any_other_error_crosses_ranks_as_text():
    assert as_failure(ZeroDivisionError("by zero")) == Failure("collective", "ZeroDivisionError: by zero")


def test_problems_are_listed_and_the_list_is_bounded():
    problems = [errors.Problem(f"p{k}", "is wrong") for k in range(25)]
    assert errors.list_problems(problems[:2]) == "p0: is wrong; p1: is wrong"
    assert errors.list_problems(problems).endswith("… and 5 more")
