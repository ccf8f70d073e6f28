"""Which rank trains on which samples, counted in samples, so that any number of ranks can resume within an epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from hpcckpt.collective.communicator import launched_rank, launched_size
from hpcckpt.errors import OptionError
from hpcckpt.preemption import ignore_job_signals

_log = logging.getLogger("hpcckpt")


class _WorkerInit(NamedTuple):
    """Prepares a worker of a data loader; can be sent to a process that is spawned."""

    program: Callable[[int], object] | None

    def __call__(self, worker_id: int) -> None:
        ignore_job_signals(worker_id)
        if self.program is not None:
            self.program(worker_id)


class BatchSampler(torch.utils.data.Sampler):  # type: ignore[misc]  # PyTorch may be absent where types are checked
    """Distributes the samples of each epoch over the ranks, in batches.

    The order of an epoch is shuffled by seed and epoch; iteration begins at the position of the sampler. `loader` makes
    a ``DataLoader`` of it, with any number of workers. Samples count as trained when `advance` is called, not when
    workers prefetch them.

    A step takes `batch_size` samples per rank from the epoch's order, rank after rank. A run that resumes on another
    number of ranks begins with the next sample, and sees none twice. The rest of an epoch that is too small for a step
    is dropped.

    Parameters
    ----------
    n_samples : int
        Samples in the data set.
    batch_size : int
        Samples per rank and step.
    rank, size : int, optional
        This rank and the number of ranks; by default those of the launcher.
    seed : int
        Seed of the orders of all epochs, from -2^43 to 2^44 - 1.
    shuffle : bool
        Whether the order is random.

    Raises
    ------
    OptionError
        If there is not enough data for one step, or a number is out of its range.

    Examples
    --------
    >>> sampler = hc.torch.BatchSampler(len(data), 32)
    >>> loader = sampler.loader(data)
    >>> hc.torch.restore(ckpt, model=model, optimizer=optimizer, data=sampler, must_exist=False)
    >>> while sampler.epoch < epochs:
    ...     for batch in loader:  # what is left of the epoch
    ...         train(batch)
    ...         sampler.advance()
    """

    def __init__(
        self,
        n_samples: int,
        batch_size: int,
        rank: int | None = None,
        size: int | None = None,
        *,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self._rank = launched_rank() or 0 if rank is None else rank
        self._size = launched_size() or 1 if size is None else size
        self.n_samples, self.batch_size, self._seed, self._shuffle = n_samples, batch_size, seed, shuffle
        self.epoch = self.samples = 0
        self._seeds = torch.Generator()
        self._check_options()
        if n_samples < self._per_step:
            raise OptionError(f"{n_samples} samples are not enough for one step of {self._per_step}")

    def _check_options(self) -> None:
        """Raise `OptionError` for numbers that make no order of samples, or not this rank's."""
        if self.batch_size < 1:
            raise OptionError(f"batch_size: {self.batch_size} – a positive number of samples")
        if not 0 <= self._rank < self._size:
            raise OptionError(f"rank: {self._rank} – from 0 to {self._size - 1}, below size={self._size}")
        if not -(1 << 43) <= self._seed < 1 << 44:  # with the number of an epoch it has to fit into 64 bits
            raise OptionError(f"seed: {self._seed} – from -2^43 to 2^44 - 1; pass seed % 2**44")

    @property
    def _per_step(self) -> int:
        return self.batch_size * self._size

    @property
    def step(self) -> int:
        """Steps done in all epochs, counted in steps of this number of ranks."""
        return self.epoch * (self.n_samples // self._per_step) + self.samples // self._per_step

    def loader(self, data: Any, **options: Any) -> Any:
        """Return a ``DataLoader`` that does not draw from the program's random stream.

        Its workers ignore signals to the whole job (see `hpcckpt.preemption.ignore_job_signals`).

        An ordinary loader draws from that stream whenever an iteration begins. A run that resumes within an epoch would
        draw once more than an uninterrupted run, and dropout would differ.

        Parameters
        ----------
        data : Dataset
            The data set.
        **options
            Further arguments of the ``DataLoader``: ``num_workers``, ``collate_fn``, …
        """
        if options.get("num_workers"):
            options["worker_init_fn"] = _WorkerInit(options.get("worker_init_fn"))
        return torch.utils.data.DataLoader(data, batch_sampler=self, generator=self._seeds, **options)

    def __len__(self) -> int:
        """Return how many steps are left of the epoch."""
        return (self.n_samples - self.samples) // self._per_step

    def __iter__(self) -> Iterator[list[int]]:
        """Return this rank's samples of each step that is left of the epoch."""
        self._seeds.manual_seed((self._seed << 20) + self.epoch)  # what the loader seeds its workers from
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        order = self._order()
        for start in range(self.samples, self.n_samples - self._per_step + 1, self._per_step):
            mine = start + self._rank * self.batch_size
            yield order[mine : mine + self.batch_size]

    def _order(self) -> list[int]:
        if not self._shuffle:
            return [*range(self.n_samples)]
        generator = torch.Generator().manual_seed((self._seed << 20) + self.epoch)
        order: list[int] = torch.randperm(self.n_samples, generator=generator).tolist()
        return order

    def advance(self, n_batches: int = 1) -> None:
        """Count steps that were trained. Independent."""
        self.samples += n_batches * self._per_step
        self._end_epoch()

    def _end_epoch(self) -> None:
        if self.n_samples - self.samples < self._per_step:
            self.epoch, self.samples = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the options of the order. Independent.

        Both are the same on all ranks.
        """
        return {"epoch": self.epoch, "samples": self.samples, **self._order_options()}

    def _order_options(self) -> dict[str, Any]:
        return {"n_samples": self.n_samples, "seed": self._seed, "shuffle": self._shuffle}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; warn if it is of another order. Independent.

        The position may be that of a run on another number of ranks.
        """
        self.epoch, self.samples = int(state["epoch"]), int(state["samples"])
        now = self._order_options()
        changed = [f"{key} {now[key]}, not {state[key]}" for key in now if state.get(key, now[key]) != now[key]]
        if changed and not self._rank:
            _log.warning(
                "hpcckpt: the position of a BatchSampler is that of another order of samples: this one has %s; until "
                "the epoch ends, samples may be seen twice or not at all", "; ".join(changed),
            )  # fmt: skip
        self._end_epoch()
