"""How Lustre spreads the files of a directory, from ``lfs getstripe``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcckpt.core.mounts import Mount
from hpcckpt.core.units import nbytes_text
from hpcckpt.tools.doctor.finding import Finding
from hpcckpt.tools.doctor.probe import run

MANY = 8


@dataclass(frozen=True, slots=True)
class Stripe:
    """How many targets a file is spread over (-1: all), in what pieces, and whether that changes with its size."""

    count: int
    nbytes: int
    is_progressive: bool = False


def findings(directory: Path, mount: Mount) -> Iterator[Finding]:
    """Yield how files of a directory are striped; nothing where that is not known. Independent."""
    if mount.type != "lustre":
        return
    if shutil.which("lfs") is None:
        yield Finding("stripe", "note", "there is no lfs to ask here", "load your site's Lustre module")
        return
    stripe = parse(run(["lfs", "getstripe", "-d", str(directory)]).stdout)
    if stripe is not None:
        yield check_stripe(stripe)


def check_stripe(stripe: Stripe) -> Finding:
    """Check whether a layout suits checkpoints: many files of many ranks, or one large file of all. Pure."""
    if stripe.is_progressive:
        message = "progressive: spreads a file the more the larger it is, which suits both backends"
        return Finding("stripe", "ok", message)
    targets = "all targets" if stripe.count == -1 else f"{stripe.count} target{'s' if stripe.count != 1 else ''}"
    message = f"files lie on {targets}, in pieces of {nbytes_text(stripe.nbytes)}"
    if stripe.count == -1 or stripe.count > MANY:
        remedy = "one file per rank is fastest on one target each: lfs setstripe -c 1 DIRECTORY, before the first save"
        return Finding("stripe", "warning", f"{message}: opening many files takes long", remedy)
    if stripe.count == 1:
        remedy = f"for backend='hdf5', one file of all ranks: lfs setstripe -c {MANY} -S 16M DIRECTORY"
        return Finding("stripe", "ok", f"{message}, which suits one file per rank", remedy)
    return Finding("stripe", "ok", message)


def parse(text: str) -> Stripe | None:
    """Read what ``lfs getstripe -d`` prints, or ``None``. Pure."""
    counts = re.findall(r"stripe_count:\s*(-?\d{1,6})", text)
    sizes = re.findall(r"stripe_size:\s*(\d{1,15})", text)
    if not counts:
        return None
    is_progressive = len(counts) > 1 or re.search(r"lcm_entry_count:\s*([2-9]|\d\d)", text) is not None
    return Stripe(int(counts[0]), int(sizes[0]) if sizes else 0, is_progressive)
