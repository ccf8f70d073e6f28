"""What several ranks do together: gradients and metrics averaged, files written by rank 0, messages once."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mpi.launch import Finished
from tests.support.train import pieces
from tests.support.train.launch import HOROVOD, KINDS, MPI4PY, completed, needs_mpirun, start, told_of, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), needs_mpirun]
PLAIN: dict[str, Any] = {
    "datasets": {"toy_data": {"size": 6, "is_shuffled": False, "n_valid": 13}},
    "model": {"ToyModel": {"dropout": 0.0, "has_norm": False}},
    "seed": 5,
}
"""Nothing that would make ranks differ from one rank with as large a batch; two validate on 7 rows and 6."""
LOOPS = {"fit": "hpcckpt.train.KerasTrainLoop", "tape": "TapeLoop"}
LMS = {"swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 1}
KINDS_AND_RANKS = [
    pytest.param(*kind.values, n_ranks, marks=kind.marks) for kind, n_ranks in ((HOROVOD, 2), (MPI4PY, 2), (MPI4PY, 3))
]
"""Three ranks average by our own means here; by Horovod in the run that goes on with one and with three."""


@dataclass(frozen=True)
class Job:
    """What one job trained: by `fit`, with a tape, with Large Model Support; and one training that fails."""

    place: Path
    ended: Finished

    def told(self, name: str) -> list[dict[str, Any]]:
        return told_of(self.ended, self.place / name)

    def weights(self, name: str) -> dict[str, Any]:
        return {key: value for key, value in pieces.model_weights(self.place / name).items() if "seed" not in key}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Job]:
    """What ranks have trained: ``job(kind, n_ranks)``."""
    known: dict[tuple[str, int], Job] = {}

    def find(kind: str, n_ranks: int) -> Job:
        if (kind, n_ranks) not in known:
            place = tmp_path_factory.mktemp(f"{kind}-{n_ranks}")
            configs = {
                name: pieces.config(**PLAIN, train_loop=pieces.loop(loop), distributed=kind)
                for name, loop in LOOPS.items()
            }
            ending = pieces.loop(callbacks=[{"EndsOn": {"rank": n_ranks - 1, "batch": 2}}])
            configs["ending"] = pieces.config(**PLAIN, train_loop=ending, distributed=kind)
            configs["swapping"] = [{**configs["fit"][0], "lms": LMS}]
            orders: list[Any] = [{"run": str(place / name), "config": config} for name, config in configs.items()]
            failing = pieces.config(**{**PLAIN, "datasets": {"toy_data": {"fails_on": 1}}}, distributed=kind)
            if n_ranks > 1:
                orders.append({"run": str(place / "failing"), "config": failing, "is_expected": True})
            known[kind, n_ranks] = Job(place, completed(start(orders, n_ranks)))
        return known[kind, n_ranks]

    return find


Jobs = Callable[[str, int], Job]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("kind", "n_ranks"), KINDS_AND_RANKS)
def test_ranks_end_with_the_weights_of_one_with_the_same_global_batch(
    kind: str, n_ranks: int, loop: str, job: Jobs
) -> None:
    expected = job("none", 1).weights(loop)
    for name, value in job(kind, n_ranks).weights(loop).items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_are_the_means_over_the_ranks_on_all_of_them(kind: str, job: Jobs) -> None:
    first, second = (told["histories"] for told in job(kind, 2).told("fit"))
    assert first == second
    ((alone,),) = (told["histories"] for told in job("none", 1).told("fit"))
    for name, values in alone.items():
        np.testing.assert_allclose(first[0][name], values, rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_a_callback_of_one_rank_ends_amid_an_epoch_is_ended_on_all(kind: str, job: Jobs) -> None:
    assert [len(told["histories"][0]["loss"]) for told in job(kind, 2).told("ending")] == [1, 1]
    (complete,) = pieces.log(job(kind, 2).place / "ending", "complete")
    assert complete["step"] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_written_once_and_messages_come_once(kind: str, job: Jobs) -> None:
    run, text = job(kind, 2).place / "fit", job(kind, 2).ended.err
    rows = list(csv.DictReader((run / "metrics.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert text.count(f"complete epochs=2 step=16 weights={run}") == 1
    assert text.count("level=exact") == 4  # of four trainings
    (environment,) = json.loads((run / "environment.json").read_text(encoding="utf-8"))["jobs"]
    assert (environment["ranks"], sum(environment["hosts"].values()), environment["distributed"]) == (2, 2, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_that_one_rank_has_is_one_on_all_of_them_and_nobody_hangs(kind: str, job: Jobs) -> None:
    errors = [told["error"] for told in job(kind, 2).told("failing")]
    assert len(errors) == 2
    for error in errors:
        assert "[rank 1] [0].datasets.toy_data: ValueError: nothing can be read here" in error


@pytest.mark.parametrize("kind", KINDS)
def test_large_model_support_is_applied_on_each_rank_and_changes_no_bit(kind: str, job: Jobs) -> None:
    (entry,) = pieces.log(job(kind, 2).place / "swapping", "lms")
    assert [(rank["rank"], rank["mode"]) for rank in entry["ranks"]] == [(0, "pass"), (1, "pass")]
    assert all(rank["n_swap_outs"] > 0 for rank in entry["ranks"])
    assert len({rank["digest"] for rank in entry["ranks"]}) == 1
    expected = job(kind, 2).weights("fit")
    for name, value in job(kind, 2).weights("swapping").items():
        np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize("kind", [HOROVOD])
def test_a_run_of_two_ranks_goes_on_with_one_and_with_three(kind: str, tmp_path: Path) -> None:
    run, config = tmp_path / "run", pieces.two_cycles(distributed=kind)
    config[0]["datasets"] = {"toy_data": {"size": 6}}
    config[1].pop("datasets")
    alone = [{**config[0], "distributed": "none"}, config[1]]
    assert train(run, config, 2, kill="1:7").code != 0
    assert train(run, alone, 1, kill="1:15").code == -9
    completed(train(run, config, 3))
    assert [entry["ranks_before"] for entry in pieces.log(run, "resumed")] == [2, 1]
    assert [entry["cycle"] for entry in pieces.log(run, "complete")] == [1, 2]
