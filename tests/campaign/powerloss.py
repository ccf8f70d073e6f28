"""Power goes at any moment of a job, and takes any of what was not synced: what was saved is there, whole.

A case is one state that a crash may leave (`powerloss/losses.py`), of one of the scenarios in turn; a case's number
gives the scenario, and which of its states.  All states of a scenario are different trees.
"""

from __future__ import annotations

from pathlib import Path

from tests.campaign._common import Campaign, Case, Outcome
from tests.campaign.powerloss.check import Checker
from tests.campaign.powerloss.losses import HARSH, Model, State, states
from tests.campaign.powerloss.recording import reason_to_skip, record
from tests.campaign.powerloss.scenarios import SCENARIOS

QUOTA = 800
"""Of how many states random ones are sought in each scenario, beside the systematic ones."""


class Plan:
    """The states of all scenarios, found when they are asked for."""

    def __init__(self) -> None:
        self._names = list(SCENARIOS)
        self._found: dict[tuple[str, int], list[State]] = {}
        self._checkers: dict[str, Checker] = {}

    def checker(self, name: str) -> Checker:
        """Return what checks the states of a scenario."""
        return self._checkers.setdefault(name, Checker(record(name)))

    def state(self, seed: int, number: int) -> tuple[str, State | None]:
        """Return a scenario and one of its states; ``None`` if it has no more."""
        turn, which = divmod(number, len(self._names))
        name = self._names[which]
        if (name, seed) not in self._found:
            model = Model(record(name).trace)
            self._found[name, seed] = states(model, QUOTA, f"{name}/{seed}")
        found = self._found[name, seed]
        return name, found[turn] if turn < len(found) else None


def prepare(scratch: Path) -> Plan:
    """Return a plan that remembers what it has recorded."""
    return Plan()


def run(case: Case) -> Outcome:
    """Make one state, look at it, and go on from it."""
    name, state = case.prepared.state(case.seed, case.number)
    if state is None:
        return Outcome("skipped", f"{name}: no further state")
    what = name + (", beyond the model" if state.label in HARSH else "")
    problems = case.prepared.checker(name).problems(state, case.scratch)
    if not problems:
        return Outcome("good", what)
    moments = ", ".join(map(str, sorted(state.moments)[-3:]))
    text = f"{'; '.join(problems[:5])} ({state.label}, after operation {moments})"
    return Outcome("lost" if any(text.startswith("lost") for text in problems) else "wrong", what, text)


CAMPAIGN = Campaign(
    "powerloss",
    "Whatever a loss of power takes of what was not synced, every step whose save had returned is there, whole.",
    full=12_000,
    run=run,
    prepare=prepare,
    timeout_s=400.0,  # the first case of a scenario records it
    in_memory=True,
    reason_to_skip=reason_to_skip,
)
