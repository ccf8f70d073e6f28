"""What a benchmark says: a table for people, JSON for programs, a plot."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

from hpcckpt import native

Repetition = dict[str, Any]


def machine_facts(directory: str) -> dict[str, Any]:
    """Return what a figure means nothing without."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "file_system": file_system(directory),
        "implementation": native.IMPLEMENTATION,
    }


def file_system(directory: str) -> str:
    """Return the type of the file system that a directory lies on."""
    where, found = os.path.realpath(directory), ("", "unknown")
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, kind, *_ = line.split()
        if os.path.commonpath([mount, where]) == mount and len(mount) >= len(found[0]):
            found = (mount, kind)
    return found[1]


def is_steady(repetition: Repetition, drift: float) -> bool:
    """Say whether the machine was as fast after a repetition as before it."""
    before, after = repetition["memcpy"]
    return abs(after / before - 1.0) <= drift


def summarize(found: list[Repetition], facts: dict[str, Any], drift: float) -> dict[str, Any]:
    """Return medians and spreads of the steady repetitions; throughput is in bytes per second."""
    steady = [repetition for repetition in found if is_steady(repetition, drift)]
    variants = [name for name in found[0] if name not in {"load", "memcpy", "spans"}]
    summary: dict[str, Any] = {**facts, "repetitions": len(steady), "discarded": len(found) - len(steady)}
    if not steady:
        return summary
    summary["load"] = [min(r["load"] for r in found), max(r["load"] for r in found)]
    summary["memcpy"] = statistics.median(rate for r in steady for rate in r["memcpy"])
    for name in variants:
        rates = sorted(facts["nbytes"] / r[name] for r in steady)
        ratios = sorted(r["c"] / r[name] for r in steady)
        summary[name] = {"rate": _spread(rates), "of_c": _spread(ratios)}
    names = list(steady[0].get("spans", {}))
    summary["spans"] = {name: statistics.median(r["spans"].get(name, 0.0) for r in steady) for name in names}
    summary["runs"] = found
    return summary


def _spread(ordered: list[float]) -> dict[str, float]:
    return {"median": statistics.median(ordered), "least": ordered[0], "most": ordered[-1]}


def report(found: list[Repetition], facts: dict[str, Any], args: argparse.Namespace) -> None:
    """Print what was found, and draw it if that was asked for."""
    summary = summarize(found, facts, args.drift)
    if args.json:
        print(json.dumps(summary))
    else:
        _print_tables(summary)
    if args.plot:
        _draw(found, facts, args)


def _print_tables(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=100)
    facts = {k: v for k, v in summary.items() if k not in {"runs", "spans", "load"} and not isinstance(v, dict)}
    console.print(", ".join(f"{name} {_text(value)}" for name, value in facts.items()), highlight=False)
    if summary["file_system"] in {"tmpfs", "ramfs"}:
        console.print("this is memory, not a disk: choose another --directory")
    if not summary["repetitions"]:
        console.print("no repetition was steady: the machine is busy, try again")
        return
    console.print("load average {:.2f} to {:.2f}".format(*summary["load"]), highlight=False)
    table = Table("variant", "GB/s median", "least to most", "of C, median", "least to most")
    for name, row in summary.items():
        if isinstance(row, dict) and "rate" in row:
            rate, ratio = row["rate"], row["of_c"]
            table.add_row(
                name,
                f"{rate['median'] / 1e9:.2f}",
                f"{rate['least'] / 1e9:.2f} to {rate['most'] / 1e9:.2f}",
                f"{ratio['median']:.2f}",
                f"{ratio['least']:.2f} to {ratio['most']:.2f}",
            )
    console.print(table)
    spans = Table("up to phase", "ms, median")
    for name, seconds in summary.get("spans", {}).items():
        spans.add_row(name, f"{seconds * 1e3:.1f}")
    if summary.get("spans"):
        console.print(spans)


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _draw(found: list[Repetition], facts: dict[str, Any], args: argparse.Namespace) -> None:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    figure, axes = plt.subplots(figsize=(7, 4))
    for name in (name for name in found[0] if name not in {"load", "memcpy", "spans"}):
        axes.plot([facts["nbytes"] / r[name] / 1e9 for r in found], "o-", label=name)
    unsteady = [number for number, r in enumerate(found) if not is_steady(r, args.drift)]
    for number in unsteady:
        axes.axvspan(number - 0.4, number + 0.4, alpha=0.2, color="grey")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="repetition (grey: discarded)", ylabel="GB/s", ylim=(0, None), title=facts["file_system"])
    axes.legend()
    figure.savefig(args.plot, dpi=120, bbox_inches="tight")
