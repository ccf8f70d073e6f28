"""How good the advised interval is: against the best that simulations of failures find. Needs NumPy only.

For each mean time between failures and each cost of a save, 1,000 failures are drawn, and the best of 401 intervals is
looked for in these very failures, which flatters it.  The advised interval is tried on the same ones.  That is done for
several seeds; the table has the mean and the worst of them.

    python bench/advise.py [--seeds 20] [--failures 1000] [--restart 60]
"""

from __future__ import annotations

import argparse
import statistics

from hpcckpt.interval import daly, lost_part
from hpcckpt.tools.report.simulate_failures import failures, simulated_loss, simulated_optimum
from hpcckpt.tools.report.text import duration_words

MTBFS_S = (600.0, 1800.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0)
COSTS_S = (0.1, 1.0, 10.0, 60.0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--failures", type=int, default=1000)
    parser.add_argument("--restart", type=float, default=0.0, help="seconds that a restart takes")
    args = parser.parse_args()
    print(
        "| failure every | a save costs | advised | expected loss | more than the best: mean | worst | best interval |"
    )
    print("|---|---|---|---|---|---|---|")
    for mtbf_s in MTBFS_S:
        for cost_s in COSTS_S:
            print(row(mtbf_s, cost_s, args))


def row(mtbf_s: float, cost_s: float, args: argparse.Namespace) -> str:
    """Return a line of the table."""
    advised = daly(cost_s, mtbf_s)
    excess, intervals = [], []
    for seed in range(args.seeds):
        times = failures(mtbf_s, args.failures, seed)
        best = simulated_optimum(times, cost_s, advised, args.restart)
        (lost,) = simulated_loss([advised], times, cost_s, args.restart)
        excess.append(100 * (lost / best.lost - 1))
        intervals.append(best.interval_s / advised - 1)
    cells = [
        duration_words(mtbf_s),
        duration_words(cost_s),
        duration_words(advised),
        f"{100 * lost_part(advised, cost_s, mtbf_s, args.restart):.2f} %",
        f"{statistics.fmean(excess):.1f} %",
        f"{max(excess):.1f} %",
        f"{100 * min(intervals):+.0f} … {100 * max(intervals):+.0f} %",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
