"""What a checkpoint says that came from somewhere: no table has lines that are not its own, and nothing crashes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcckpt import native
from hpcckpt.cli.summary import iso_of
from hpcckpt.cli.text import time_text
from hpcckpt.core.plan import FileRecord
from hpcckpt.format import manifest
from hpcckpt.rundir import discovery
from hpcckpt.tensorflow.retention import look
from hpcckpt.tools import repair
from hpcckpt.tools.report.text import moment_words

Cli = Callable[..., Any]
FORGED = "x\n    99      9  forged\x1b[31m\u202e"


def rewrite(step: Path, **changes: Any) -> None:
    """Change the manifest of a step."""
    changed = replace(discovery.read_manifest(step), **changes)
    (step / "manifest.json").write_bytes(manifest.encode(changed, native.crc32c))


@pytest.fixture
def step(saved: Path) -> Path:
    return saved / "step-0000000030"


MOMENTS = ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "x" * 5000, "", FORGED]


@pytest.mark.parametrize("created", MOMENTS, ids=["late", "early", "long", "empty", "forged"])
def test_a_time_that_is_none_is_shown_short_and_on_its_line(cli: Cli, step: Path, created: str) -> None:
    rewrite(step, created=created)
    for words, n_lines in ((("list", step.parent), 4), (("list", step.parent.parent, "--runs"), 2)):
        result = cli(*words)
        assert (result.code, len(result.out.splitlines())) == (0, n_lines)
        assert max(map(len, result.out.splitlines())) < 120 + len(str(step))
        assert "\x1b" not in result.out
    shown = cli("info", step)
    assert (shown.code, "forged\n" in shown.out) == (0, False)


def test_names_of_objects_and_metrics_stay_on_their_lines(cli: Cli, step: Path) -> None:
    objects = {"state": {}, "user": {FORGED: 1, "epoch": 3}}
    rewrite(step, metrics={FORGED: 1.0}, objects=objects, environment={FORGED: FORGED})
    other = step.with_name("step-0000000020")
    for words in (("info", step), ("diff", step.parent, 20, 30), ("tensors", step, "-d", FORGED),
                  ("restore", step, "-o", step / "x.npz"), ("convert", step, step / "x.safetensors")):  # fmt: skip
        result = cli(*words)
        for line in (result.out + result.err).splitlines():
            assert not line.startswith("    99"), words
            assert "\u202e" not in line, words
    assert other.is_dir()


def test_a_file_time_after_the_year_9999_is_shown_as_none() -> None:
    """Of directories on file systems that have such times, as tmpfs and XFS do."""
    assert (iso_of(2.0**41), time_text(iso_of(2.0**41)), moment_words(2.0**41)) == ("", "-", "-")


def test_a_manager_of_tensorflow_takes_a_time_that_is_none_for_now(step: Path) -> None:
    rewrite(step, created=FORGED)
    assert look(step.parent, 5e9).steps[30].time_s == 5e9


def test_repair_takes_a_file_time_after_the_year_9999_for_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", lambda _: SimpleNamespace(st_mtime=2.0**41))
        found = repair._written(Path("step"), [FileRecord("data/x", 1, 0)])
    assert found == "2999-12-31T23:59:59+00:00"
