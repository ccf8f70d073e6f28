"""What each rank reports about plugins that fail, throw, cannot be made, return short data, or are missing.

Writes, in the directory of its second argument, ``rank-N.json``: by case the name of the error's class, and its text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

import hpcckpt.tmci as tmci
from hpcckpt.collective.communicator import launched_rank
from hpcckpt.errors import HpcckptError


def said(call: Callable[[], Any]) -> list[str] | None:
    """Return what is raised; ``None`` if nothing is."""
    try:
        call()
    except HpcckptError as error:
        return [type(error).__name__, str(error)]
    return None


def main(library: str, directory: Path) -> None:
    """Try all cases."""
    rank = launched_rank()
    tmci.plugins.load(library)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    own = directory / f"files-{rank}"
    own.mkdir()
    store = {"backend": "posix", "config": f"directory={own}"}
    tmci.save_weights(model, **store)
    (stored,) = own.iterdir()
    whole = stored.read_bytes()
    stored.write_bytes(whole[:-4])
    cases = {
        "fails": lambda: tmci.save_weights(model, "faulty", "save=fail"),
        "throws": lambda: tmci.save_weights(model, "faulty", "save=throw"),
        "throws while loading": lambda: tmci.load_weights(model, "faulty", "load=throw"),
        "cannot be made": lambda: tmci.save_weights(model, "faulty", "create=throw"),
        "returns short data": lambda: tmci.load_weights(model, **store),
        "is missing": lambda: tmci.save_weights(model, "nobody"),
        "fails on rank 1": lambda: tmci.save_weights(model, "faulty", "save=fail,rank=1"),
    }
    told = {name: said(call) for name, call in cases.items()}
    (directory / f"rank-{rank}.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
