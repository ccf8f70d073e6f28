"""A run that has steps, none of which can be restored, is never taken for an empty run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcckpt as hc
from hpcckpt import errors
from hpcckpt.format import layout
from hpcckpt.rundir import discovery
from tests.support.two_tiers import Nodes

pytestmark = pytest.mark.counts(1, 2)


def state() -> dict[str, Any]:
    return {"w": np.zeros(1000, np.float32)}


def train(ckpt: hc.Checkpointer, n_steps: int) -> int:
    """Train in README's words; return the step at which it begins."""
    held = state()
    resumes = ckpt.latest_step() is not None
    first = ckpt.restore(held).step + 1 if resumes else 0
    for step in range(first, n_steps):
        held["w"] += 0.01
        ckpt.save(step, held)
    return first


def cut(damage: Any, run: Path) -> None:
    for step in run.glob("step-*"):
        damage.cut(damage.first_file(step))


def flip(damage: Any, run: Path) -> None:
    for step in run.glob("step-*"):
        damage.flip(damage.first_file(step), -1)
        with pytest.raises(errors.CorruptError):  # an earlier launch, which records it
            hc.load(step)


def lose(_damage: Any, run: Path) -> None:
    for step in run.glob("step-*"):
        (step / layout.MANIFEST).unlink()


HARMS: dict[str, Callable[[Any, Path], None]] = {"cut": cut, "flipped and recorded": flip, "no manifest": lose}


@pytest.fixture(params=HARMS)
def unusable(ranks: Any, run_dir: Path, damage: Any, request: pytest.FixtureRequest) -> Path:
    """A run of 3 steps, none of which can be restored."""

    def body(comm: Any) -> None:
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            assert train(ckpt, 3) == 0

    ranks(body)
    ranks.on_root(lambda: HARMS[request.param](damage, run_dir))
    return run_dir


def test_the_usual_loop_raises_and_saves_nothing_if_no_step_can_be_restored(ranks, unusable):
    def body(comm: Any) -> str:
        with hc.Checkpointer(unusable, comm=comm) as ckpt, pytest.raises(errors.NoRestorableStepError) as caught:
            train(ckpt, 9)
        return str(caught.value)

    before = ranks.on_root(lambda: sorted(unusable.glob("step-*")))
    for text in ranks(body):
        assert all(f"step {step}: " in text for step in (0, 1, 2)), text
        assert f"'hpcckpt verify {unusable} --all'" in text
        assert "'hpcckpt rm'" in text
        assert "another directory" in text
    assert ranks.on_root(lambda: sorted(unusable.glob("step-*"))) == before


CALLS: dict[str, Callable[[hc.Checkpointer], Any]] = {
    "latest_step": lambda ckpt: ckpt.latest_step(),
    "all_steps": lambda ckpt: ckpt.all_steps(),
    "best_step": lambda ckpt: ckpt.best_step(),
    "restore": lambda ckpt: ckpt.restore(state()),
}


@pytest.mark.parametrize("call", CALLS)
def test_each_call_that_finds_a_step_raises_what_no_handler_of_empty_runs_catches(ranks, unusable, call):
    def body(comm: Any) -> None:
        with hc.Checkpointer(unusable, comm=comm, keep_best="loss") as ckpt:
            with pytest.raises(errors.NoRestorableStepError, match="no restorable step in ") as caught:
                CALLS[call](ckpt)
            assert not isinstance(caught.value, errors.StepNotFoundError | FileNotFoundError)
            assert ckpt.has_steps()

    ranks(body)


def test_reading_without_ranks_raises_it_too(ranks, unusable):
    for read in (hc.latest_checkpoint, hc.load, discovery.latest_step, discovery.find_step):
        with pytest.raises(errors.NoRestorableStepError):
            read(unusable)


def test_when_its_steps_are_removed_the_run_begins_at_0(ranks, unusable):
    def body(comm: Any) -> int:
        with hc.Checkpointer(unusable, comm=comm) as ckpt:
            assert (ckpt.latest_step(), ckpt.all_steps()) == (None, [])
            return train(ckpt, 1)

    ranks.on_root(lambda: [shutil.rmtree(path) for path in unusable.glob("step-*")])
    assert set(ranks(body)) == {0}


def test_with_scratch_it_raises_too_if_neither_place_has_a_restorable_step(ranks, places: Nodes, damage):
    def body(comm: Any) -> None:
        with places.open(comm) as ckpt:
            for call in (ckpt.latest_step, ckpt.all_steps):
                with pytest.raises(errors.NoRestorableStepError):
                    call()
            assert ckpt.has_steps()

    def save(comm: Any) -> None:
        with places.open(comm) as ckpt:
            train(ckpt, 2)

    ranks(save)
    ranks.on_root(lambda: (cut(damage, places.home), cut(damage, places.near)))
    ranks(body)


def test_a_run_whose_steps_are_replaced_while_one_looks_is_no_empty_run(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with hc.Checkpointer(run, max_to_keep=1) as ckpt:
        ckpt.save(1, state()).result()
        listed = discovery.step_numbers

        def then_replaced(directory: Any, *files: Any) -> list[int]:
            found = listed(directory, *files)
            monkeypatch.undo()
            ckpt.save(2, state()).result()
            shutil.rmtree(run / layout.step_dirname(1), ignore_errors=True)
            return found

        monkeypatch.setattr(discovery, "step_numbers", then_replaced)
        assert hc.latest_checkpoint(run) == run / layout.step_dirname(2)
