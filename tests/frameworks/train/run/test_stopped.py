"""A training that is asked to stop saves, ends with exit code 75, and resumes as if it had never been stopped."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from hpcckpt.format import layout
from tests.support.train import pieces
from tests.support.train.launch import HOROVOD, Straight, completed, needs_mpirun, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def asked(config: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a configuration that is asked to stop where the others are killed."""
    for cycle in config:
        (options,) = cycle["train_loop"].values()
        options["callbacks"][0]["DieAt"]["with_signal"] = int(signal.SIGTERM)
    return config


def test_sigterm_gives_exit_code_75_and_a_run_that_ends_with_the_same_bits(straight: Straight, tmp_path: Path) -> None:
    config, run = asked(pieces.two_cycles(distributed="none")), tmp_path / "run"
    for place in ("1:7", "2:5"):
        ended = train(run, config, kill=place)
        assert ended.code == 75, ended.err
        entry = pieces.log(run, "preempted")[-1]
        assert entry["step"] == int(place.partition(":")[2])
        assert "SIGTERM" in entry["reason"]
    completed(train(run, config))
    assert pieces.ends_with(run) == straight("none", 1)


def test_a_halt_file_in_the_run_directory_stops_it_whichever_cycle_it_is_in(straight: Straight, tmp_path: Path) -> None:
    config, run = pieces.two_cycles(distributed="none"), tmp_path / "run"
    run.mkdir()
    for request in ("now", "after-step 1"):
        (run / layout.HALT).write_text(request, encoding="utf-8")
        ended = train(run, config)
        assert ended.code == 75, ended.err
        assert "HALT" in pieces.log(run, "preempted")[-1]["reason"]
        assert not (run / layout.HALT).exists()
        assert (run / layout.HALTED).read_text(encoding="utf-8") == request
    (run / layout.HALT).write_text("after-step 1000000", encoding="utf-8")  # more than it trains
    completed(train(run, config))
    assert not (run / layout.HALT).exists()
    assert pieces.ends_with(run) == straight("none", 1)


@needs_mpirun
@pytest.mark.parametrize("kind", [HOROVOD])  # with mpi4py the doors of tests/schedulers/jobs do it
def test_sigterm_to_one_rank_stops_all_of_them_with_exit_code_75(kind: str, tmp_path: Path) -> None:
    config, run = asked(pieces.two_cycles(distributed=kind)), tmp_path / "run"
    ended = train(run, config, 2, kill="1:7@1")
    assert ended.code == 75, ended.err
    assert len(pieces.log(run, "preempted")) == 1
    completed(train(run, config, 2))
    assert [entry["cycle"] for entry in pieces.log(run, "complete")] == [1, 2]
