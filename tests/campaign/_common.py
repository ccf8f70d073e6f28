"""What a fault campaign is: many cases of one promise, each from (campaign, seed, number) alone.

A campaign is a module ``tests/campaign/NAME.py`` whose name does not begin with ``_`` or ``test_``, and which has one
constant::

    def prepare(scratch: Path) -> Any: ...        # optional: once in each worker process; its result is case.prepared

    def run(case: Case) -> Outcome:               # one case; everything random in it comes from case.rng
        fault = case.rng.choice(FAULTS)
        ...                                       # works in case.scratch, an empty directory that goes afterwards
        return Outcome("detected", fault.name)

    CAMPAIGN = Campaign("NAME", "what is promised, in one line", full=10_000, run=run, prepare=prepare)

Cases run in worker processes, one after the other in each.  A case that takes longer than `timeout_s` is *hung*: its
worker and all processes that worker started (its session) are killed, and the next case gets a new worker.  A case that
raises, or ends its worker, is *wrong*.  What a case prints goes to the worker's log.

The ordinary suite runs a short form of each campaign, in ``test_NAME.py``::

    def test_short_form(short_form):
        short_form("NAME", count=300)             # fails if anything was lost, wrong or hung
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

HERE = Path(__file__).resolve().parent
DEFAULT_SEED = 1

Verdict = Literal["good", "detected", "lost", "wrong", "hung", "skipped"]
"""How a case ended.

``good``: the promise held, and there was nothing to detect.  ``detected``: the fault was noticed and reported as
promised.  ``lost``: something that was committed is gone.  ``wrong``: anything else that breaks the promise: other
values came back, an error of the wrong type, a false alarm, a crash.  ``hung``: it did not end in time.  ``skipped``:
it could not be run here; it does not count as run.
"""
VERDICTS: tuple[str, ...] = get_args(Verdict)
FAILURES = ("lost", "wrong", "hung")


@dataclass(frozen=True)
class Outcome:
    """How one case ended.

    Attributes
    ----------
    verdict : str
        See `Verdict`.
    what : str
        Kind of the case in a few words; the report counts how many there were of each.
    text : str
        What went wrong, for people; needed for a failure only.
    figures : dict of str to float
        Measurements of this case; the report gives their mean and maximum.
    """

    verdict: Verdict
    what: str = ""
    text: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One case: its number, its randomness, and a place to work.

    Attributes
    ----------
    scratch : Path
        A separate empty directory, removed after the case.
    prepared : Any
        What the campaign's `prepare` returned in this worker.
    """

    campaign: str
    seed: int
    number: int
    scratch: Path
    prepared: Any = None
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rng", random.Random(f"{self.campaign}/{self.seed}/{self.number}"))


@dataclass(frozen=True)
class Campaign:
    """What a campaign module declares.

    Attributes
    ----------
    name : str
        The module's name.
    promise : str
        One line: what holds in every case.
    full : int
        How many cases the campaign has in full.
    run : callable
        Runs one case.
    prepare : callable, optional
        Called once in each worker with a directory that lives as long as the worker.
    timeout_s : float
        After how long a case is hung (and, ten times as long, a preparation).
    jobs : int
        How many workers at once, unless the caller says otherwise.
    is_gate : bool
        Whether a failure fails the whole; false for programs of others that we measure.
    in_memory : bool
        Whether cases work in memory (/dev/shm), where there is any, unless the caller says otherwise.
    reason_to_skip : callable, optional
        Says why it cannot be run on this machine; "" if it can.
    """

    name: str
    promise: str
    full: int
    run: Callable[[Case], Outcome]
    prepare: Callable[[Path], Any] | None = None
    timeout_s: float = 240.0
    jobs: int = 1
    is_gate: bool = True
    in_memory: bool = False
    reason_to_skip: Callable[[], str] | None = None


def names() -> list[str]:
    """Return the names of all campaigns."""
    return sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith(("_", "test_", "conftest")))


def load(name: str) -> Campaign:
    """Import the campaign of this name."""
    if name not in names():
        raise SystemExit(f"no campaign {name!r}: one of {', '.join(names())}")
    return load_file(HERE / f"{name}.py")


def load_file(path: Path) -> Campaign:
    """Import a campaign; its module is ``campaign_NAME``, so that it hides no module of that name."""
    module_name = f"campaign_{path.stem}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    campaign: Campaign = sys.modules[module_name].CAMPAIGN
    assert campaign.name == path.stem, f"{path} declares campaign {campaign.name!r}"
    return campaign
