"""The user's quota, from ``lfs quota`` or ``quota``."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from hpcckpt.core.mounts import Mount
from hpcckpt.tools.doctor.finding import Finding
from hpcckpt.tools.doctor.probe import run

_NEARLY = 0.9


@dataclass(frozen=True, slots=True)
class Quota:
    """Used and allowed: kibibytes and files; a limit of 0 is none."""

    used_kib: int
    limit_kib: int
    used_files: int
    limit_files: int


def findings(mount: Mount) -> Iterator[Finding]:
    """Yield what the quota on a file system allows; nothing if there is none or no tool reports it. Independent."""
    text = _ask(mount)
    quota = parse(text, (mount.source, mount.point)) if text else None
    if quota is None:
        return
    for used, limit, what in (
        (quota.used_kib, quota.limit_kib, "space"),
        (quota.used_files, quota.limit_files, "files"),
    ):
        if limit:
            yield _judge(used / limit, what)


def _judge(share: float, what: str) -> Finding:
    message = f"{100 * share:.0f} % of the {what} used"
    if share >= 1:
        return Finding("quota", "problem", message, "remove what you can: hpcckpt prune --keep-last N")
    if share >= _NEARLY:
        return Finding("quota", "warning", message, "remove what you can, or ask for more")
    return Finding("quota", "ok", message)


def _ask(mount: Mount) -> str:
    if mount.type == "lustre" and shutil.which("lfs"):
        return run(["lfs", "quota", "-q", "-u", str(os.getuid()), mount.point]).stdout
    if shutil.which("quota"):
        return run(["quota", "-w", "-p"]).stdout
    return ""


def parse(text: str, names: tuple[str, ...]) -> Quota | None:
    """Read the line of one file system. Pure.

    Both tools print: name, blocks, quota, limit, grace, files, quota, limit, grace.
    """
    for line in text.replace("\n        ", " ").splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0] in names:
            numbers = [_number(field) for field in fields[1:9]]
            return Quota(numbers[0], numbers[2] or numbers[1], numbers[4], numbers[6] or numbers[5])
    return None


def _number(field: str) -> int:
    """Return the digits of a field; a grace time counts for nothing here.

    ``*`` marks one over its limit, and brackets one of which a server has not reported its part.
    """
    found = re.fullmatch(r"\[?(\d+)\]?\*?", field)
    return int(found[1]) if found else 0
