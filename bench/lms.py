"""What Large Model Support costs and saves, with the cost planner and a file as tier, on the CPU.

Every training runs in a separate process, with the same settings of malloc, on the same batch; variants take turns.
One process first records the graph, the times of its ops and the bandwidth of the tier; plans are made from these.

1. ``curve``: time of a step and peak of resident memory over the budget of the step's tensors.
2. ``batch``: the largest batch under a limit of data (``RLIMIT_DATA``: what is there after start-up + 1.5 GiB).
3. ``peaks``: simulated peak against measured peak, for five models.

Memory is counted by the kernel (``VmHWM``), above what the process held before training began (start-up) and above what
it holds between steps, which is start-up, the traced function, and what libraries keep. All children run with
``TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1``: oneDNN's own pool would keep whatever was allocated once.

    python bench/lms.py --directory /path/on/the/disk --only curve --repeat 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _lms_models import BATCHES, MODELS

from hpcckpt.errors import MemoryBudgetError
from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.graph.graph_context import GraphContext
from hpcckpt.lms.planner.cost_planner import TierBandwidth, plan_by_cost

HERE = Path(__file__).parent
MIB = 1 << 20
CAP = 1536 * MIB
BUDGETS = (150, 200, 300, 500, 800)
PARTS = ("curve", "batch", "peaks")


class Bench:
    """Starts children, keeps what they found."""

    def __init__(self, options: argparse.Namespace, place: Path) -> None:
        self.options, self.place = options, place
        self.found: list[dict[str, Any]] = []

    def child(self, model: str, batch: int, **task: Any) -> dict[str, Any] | None:
        """Train in a separate process; `None` if that failed."""
        task |= {"model": model, "batch": batch, "directory": self.options.directory}
        task.setdefault("steps", self.options.steps)
        program = [sys.executable, str(HERE / "_lms_child.py"), json.dumps(task)]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        if done.returncode:
            return None
        result: dict[str, Any] = json.loads(done.stdout)
        self.found.append({**task, **result})
        return result

    def recorded(self, model: str, batch: int) -> tuple[Graph, TierBandwidth]:
        """Return a model's graph with measured times, and the tier's bandwidth."""
        path = self.place / f"{model}-{batch}.json"
        facts = self.child(model, batch, record=str(path), steps=2)
        if facts is None:
            raise SystemExit(f"lms.py: {model} with a batch of {batch} does not train at all")
        return Graph.from_json(path.read_text(encoding="utf-8")), TierBandwidth(facts["write"], facts["read"])

    def planned(
        self, graph: Graph, bandwidth: TierBandwidth, budget: int | None, name: str
    ) -> tuple[str, dict[str, Any]]:
        """Make a plan, and return where it lies and its figures."""
        plan = plan_by_cost(GraphContext(graph), budget, bandwidth)
        path = self.place / f"{name}-plan.json"
        path.write_text(plan.to_json(), encoding="utf-8")
        return str(path), dict(plan.parameters)


def step_s(result: dict[str, Any]) -> float:
    """Return the time of a step: the median of all but the first, which traces and compiles."""
    return statistics.median(result["times"][1:])


def curve(bench: Bench) -> Iterator[str]:
    """Measure time and memory over the budget."""
    batch = bench.options.batch
    graph, bandwidth = bench.recorded("resnet50", batch)
    plans = {mib: bench.planned(graph, bandwidth, mib * MIB, f"curve-{mib}") for mib in bench.options.budgets}
    rounds: dict[int, list[dict[str, Any]]] = {mib: [] for mib in (0, *plans)}
    ratios: dict[int, list[float]] = {mib: [] for mib in rounds}
    for _ in range(bench.options.repeat):
        turn = {mib: bench.child("resnet50", batch, **({"plan": plans[mib][0]} if mib else {})) for mib in rounds}
        for mib, result in turn.items():
            if result is not None and turn[0] is not None:
                rounds[mib].append(result)
                ratios[mib].append(step_s(result) / step_s(turn[0]))
    yield f"## ResNet50, 224 x 224, batch {batch}: a step over the budget of its tensors\n"
    yield f"write {bandwidth.write / 1e9:.2f} GB/s, read {bandwidth.read / 1e9:.2f} GB/s\n"
    yield "| budget MiB | simulated s | above start-up MiB | above between steps MiB | s/step | times as long | load |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for mib, results in rounds.items():
        if results:
            simulated = plans[mib][1]["time_after_ns"] if mib else next(iter(plans.values()))[1]["time_before_ns"]
            yield _curve_row(mib, simulated / 1e9, results, statistics.median(ratios[mib]))


def _curve_row(mib: int, simulated_s: float, results: list[dict[str, Any]], ratio: float) -> str:
    peak, between, load = (statistics.median(each[key] for each in results) for key in ("peak", "between", "load"))
    time_s = statistics.median(step_s(each) for each in results)
    cells = [str(mib or "none"), f"{simulated_s:.2f}", f"{peak / MIB:.0f}", f"{(peak - between) / MIB:.0f}"]
    return "| " + " | ".join([*cells, f"{time_s:.2f}", f"{ratio:.2f}", f"{load:.1f}"]) + " |"


def batches(bench: Bench) -> Iterator[str]:
    """Find the largest batch under the limit by bisection, without a plan and with that of least memory."""
    yield "## ResNet50, 224 x 224: the largest batch under RLIMIT_DATA (after start-up + 1.5 GiB)\n"
    graph, bandwidth = bench.recorded("resnet50", bench.options.batch)
    sizes = {}
    for with_plan in (False, True):
        fits, fails, size = 0, 0, 8 if not with_plan else 48
        while not fails or fails - fits > (1 if not with_plan else 4):
            task = {"plan": _scaled(bench, graph, bandwidth, size)} if with_plan else {}
            trained = bench.child("resnet50", size, cap=CAP, steps=2, **task) is not None
            fits, fails = (size, fails) if trained else (fits, size)
            size = (fits + fails) // 2 if fails else fits * 3 // 2
        sizes[with_plan] = fits
    yield f"without {sizes[False]}, with {sizes[True]}: {sizes[True] / max(sizes[False], 1):.1f} times\n"


def _scaled(bench: Bench, graph: Graph, bandwidth: TierBandwidth, batch: int) -> str:
    """Make the plan of least memory for another batch, from a graph that was recorded with one."""
    return bench.planned(resized(graph, bench.options.batch, batch), bandwidth, None, f"batch-{batch}")[0]


def resized(graph: Graph, old: int, new: int) -> Graph:
    """Return a graph as it is with another batch: first dimensions and times in proportion."""
    return Graph.of(
        replace(
            op,
            cost_ns=op.cost_ns * new // old,
            outputs=tuple(
                replace(out, shape=(new, *out.shape[1:])) if out.shape and out.shape[0] == old else out
                for out in op.outputs
            ),
        )
        for op in graph.ops.values()
    )


def peaks(bench: Bench) -> Iterator[str]:
    """Compare what is simulated with what the kernel counts, with a plan for half of what the step takes."""
    yield "## Simulated peak against measured peak\n"
    yield "| model | batch | plan | simulated MiB | measured MiB | ratio |"
    yield "|---|---:|---|---:|---:|---:|"
    for model in MODELS:
        graph, bandwidth = bench.recorded(model, BATCHES[model])
        for name, share in (("order", 1.0), ("half", 0.5)):
            most = bench.planned(graph, bandwidth, 1 << 50, f"{model}-peak")[1]["peak_before"]
            try:
                path, figures = bench.planned(graph, bandwidth, int(most * share), f"{model}-{name}")
            except MemoryBudgetError as error:
                path, figures = bench.planned(graph, bandwidth, error.nearest, f"{model}-{name}")
            result = bench.child(model, BATCHES[model], plan=path)
            if result is not None:
                measured = result["peak"] - result["between"]
                cells = [f"{figures['peak_after'] / MIB:.0f}", f"{measured / MIB:.0f}"]
                ratio = f"{measured / figures['peak_after']:.2f}"
                yield f"| {model} | {BATCHES[model]} | {name} | " + " | ".join([*cells, ratio]) + " |"


def main() -> None:
    """Run the parts that are asked for, print their tables."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--directory", default=".", help="where tensors go: on a disk")
    options.add_argument("--only", choices=PARTS, help="one part")
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--steps", type=int, default=4)
    options.add_argument("--repeat", type=int, default=3, help="rounds of the curve")
    options.add_argument("--budgets", type=int, nargs="+", default=BUDGETS, help="MiB for the step's tensors")
    options.add_argument("--json", metavar="FILE", help="write every measurement there too")
    chosen = options.parse_args()
    chosen.directory = os.path.abspath(chosen.directory)
    parts = {"curve": curve, "batch": batches, "peaks": peaks}
    with TemporaryDirectory(prefix="hpcckpt-bench-") as place:
        bench = Bench(chosen, Path(place))
        for name, part in parts.items():
            if chosen.only in (None, name):
                for line in part(bench):
                    print(line, flush=True)
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(bench.found), encoding="utf-8")


if __name__ == "__main__":
    main()
