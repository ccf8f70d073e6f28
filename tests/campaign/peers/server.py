"""Starts programs that train and save, each in a fresh process that has its library imported already.

    python server.py LIBRARY

Reads lines of JSON, ``{"do": "train" or "resume", "directory": ...}``, and answers with lines of JSON:

- ``{"pid": N}``: the process that does it;
- ``{"begin": STEP}`` and ``{"saved": STEP}`` as it trains: the library's call begins, and has reported success;
- ``{"found": {...}}`` from one that resumes: the ``position`` from which training goes on and the step whose ``state``
  it has (null: no step's), or the ``error`` that it ended with, or nothing if there was nothing;
- ``{"broken": ...}``: the program is at fault, not the library;
- ``{"ended": STATUS}``.

The processes are forked from one that has imported the library and done nothing with it: importing TensorFlow takes
longer than a hundred saves.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.campaign.peers.states import STEPS, first_state, position_of


def say(**document: Any) -> None:
    """Write one line at once: a killed process must not take with it what it had to say."""
    os.write(1, (json.dumps(document) + "\n").encode())


def resume(library: Any) -> None:
    """Load as a restarted program does, and say what came of it."""
    try:
        found = library.resume(first_state())
    except BaseException as error:  # noqa: BLE001 - PyTorch's CheckpointException is no Exception
        say(found={"error": f"{type(error).__name__}: {str(error).strip()[-300:]}"})
        return
    if found is None:
        say(found={})
        return
    position, state = found
    say(found={"position": int(position), "state": position_of(state)})


def train(library: Any) -> None:
    """Train and save until killed."""
    library.train(first_state(), STEPS, lambda step: say(begin=step), lambda step: say(saved=step))


def main(name: str) -> None:
    """Serve."""
    module, _, variant = name.partition(":")
    make = importlib.import_module(f"tests.campaign.peers.library_{module}").make
    say(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                library = make(Path(request["directory"]), variant)
                {"train": train, "resume": resume}[request["do"]](library)
            except BaseException:  # noqa: BLE001 - the harness must hear of it, however it came
                say(broken=traceback.format_exc()[-3000:])
            finally:
                os._exit(0)
        say(pid=child)
        _, status = os.waitpid(child, 0)
        say(ended=status)


if __name__ == "__main__":
    main(sys.argv[1])
