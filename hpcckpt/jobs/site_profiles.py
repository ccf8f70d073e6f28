"""What is known of some machines: their nodes, their queues, and what a job must ask for there.

ALCF, https://docs.alcf.anl.gov, pages "Running Jobs" of Polaris and of Aurora, as of October 2025; of Theta, as of its
end in December 2023.  Limits of queues change: what does not fit them is a warning, never an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hpcckpt.core.durations import duration_text


class Queue(NamedTuple):
    """A queue, and the jobs that it takes."""

    name: str
    min_nodes: int
    max_nodes: int
    max_s: int
    note: str = ""

    def refusal(self, n_nodes: int, seconds: float) -> str:
        """Return why a job does not fit; "" if it does."""
        if not self.min_nodes <= n_nodes <= self.max_nodes:
            return f"takes {self.min_nodes} to {self.max_nodes} nodes, not {n_nodes}"
        if seconds > self.max_s:
            return f"takes jobs of at most {duration_text(self.max_s)}, not {duration_text(seconds)}"
        return ""


@dataclass(frozen=True, slots=True)
class System:
    """A machine.

    Attributes
    ----------
    name, scheduler : str
        What it is called, and what it is spoken to by.
    gpus, cores, threads : int
        Of a node: what a rank may see as a GPU, and cores and hardware threads.
    queues : tuple of Queue
        The first one that a job fits is chosen if none is named.
    filesystems : str
        What a job must say that it uses.
    scratch : str
        The disk of a node.
    setup : tuple of str
        What loads Python and MPI, line by line.
    cpu_lists : tuple of pairs of int and str
        By ranks per node: which threads each of them gets, where a number of threads for each does not do.
    attrs : str
        The state that nodes are asked to be in.
    gpu_variable : str
        The variable that names for `hpcckpt.jobs.binding` the GPUs of ranks, in order: ``NAME=VALUE``.
    """

    name: str
    scheduler: str
    gpus: int
    cores: int
    threads: int
    queues: tuple[Queue, ...]
    filesystems: str = ""
    scratch: str = ""
    setup: tuple[str, ...] = ()
    cpu_lists: tuple[tuple[int, str], ...] = ()
    attrs: str = ""
    gpu_variable: str = ""

    def queue(self, name: str) -> Queue | None:
        """Return a queue by its name."""
        return next((queue for queue in self.queues if queue.name == name), None)

    def queue_for(self, n_nodes: int, seconds: float) -> Queue | None:
        """Return the first queue that a job fits."""
        return next((queue for queue in self.queues if not queue.refusal(n_nodes, seconds)), None)


_HOUR = 3600
_POLARIS = System(
    name="polaris",
    scheduler="pbs",
    gpus=4,
    cores=32,
    threads=64,
    queues=(
        Queue("debug", 1, 2, _HOUR),
        Queue("debug-scaling", 1, 10, _HOUR),
        Queue("prod", 10, 496, 24 * _HOUR),
        Queue("capacity", 1, 4, 168 * _HOUR),
        Queue(
            "preemptable", 1, 10, 72 * _HOUR, "a job there may be killed at any time, without warning, and runs again"
        ),
    ),
    filesystems="home:eagle",
    scratch="/local/scratch",
    setup=("module use /soft/modulefiles", "module load conda", "conda activate base"),
    gpu_variable="HPCCKPT_GPUS=3,2,1,0",  # the last GPU is nearest to the first cores
)
_AURORA = System(
    name="aurora",
    scheduler="pbs",
    gpus=12,  # tiles: with the module frameworks each of the six GPUs counts as two
    cores=104,
    threads=208,
    queues=(
        Queue("debug", 1, 2, _HOUR),
        Queue("debug-scaling", 2, 31, _HOUR),
        Queue("prod", 1, 7500, 24 * _HOUR),
    ),
    filesystems="home:flare",
    scratch="/tmp",
    setup=("module load frameworks",),
    cpu_lists=(  # cores 0 and 52 belong to the system; the ranks of a socket stay on it
        (12, "1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100"),
        (6, "1-16:17-32:33-48:53-68:69-84:85-100"),
    ),
    gpu_variable="ZE_AFFINITY_MASK=0,1,2,3,4,5,6,7,8,9,10,11",
)
_THETA = System(
    name="theta",
    scheduler="cobalt",
    gpus=0,
    cores=64,
    threads=256,
    queues=(
        Queue("debug-cache-quad", 1, 8, _HOUR),
        Queue("debug-flat-quad", 1, 8, _HOUR),
        Queue("default", 128, 4100, 24 * _HOUR),
    ),
    scratch="/local/scratch",
    setup=(
        "module swap PrgEnv-intel PrgEnv-gnu",
        "module load cce",
        "module load datascience/tensorflow-2.0",
    ),
    attrs="mcdram=cache:numa=quad",
)

SYSTEMS = {system.name: system for system in (_POLARIS, _AURORA, _THETA)}
"""By name."""
