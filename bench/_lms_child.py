"""One training in a process of its own, for `lms.py`: its step times and its peak of resident memory, as JSON.

Reads what to do from its first argument, writes what it found to stdout.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from _lms_models import build

from hpcckpt.lms import engine
from hpcckpt.lms.graph import Graph
from hpcckpt.lms.tiers import TierConfig


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Train as the task says."""
    engine.release_freed_memory()
    engine.load()
    engine.configure(TierConfig("file", directory=task["directory"]))
    model, data = build(task["model"], task["batch"])
    if task.get("cap"):
        data_bytes = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmData"))) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes + task["cap"],) * 2)
    found: dict[str, Any] = {}
    seen: list[Graph] = []
    engine.arm("train_function", lambda graph, _: seen.append(graph) or _planned(task, graph), stalls=False)
    import tensorflow as tf

    step = model.make_train_function()
    times, losses = [], []
    with engine.peak_resident() as peak:
        batches = iter(tf.data.Dataset.from_tensors(data).repeat())
        for _ in range(task["steps"]):
            began = time.perf_counter()
            losses.append(float(step(batches)["loss"]))
            times.append(time.perf_counter() - began)
    found |= {"start": peak.start, "peak": peak.nbytes, "times": times, "losses": losses}
    stats = engine.stats()
    found |= {"bytes_out": stats.bytes_out, "bytes_in": stats.bytes_in, "live": stats.live_handles}
    if task.get("record"):
        found |= _record(task, seen[0], step, batches)
    found["load"] = os.getloadavg()[0]
    return found


def _planned(task: dict[str, Any], _: Graph) -> Any:
    return pickle.loads(Path(task["plan"]).read_bytes()) if task.get("plan") else None  # noqa: S301 (our own)


def _record(task: dict[str, Any], graph: Graph, step: Any, batches: Any) -> dict[str, Any]:
    """Write down the graph with the times of its ops, the order they ran in, and the tier's bandwidth."""
    with engine.op_times() as recorded:
        step(batches)
        step(batches)
    known = {name: recorded[name] for name in graph.ops if name in recorded}
    ops = (replace(op, cost_ns=known[name].mean_ns if name in known else 0) for name, op in graph.ops.items())
    Path(task["record"]).write_text(Graph.of(ops).to_json(), encoding="utf-8")
    order = sorted(known, key=lambda name: known[name].first_ns)
    return {"order": order, "bandwidth": engine.bandwidth()}


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
