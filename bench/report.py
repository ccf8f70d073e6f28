"""Puts what the benchmarks found on one page, with a plot: ``python bench/report.py build/bench``.

Reads the JSON files of a directory, and writes ``report.md``, ``peers.svg`` and ``peers.png`` beside them.
``--write docs/benchmarks.md`` puts the tables between that page's marks too.
"""

from __future__ import annotations

import argparse
import json
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
    "planning",
    "scale",
    "syncs",
)
REFERENCE = "hpcckpt"


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


def draw(results: dict[str, dict[str, Any]], directory: Path) -> list[str]:
    """Draw the peers' times over ours; return the names of the files."""
    panels = [
        (data, what, f"{what}, {data['facts']['file_system']}")
        for data in results.values()
        if data["program"].startswith("peers")
        for what in (("blocks",) if data["program"] == "peers_async" else ("save", "load"))
    ]
    if not panels:
        return []
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    n_rows = (len(panels) + 1) // 2
    figure, grid = plt.subplots(n_rows, 2, figsize=(12, 3.6 * n_rows), squeeze=False)
    for axes, (data, what, title) in zip(grid.flat, panels, strict=False):
        ratios = sorted(medians(data, what).items(), key=lambda item: item[1], reverse=True)
        colours = ["C1" if n.startswith(REFERENCE) else "C7" if n.startswith("C:") else "C0" for n, _ in ratios]
        axes.barh([name for name, _ in ratios], [ratio for _, ratio in ratios], color=colours)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set(xscale="log", title=title, xlabel="times hpcckpt's")
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    figure.tight_layout()
    for ending in ("svg", "png"):
        figure.savefig(directory / f"peers.{ending}", dpi=110)
    return ["peers.svg", "peers.png"]


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
    plots = draw(results, args.directory)
    (args.directory / "report.md").write_text(f"# Benchmarks\n\n{text}", encoding="utf-8")
    print(f"{args.directory / 'report.md'}", *(f"{args.directory / name}" for name in plots), sep="\n")
    if args.write:
        write_between_marks(args.write, text)


main()
