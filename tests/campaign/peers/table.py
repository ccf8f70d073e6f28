"""Lays the peers' outcomes out: ``python tests/campaign/peers/table.py build/campaign/part-peers-*.json``."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.campaign.peers.harness import OUTCOMES
from tests.campaign.peers.subjects import SUBJECTS

BEGIN, END = "<!-- kills: begin -->", "<!-- kills: end -->"


def counts_in(paths: list[Path]) -> Counter[str]:
    """Return how often there was what, over all parts."""
    found: Counter[str] = Counter()
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        for tally in document if isinstance(document, list) else document["campaigns"]:
            if tally["campaign"] == "peers":
                found.update(tally["kinds"])
    return found


def table_of(counts: Counter[str]) -> str:
    """Return the table as Markdown."""
    lines = ["| library | kills | " + " | ".join(OUTCOMES) + " |", "|---|---:|" + "---:|" * len(OUTCOMES)]
    for subject in SUBJECTS:
        row = [counts[f"{subject.title}: {outcome}"] for outcome in OUTCOMES]
        if sum(row):
            lines.append(f"| {subject.title} | {sum(row)} | " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("parts", nargs="+", type=Path, help="reports of parts of the campaign, or the whole one")
    options.add_argument("--write", type=Path, metavar="PAGE", help="put the table between this page's marks")
    args = options.parse_args()
    table = table_of(counts_in(args.parts))
    print(table, end="")
    if args.write:
        head, rest = args.write.read_text(encoding="utf-8").split(BEGIN)
        args.write.write_text(f"{head}{BEGIN}\n{table}{END}{rest.split(END)[1]}", encoding="utf-8")


main()
