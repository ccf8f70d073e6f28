"""One state: make it on a disk in memory, look at it, and go on from it."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign.powerloss.disk import Disk, whole
from tests.campaign.powerloss.losses import State
from tests.campaign.powerloss.oracle import Promise, debris, go_on, judge, look, promise_after
from tests.campaign.powerloss.recording import Recording


@dataclass(slots=True)
class Checker:
    """Checks states of one recording.

    Parameters
    ----------
    recording : Recording
        What took place.
    """

    recording: Recording
    _promises: dict[int, Promise] = field(default_factory=dict)
    _usual: Counter[str] | None = None

    def promise(self, moment: int) -> Promise:
        """Return what had been promised after N operations."""
        n_marks = sum(op.kind == "mark" for op in self.recording.trace.ops[:moment])
        if n_marks not in self._promises:
            ops = self.recording.trace.ops[:moment]
            self._promises[n_marks] = promise_after(self.recording.earlier, ops)
        return self._promises[n_marks]

    def problems(self, state: State, scratch: Path) -> list[str]:
        """Return what is not as promised at any moment at which the crash may have come.

        Parameters
        ----------
        state : State
            One of the recording's.
        scratch : pathlib.Path
            Where to make it.
        """
        disk = Disk(self.recording.trace, state.choice)
        promises = [self.promise(moment) for moment in sorted(state.moments)]
        return self._checked(disk, promises, scratch, self._usual_debris(scratch))

    def _usual_debris(self, scratch: Path) -> Counter[str]:
        """Return what stays behind when a job goes on that did not crash: it is told apart from what a crash leaves."""
        if self._usual is None:
            ops = self.recording.trace.ops
            disk = Disk(self.recording.trace, whole(ops))
            self._checked(disk, [self.promise(len(ops))], scratch, None)
        assert self._usual is not None
        return self._usual

    def _checked(self, disk: Disk, promises: list[Promise], scratch: Path, usual: Counter[str] | None) -> list[str]:
        where = scratch / "disk"
        where.mkdir()
        try:
            disk.build(where)
            run = where / self.recording.run
            view = look(run, promises[-1].begun)
            found = {text for promise in promises for text in judge(view, promise)}
            found |= set(go_on(run, view, promises[-1]))
            if usual is None:
                self._usual = debris(run)
            else:
                found |= {f"wrong: {name} stays behind" for name in debris(run) - usual}
            return sorted(found)
        finally:
            shutil.rmtree(where)
