"""Puts what the benchmarks found on one page, with a plot: ``python bench/report.py build/bench``.

Reads the JSON files of a directory, and writes ``report.md`` and ``peers.svg`` beside them.  ``--write
docs/benchmarks.md`` puts the tables between that page's marks too, and the plots into its directory ``images``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
ORDER = (
    "peers",
    "save",
    "restore",
    "incremental",
    "hdf5",
    "blocking",
    "stall",
    "overhead",
    "tiers",
    "planning",
    "scale",
    "syncs",
)
REFERENCE = "hpcckpt"
PANELS = {
    "peers": [(("durable", "save"), "save"), (("load",), "load")],
    "peers_async": [(("blocks",), "an asynchronous save blocks")],
}
LABELS = {"durable": "durable", "save": "as it is", "load": "", "blocks": ""}
COLORS = {REFERENCE: "tab:orange", "C": "grey"}
PLOTS = ("peers.svg", "scale.svg")
"""The second is written by ``scale.py``."""


def as_markdown(table: dict[str, Any]) -> str:
    """Return a table as Markdown."""
    lines = [f"### {table['title']}", "", "| " + " | ".join(table["columns"]) + " |"]
    lines += ["|---|" + "---:|" * (len(table["columns"]) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in table["rows"]]
    lines += ["", *(f"{note}  " for note in table["notes"])]
    return "\n".join(lines).rstrip() + "\n"


def read(directory: Path) -> dict[str, dict[str, Any]]:
    """Return what the benchmarks wrote, in the order of the page."""
    files = sorted(directory.glob("*.json"), key=lambda path: (_rank(path.stem), path.stem))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def _rank(name: str) -> int:
    return next((number for number, word in enumerate(ORDER) if name.startswith(word)), len(ORDER))


def medians(data: dict[str, Any], what: str) -> dict[str, float]:
    """Return for each variant the median of its seconds over hpcckpt's, in the same rounds."""
    found = {}
    for name, figures in data["figures"].items():
        pairs = zip(figures, data["figures"][REFERENCE], strict=True)
        ratios = [a[what] / b[what] for a, b in pairs if a and b and what in a and what in b]
        if ratios:
            found[name] = statistics.median(ratios)
    return found


def draw(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw the peers' times over ours: saves as they are and made durable, loads, how long asynchronous saves block."""
    panels = [
        (data, measured, f"{title}, {data['facts']['file_system']}")
        for data in sorted(results.values(), key=lambda data: data["program"])
        for measured, title in PANELS.get(data["program"], [])
    ]
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "hpcckpt", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    n_rows = (len(panels) + 1) // 2
    figure, grid = plt.subplots(n_rows, 2, figsize=(12, 3.8 * n_rows), squeeze=False, layout="constrained")
    for axes, (data, measured, title) in zip(grid.flat, panels, strict=False):
        bars(axes, {what: medians(data, what) for what in measured})
        axes.set_title(title)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def bars(axes: Any, ratios: dict[str, dict[str, float]]) -> None:
    """Draw ratios as bars from 1, hpcckpt's own, to the right where it is faster; a lighter one for a second figure."""
    first = next(iter(ratios.values()))
    names = sorted(first, key=lambda name: first[name], reverse=True)
    height = 0.8 / len(ratios)
    for number, (what, of) in enumerate(ratios.items()):
        for place, name in enumerate(names):
            ratio, y = of[name], place - number * height
            color = COLORS.get(name.partition(":")[0].partition(",")[0], "tab:blue")
            axes.barh(y, ratio - 1, height, left=1, color=color, alpha=1 - 0.6 * number)
            side, shift = ("left", 4) if ratio >= 1 else ("right", -4)
            text = f"{ratio:.2f} {LABELS[what]}".strip()
            at = {"xytext": (shift, 0), "textcoords": "offset points", "ha": side, "va": "center", "fontsize": 7}
            axes.annotate(text, (ratio, y), **at)
    axes.set_yticks([place - height * (len(ratios) - 1) / 2 for place in range(len(names))], names, fontsize=8)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="times hpcckpt's")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.6, high * 1.8)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")


def write_between_marks(path: Path, text: str) -> None:
    """Replace the text between the marks of a page."""
    page = path.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    path.write_text(f"{head}{BEGIN}\n{text}{END}{tail}", encoding="utf-8")


def main() -> None:
    """Run."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("directory", type=Path, help="where the JSON files are")
    options.add_argument("--write", type=Path, metavar="PAGE", help="put the tables between this page's marks")
    args = options.parse_args()
    results = read(args.directory)
    if not results:
        raise SystemExit(f"nothing was measured in {args.directory}")
    text = "\n".join(as_markdown(data["table"]) for data in results.values())
    if any(data["program"].startswith("peers") for data in results.values()):
        draw(results, args.directory / "peers.svg")
    (args.directory / "report.md").write_text(f"# Benchmarks\n\n{text}", encoding="utf-8")
    plots = [args.directory / name for name in PLOTS if (args.directory / name).exists()]
    print(args.directory / "report.md", *plots, sep="\n")
    if args.write:
        write_between_marks(args.write, text)
        for plot in plots:
            shutil.copyfile(plot, args.write.parent / "images" / f"benchmarks-{plot.name}")


main()
