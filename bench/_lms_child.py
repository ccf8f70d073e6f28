"""One training in a separate process, for `lms.py`: its step times and its peak of resident memory, as JSON.

Reads what to do from its first argument, writes what it found to stdout.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")  # oneDNN's pool keeps what is freed

from _lms_models import build

from hpcckpt.lms.graph.graph import Graph
from hpcckpt.lms.planner.plan import Plan
from hpcckpt.lms.runtime import native_engine
from hpcckpt.lms.storage_tiers import TierConfig


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Train as the task says."""
    native_engine.release_freed_memory()
    native_engine.load()
    native_engine.configure(TierConfig("file", directory=task["directory"]))
    model, data = build(task["model"], task["batch"])
    if task.get("cap"):
        limit = _status("VmData") + task["cap"]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    seen: list[Graph] = []
    native_engine.arm("train_function", lambda graph, _: seen.append(graph) or _planned(task), stalls=False)
    with native_engine.peak_resident() as peak:
        step, batches, times, losses = _train(model, data, task["steps"])
    found = {"start": peak.start, "peak": peak.nbytes, "between": _status("VmRSS") - peak.start}
    stats = native_engine.stats()
    found |= {"bytes_out": stats.bytes_out, "bytes_in": stats.bytes_in, "live": stats.live_handles}
    if task.get("record"):
        found |= _record(Path(task["record"]), seen[0], step, batches)
    return {**found, "times": times, "losses": losses, "load": os.getloadavg()[0]}


def _planned(task: dict[str, Any]) -> Any:
    return Plan.from_json(Path(task["plan"]).read_text(encoding="utf-8")) if task.get("plan") else None


def _train(model: Any, data: Any, n_steps: int) -> tuple[Any, Any, list[float], list[float]]:
    import tensorflow as tf

    step = model.make_train_function()
    batches = iter(tf.data.Dataset.from_tensors(data).repeat())
    times, losses = [], []
    for _ in range(n_steps):
        began = time.perf_counter()
        losses.append(float(step(batches)["loss"]))
        times.append(time.perf_counter() - began)
    return step, batches, times, losses


def _record(path: Path, graph: Graph, step: Any, batches: Any) -> dict[str, Any]:
    """Write down the graph with the times of its ops; return the tier's bandwidth."""
    with native_engine.op_times() as recorded:
        step(batches)
        step(batches)
    ops = (replace(op, cost_ns=recorded[name].mean_ns if name in recorded else 0) for name, op in graph.ops.items())
    path.write_text(Graph.of(ops).to_json(), encoding="utf-8")
    write, read = native_engine.bandwidth()
    return {"write": write, "read": read}


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
