"""Advice on how often to save, against failures that are drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcckpt.errors import OptionError, StepNotFoundError
from hpcckpt.interval import daly, lost_part, young
from hpcckpt.tools.report.advice import advise, curve
from hpcckpt.tools.report.simulate_failures import failures, simulated_loss, simulated_optimum
from hpcckpt.tools.report.statistics import RunStatistics

pytestmark = pytest.mark.one_case

MINUTE, HOUR = 60.0, 3600.0


def figures(**known):
    empty = dict.fromkeys(RunStatistics.__dataclass_fields__)
    counts = {"n_jobs": 1, "n_deaths": 0, "n_saves": 9, "n_failed": 0, "nbytes": 0, "standing_nbytes": 0}
    return RunStatistics(**{**empty, **counts, "stall_s": 0.0, "running_s": 0.0, **known})


@pytest.mark.parametrize(
    "mtbf_s", [10 * MINUTE, 30 * MINUTE, HOUR, 4 * HOUR, 24 * HOUR], ids=lambda s: f"{s / 60:.0f}min"
)
@pytest.mark.parametrize("restart_s", [0.0, 60.0])
def test_the_advice_loses_at_most_a_twentieth_more_than_the_best_interval(mtbf_s, restart_s):
    times = failures(mtbf_s, 1000, seed=7)
    for cost_s in (0.1, 1.0, 10.0, 60.0, 120.0):
        advice = advise(figures(cost_s=cost_s), mtbf_s, restart_s)
        best = simulated_optimum(times, cost_s, advice.interval_s, restart_s)
        (lost,) = simulated_loss([advice.interval_s], times, cost_s, restart_s)
        assert lost <= 1.05 * best.lost, cost_s
        assert advice.interval_s == pytest.approx(best.interval_s, rel=0.35)


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_other_intervals_lose_clearly_more(factor):
    times = failures(HOUR, 1000, seed=7)
    best, other = simulated_loss([daly(10.0, HOUR), factor * daly(10.0, HOUR)], times, 10.0)
    assert other > 1.5 * best


@pytest.mark.parametrize("cost_s", [1.0, 60.0])
@pytest.mark.parametrize("restart_s", [0.0, 120.0])
def test_the_expected_loss_is_what_many_failures_lose(cost_s, restart_s):
    times = failures(HOUR, 200_000, seed=3)
    intervals = np.array([60.0, 300.0, 900.0, 2400.0])
    drawn = simulated_loss(intervals, times, cost_s, restart_s)
    expected = [lost_part(interval, cost_s, HOUR, restart_s) for interval in intervals]
    assert drawn == pytest.approx(expected, rel=0.02)


def test_a_simulated_job_loses_what_one_counts_by_hand():
    # 10 s of training, 2 s of saving: at 25 s two saves are over, at 11.9 s none; a restart takes 1 s first
    assert simulated_loss([10.0], np.array([26.0]), 2.0, 1.0) == pytest.approx([1 - 20 / 26])
    assert simulated_loss([10.0], np.array([12.9]), 2.0, 1.0) == pytest.approx([1.0])
    assert simulated_loss([10.0], np.array([24.5]), 2.0, 0.0, latency_s=3.0) == pytest.approx([1 - 10 / 24.5])


def test_dalys_interval_is_advised_and_youngs_shown_where_it_differs():
    advice = advise(figures(cost_s=60.0), HOUR)
    assert advice.interval_s == daly(60.0, HOUR)
    assert {choice.what for choice in advice.choices} == {"advised", "young", ""}
    assert next(c for c in advice.choices if c.what == "young").interval_s == young(60.0, HOUR)
    assert [c.interval_s for c in advice.choices] == sorted(c.interval_s for c in advice.choices)


def test_the_parts_add_up_and_the_advised_interval_loses_least():
    advice = advise(figures(cost_s=10.0, interval_s=2000.0, steps_per_second=2.0), HOUR, 30.0)
    for choice in advice.choices:
        assert choice.saving + choice.again == pytest.approx(choice.lost)
        assert choice.steps == round(choice.interval_s * 2)
        assert advice.advised.lost <= choice.lost * 1.001
    assert advice.now.interval_s == 1990.0
    assert all(lost >= advice.advised.lost * 0.999 for _, lost in curve(advice))


def test_the_journal_says_how_often_jobs_die_if_three_have():
    assert advise(figures(cost_s=1.0, n_deaths=3, mtbf_s=5000.0)).mtbf_source == "journal"
    few = advise(figures(cost_s=1.0, n_deaths=2, mtbf_s=5000.0))
    assert (few.mtbf_s, few.mtbf_source) == (86400.0, "assumed")
    assert "pass --mtbf" in " ".join(few.warnings)
    assert advise(figures(cost_s=1.0, n_deaths=3, mtbf_s=5000.0), HOUR).mtbf_s == HOUR


def test_a_save_that_lasts_longer_than_the_interval_is_warned_of():
    advice = advise(figures(cost_s=0.01, save_s=40.0), HOUR)
    assert any("cannot begin before the last has ended" in text for text in advice.warnings)


def test_without_a_cost_there_is_no_advice():
    with pytest.raises(StepNotFoundError, match="--cost"):
        advise(figures())
    with pytest.raises(OptionError):
        advise(figures(cost_s=0.0))
    assert advise(figures(), HOUR, cost_s=3.0).cost_s == 3.0


def test_what_never_ends_loses_everything():
    assert lost_part(1e6, 1.0, 600.0) == 1.0
    assert math.isclose(lost_part(1e-3, 1e-9, 1e9), 1e-6, rel_tol=0.1)


def test_a_run_that_saves_as_often_as_advised_gets_the_advice_too():
    advice = advise(figures(cost_s=3600.0, interval_s=1.0), 0.001)
    assert advice.advised.interval_s == advice.now.interval_s == advice.interval_s == 0.001
