"""What all converters are as programs: ``python -m hpcckpt.train.datasets.mnist.raw_to_tfrecord DIRECTORY``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcckpt.collective.communicator import launched_rank
from hpcckpt.errors import HpcckptError
from hpcckpt.train.datasets.tfrecords.converting import N_SHARDS

Convert = Callable[[str, int], Path]


def arguments(name: str) -> argparse.ArgumentParser:
    """Return a parser of what every converter takes; a converter may add to it."""
    parser = argparse.ArgumentParser(description=f"Convert {name} to TFRecords; if they are there, check them.")
    parser.add_argument("directory", help="where to; it is made whole, or not at all")
    parser.add_argument("--shards", type=int, default=N_SHARDS, metavar="N", help="files (default: %(default)s)")
    return parser


def run(convert: Convert, parsed: argparse.Namespace) -> int:
    """Convert, say where to, and return the exit code. Collective."""
    speaks = not launched_rank()  # one for all
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        directory = convert(parsed.directory, parsed.shards)
    except HpcckptError as error:
        if speaks:
            print(f"hpcckpt: error: {error}", file=sys.stderr)
        return error.exit_code
    if speaks:
        print(directory)
    return 0


def main(name: str, convert: Convert, argv: Sequence[str] | None = None) -> int:
    """Be the program of a converter that takes nothing else."""
    return run(convert, arguments(name).parse_args(argv))
