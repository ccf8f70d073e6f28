"""The same kills for other libraries and for us: SIGKILL of a program while it saves, then a restart.

The first `KILLS` cases are those of the first subject, and so on.  What is counted, and why, is in docs/peers.md.
"""

from __future__ import annotations

from pathlib import Path

from tests.campaign._common import Campaign, Case, Outcome, Verdict
from tests.campaign.peers.harness import OUTCOMES, Server, Subject, judge, kill_in_a_save, resume
from tests.campaign.peers.subjects import KILLS, SUBJECTS

VERDICTS: dict[str, Verdict] = dict(zip(OUTCOMES, ("good", "lost", "lost", "wrong", "lost"), strict=True))


class Servers:
    """The server of the subject whose turn it is."""

    def __init__(self) -> None:
        self._subject: Subject | None = None
        self._server: Server | None = None

    def of(self, subject: Subject) -> Server:
        """Return the subject's; that of the one before it ends."""
        if self._server is None or subject != self._subject:
            if self._server is not None:
                self._server.close()
            self._subject, self._server = subject, Server(subject)
        return self._server


def prepare(scratch: Path) -> Servers:
    """Make the servers' keeper."""
    del scratch
    return Servers()


def run(case: Case) -> Outcome:
    """Kill one program, and see what the next one finds."""
    subject = SUBJECTS[case.number // KILLS]
    if not subject.python.exists():
        return Outcome("skipped", subject.title, f"no {subject.environment}")
    server: Server = case.prepared.of(subject)
    told = kill_in_a_save(server, case.scratch / "run", case.rng)
    found = resume(server, case.scratch / "run")
    outcome = judge(told, found)
    text = f"begun {told.begun}, reported saved {told.saved}; found {found}"
    return Outcome(VERDICTS[outcome], f"{subject.title}: {outcome}", text)


CAMPAIGN = Campaign(
    "peers",
    "what other libraries make of the same kills; hpcckpt resumes the newest step",
    full=KILLS * len(SUBJECTS),
    run=run,
    prepare=prepare,
    timeout_s=900.0,
    is_gate=False,
)
