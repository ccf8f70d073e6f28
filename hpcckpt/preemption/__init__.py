"""Preemption and walltime: save and stop in time, on all ranks at the same step, whatever the scheduler.

    guard = hpcckpt.preemption.watch(ckpt)
    for step in range(first, last):
        train_one_batch()
        if guard.should_stop(step):
            guard.save_and_exit(state)      # exit code 75: checkpointed, please requeue
    guard.close()

Three things ask a job to stop: a signal to any of its ranks, the end of its walltime, and a file ``HALT`` in the run
directory.  The same guard advises when to save (``every_n_minutes``).
"""

from __future__ import annotations

from hpcckpt.preemption.decision import EXIT_CODE, Advice, Preempted
from hpcckpt.preemption.guard import Guard, catch_signals, watch
from hpcckpt.preemption.halt import Halt, parse_halt, read_halt, write_halt
from hpcckpt.preemption.signals import ignore_job_signals

__all__ = [
    "EXIT_CODE",
    "Advice",
    "Guard",
    "Halt",
    "Preempted",
    "catch_signals",
    "ignore_job_signals",
    "parse_halt",
    "read_halt",
    "watch",
    "write_halt",
]
