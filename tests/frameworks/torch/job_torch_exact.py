"""The example, killed by SIGKILL after some step on one rank: ``job_torch_exact.py KILL_AT ARGUMENTS...``; 0 never."""

from __future__ import annotations

import os
import signal
import sys

from tests.support import examples

KILL_AT = int(sys.argv[1])


def main() -> None:
    """Run the example."""
    torch_resume = examples.load("torch_resume")

    def on_step(step: int) -> None:
        if step == KILL_AT and torch_resume.COMM.rank == torch_resume.COMM.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    torch_resume.main(sys.argv[2:], on_step)


if __name__ == "__main__":
    main()
