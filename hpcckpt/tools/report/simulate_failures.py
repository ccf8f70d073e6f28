"""Failures that are drawn, and what a training that saves at an interval has lost to them. Needs NumPy.

Between the end of a restart and the next failure the training runs for ``interval_s``, is stalled by a save for
``cost_s``, and so on.  A save that is over before the failure counts; what was trained after the last such save began
is lost.  A failure may fall into a save or a restart as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class Optimum(NamedTuple):
    """The best interval that a simulation found, and what it loses."""

    interval_s: float
    lost: float


def failures(mtbf_s: float, n_failures: int, seed: int) -> Floats:
    """Return the times between failures, drawn from an exponential distribution. Pure."""
    return np.random.default_rng(seed).exponential(mtbf_s, n_failures)


def simulated_loss(
    intervals_s: ArrayLike, times_s: Floats, cost_s: float, restart_s: float = 0.0, latency_s: float | None = None
) -> Floats:
    """Return the part of the time that is lost at each interval. Pure.

    Parameters
    ----------
    intervals_s : array_like
        Seconds of training between two saves.
    times_s : numpy.ndarray
        Times between failures.
    cost_s, restart_s : float
        What a save, and a restart, take from the training.
    latency_s : float, optional
        How long a save takes until it counts; by default it holds the training up for all that time.
    """
    intervals = np.asarray(intervals_s, dtype=np.float64)[:, None]
    running = np.maximum(times_s - restart_s, 0.0)[None, :]
    late = 0.0 if latency_s is None else max(0.0, latency_s - cost_s)
    n_saves = np.floor(np.maximum(running - late, 0.0) / (intervals + cost_s))
    useful = (n_saves * intervals).sum(axis=1)
    lost: Floats = 1.0 - useful / times_s.sum()
    return lost


def simulated_optimum(
    times_s: Floats, cost_s: float, around_s: float, restart_s: float = 0.0, n_points: int = 401
) -> Optimum:
    """Return the best interval among many between an eighth and eight times `around_s`. Pure."""
    intervals = around_s * np.exp(np.linspace(-np.log(8.0), np.log(8.0), n_points))
    lost = simulated_loss(intervals, times_s, cost_s, restart_s)
    best = int(lost.argmin())
    return Optimum(float(intervals[best]), float(lost[best]))
