"""Values that options of batch schedulers take: what each kind looks like, and what is wrong with one that does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Complaint = str | None
"""What is wrong with a value; ``None`` if nothing is."""

_PLACES = frozenset({"free", "pack", "scatter", "vscatter", "excl", "shared", "exclhost"})
_JOB_RESOURCES = frozenset(
    {"arch", "cput", "file", "filesystems", "host", "max_walltime", "mem", "min_walltime", "ncpus", "nice", "nodect",
     "ompthreads", "pcput", "pmem", "pvmem", "singularity_fakeroot", "soft_walltime", "software", "vmem", "walltime"}
)  # fmt: skip
_CHUNK_RESOURCES = frozenset(
    {"accelerator", "accelerator_model", "aoe", "arch", "debug", "demand", "gputype", "host", "mem", "mpiprocs",
     "naccelerators", "ncpus", "ngpus", "ompthreads", "pubnet", "system", "tier0", "tier1", "vmem", "vnode"}
)  # fmt: skip
_ATTRIBUTES = frozenset(
    {"block", "depend", "group_list", "release_nodes_on_stageout", "run_count", "sandbox", "stagein", "stageout",
     "tolerate_node_failures", "umask"}
)  # fmt: skip
_DEPENDENCIES = frozenset(
    {"after", "afterany", "afternotok", "afterok", "before", "beforeany", "beforenotok", "beforeok", "on", "runone"}
)
_WALLTIME = re.compile(r"\d{1,9}|\d{1,5}:[0-5]\d|\d{1,5}:[0-5]\d:[0-5]\d", re.ASCII)
_CLOCKS = frozenset({"walltime", "min_walltime", "max_walltime", "soft_walltime"})


def pairs(text: str, separator: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of ``a=1,b=2``; a part without ``=`` has the value "" and belongs to nothing."""
    for part in text.split(separator):
        name, _, value = part.partition("=")
        yield name, value


# -- PBS -------------------------------------------------------------------------------------------


def resources(text: str) -> Complaint:
    """Say what is wrong with a resource list of PBS: ``select=2:system=polaris,walltime=1:00:00``."""
    for name, value in split_resources(text):
        complaint = _resource(name, value)
        if complaint:
            return complaint
    return None


def split_resources(text: str) -> list[tuple[str, str]]:
    """Return a resource list of PBS as names and values."""
    return [(name.strip(), value.strip()) for name, _, value in (part.partition("=") for part in text.split(","))]


def _resource(name: str, value: str) -> Complaint:
    if not name or not value:
        return f"{name or value!r} is no name=value"
    if name == "select":
        return _select(value)
    if name == "place":
        return _place(value)
    if name in _CLOCKS and not _WALLTIME.fullmatch(value):
        return f"{name}={value} is no time: HH:MM:SS, or seconds"
    if name not in _JOB_RESOURCES:
        return f"{name!r} is no resource of a whole job"
    return None


def _select(value: str) -> Complaint:
    for chunk in value.split("+"):
        count, *needs = chunk.split(":")
        if "=" in count:  # the number may be left out, and is one then
            count, needs = "1", [count, *needs]
        if not count.isdecimal() or int(count) < 1:
            return f"select={chunk} does not begin with a number of chunks"
        for name, wanted in pairs(":".join(needs), ":") if needs else ():
            if name not in _CHUNK_RESOURCES or not wanted:
                return f"{name!r} is no resource of a chunk"
    return None


def _place(value: str) -> Complaint:
    wrong = [part for part in value.split(":") if part not in _PLACES and not re.fullmatch(r"group=\w+", part)]
    return f"place={wrong[0]} is none of {', '.join(sorted(_PLACES))}, group=RESOURCE" if wrong else None


def attributes(text: str) -> Complaint:
    """Say what is wrong with what ``-W`` of PBS is given: ``depend=afterany:123,run_count=3``."""
    name, _, value = text.partition("=")
    if name not in _ATTRIBUTES or not value:
        return f"{name!r} is no attribute that -W sets"
    if name == "depend":
        return _depend(value)
    if name == "run_count" and not re.match(r"\d+(,|$)", value):
        return f"run_count={value} is no number"
    return None


def _depend(value: str) -> Complaint:
    for one in value.split(","):
        kind, _, jobs = one.partition(":")
        if kind not in _DEPENDENCIES:
            return f"depend={kind} is none of {', '.join(sorted(_DEPENDENCIES))}"
        if not jobs:
            return f"depend={kind} names no job"
    return None


# -- kinds -----------------------------------------------------------------------------------------


def _like(pattern: str, meaning: str) -> Callable[[str], Complaint]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda value: None if compiled.fullmatch(value) else f"{value!r} is not {meaning}"


def _signal(value: str) -> Complaint:
    found = re.fullmatch(r"(?:[RB]{1,2}:)?(?:[1-9]\d?|(?:SIG)?[A-Z][A-Z0-9]{1,7})(?:@(\d{1,9}))?", value)
    if found is None:
        return f"{value!r} is not [B:]SIGNAL[@SECONDS]"
    return f"{value!r}: at most 65535 seconds" if int(found[1] or 0) > 65535 else None


KINDS: dict[str, Callable[[str], Complaint]] = {
    "TEXT": _like(r".+", "something"),
    "NAME": _like(r"[^\s/]+", "a name without spaces and slashes"),
    "PATH": _like(r"\S.*", "a path"),
    "COUNT": _like(r"[1-9]\d{0,8}", "a number from 1"),
    "NUMBER": _like(r"-?\d{1,9}", "a number"),
    "UMASK": _like(r"[0-7]{1,4}", "octal"),
    # Slurm
    "NODES": _like(r"[1-9]\d*[kK]?(-[1-9]\d*[kK]?)?", "a number of nodes, or MIN-MAX"),
    "TIME": _like(r"\d+(:[0-5]?\d){0,2}|\d+-\d{1,2}(:[0-5]\d){0,2}|UNLIMITED", "a time: MINUTES, [D-]HH:MM:SS"),
    "SIGNAL": _signal,
    "ARRAY": _like(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%[1-9]\d*)?", "indexes: 0-9, 1,3,5, 0-99%10"),
    "OPEN": _like(r"append|truncate", "append or truncate"),
    "SIZE": _like(r"\d+[KMGT]?", "a size: a number, K, M, G or T"),
    "GPUS": _like(r"([A-Za-z][\w.-]*:)?\d+(,[A-Za-z][\w.-]*:\d+)*", "[TYPE:]NUMBER"),
    "YESNO": _like(r"yes|no", "yes or no"),
    # PBS
    "RESOURCES": resources,
    "ATTRIBUTES": attributes,
    "JOIN": _like(r"oe|eo|n", "oe, eo or n"),
    "KEEP": _like(r"n|(?!.*(.).*\1)[doe]{1,3}", "n, or letters of d, o, e"),
    "REMOVE": _like(r"o|e|oe|eo", "o, e or both"),
    "RERUN": _like(r"y|n", "y or n"),
    "RANGE": _like(r"\d+-\d+(:[1-9]\d*)?(%[1-9]\d*)?", "a range: 0-9, 0-9:2, 0-99%10"),
    "EVENTS": _like(r"n|j?[abe]+|[abe]+j?", "n, or letters of a, b, e, j"),
    "JOBNAME": _like(r"[A-Za-z0-9][!-~]{0,229}", "a letter or figure and no spaces, at most 230 characters"),
    "PRIORITY": _like(r"-?\d{1,4}", "a number from -1024 to 1023"),
    "DATE": _like(r"(\d\d){2,6}(\.\d\d)?", "a moment: [[[[CC]YY]MM]DD]hhmm[.SS]"),
    # Cobalt
    "MINUTES": _like(r"\d{1,6}|\d{1,3}:[0-5]\d:[0-5]\d", "a time: minutes, or HH:MM:SS"),
    "MODE": _like(r"script|interactive", "script or interactive, the modes that Theta had"),
    "ATTRS": _like(r"[\w-]+=[^:=\s]+(:[\w-]+=[^:=\s]+)*", "name=value, or more of them with : between"),
    "ENVIRONMENT": _like(r"\w+=[^\s]*", "NAME=VALUE, or more of them with : between"),
    "JOBS": _like(r"\d+(:\d+)*", "job numbers, with : between"),
}
"""By name of a kind: what says what is wrong with a value of it."""
