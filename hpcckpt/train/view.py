"""Shows images of a data set with their labels: ``python -m hpcckpt.train.view CONFIG -o sheet.png``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcckpt.errors import HpcckptError, OptionError
from hpcckpt.train.datasets.contact_sheet import contact_sheet


def main(argv: Sequence[str] | None = None) -> int:
    """Write a contact sheet of a configuration's data; return the exit code."""
    parser = argparse.ArgumentParser(description="Draw images of a configuration's data set, with their labels.")
    parser.add_argument("config", metavar="CONFIG", help="JSON or Hjson, as for hpcckpt train")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", type=Path, help="the PNG to write")
    parser.add_argument("-n", "--images", type=int, default=32, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--columns", type=int, default=8, metavar="N", help="in a row (default: %(default)s)")
    parser.add_argument("--cycle", type=int, default=1, metavar="N", help="the cycle (default: %(default)s)")
    parser.add_argument("--valid", action="store_true", help="the images to validate with")
    parser.add_argument("--allow", action="append", default=[], metavar="ROOT", help="as for hpcckpt train")
    asked = parser.parse_args(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        n = contact_sheet(_configured(asked), asked.output, asked.images, columns=asked.columns)
    except HpcckptError as error:
        print(f"hpcckpt: error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{asked.output}: {n} images")
    return 0


def _configured(asked: argparse.Namespace) -> Any:
    """Return the dataset that a configuration names."""
    from hpcckpt.train.config.cycles import cycles
    from hpcckpt.train.names.allow_list import Catalogue

    catalogue = Catalogue(asked.allow)
    whole = cycles(asked.config, catalogue=catalogue)
    if not 1 <= asked.cycle <= len(whole):
        raise OptionError(f"--cycle {asked.cycle}: {asked.config} has {len(whole)} cycles, counted from 1")
    made = whole[asked.cycle - 1].datasets.build(catalogue)
    pair = tuple(made) if isinstance(made, tuple | list) else (made,)
    if asked.valid and len(pair) < 2:
        raise OptionError(f"--valid: {asked.config} has no images to validate with")
    return pair[1 if asked.valid else 0]


if __name__ == "__main__":
    sys.exit(main())
