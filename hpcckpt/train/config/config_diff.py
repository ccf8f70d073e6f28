"""Differences between the configuration of a run and the one to resume with, and which are allowed.

A run that resumes with another configuration is another run: the origin of the results in its directory would be
unclear. Options without influence on the results may differ: how often is saved, Large Model Support, how ranks train
together; the number of epochs of the current cycle; and everything in cycles that have not begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcckpt.train.config_errors import ConfigProblem, TrainConfigError, inside

ABSENT = object()
"""Placeholder for a key that one of two configurations does not have."""
_FREE = {"lms", "distributed"}
_FREE_OF_CHECKPOINT = {
    "async_save", "backend", "backend_options", "every_n_batches", "every_n_minutes", "keep_best", "max_to_keep",
    "monitor", "scratch", "scratch_bandwidth",
}  # fmt: skip
_EPOCHS = "num_epochs"
Document = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs.

    Attributes
    ----------
    keys : tuple
        Where, from the top: cycle, key, and on.
    before, after : object
        The values; `ABSENT` for none.
    """

    keys: tuple[str | int, ...]
    before: Any
    after: Any

    @property
    def where(self) -> str:
        """The place as messages name it."""
        place = ""
        for key in self.keys:
            place = inside(place, key)
        return place

    def __str__(self) -> str:
        return f"{self.where}: {_shown(self.before)} in the run, {_shown(self.after)} now"


def differences(before: Any, after: Any, keys: tuple[str | int, ...] = ()) -> Iterator[Difference]:
    """Yield what differs between two JSON documents. Pure."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from differences(before.get(key, ABSENT), after.get(key, ABSENT), (*keys, key))
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for number in range(max(len(before), len(after))):
            yield from differences(_item(before, number), _item(after, number), (*keys, number))
    elif (
        before is not after and (type(before), before) != (type(after), after) and not _are_equal_numbers(before, after)
    ):
        yield Difference(keys, before, after)


def _are_equal_numbers(before: Any, after: Any) -> bool:
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (before, after)]
    return all(numbers) and before == after


def _item(items: Sequence[Any], number: int) -> Any:
    return items[number] if number < len(items) else ABSENT


def check(before: Document, after: Document, n_begun: int, n_epochs_done: int, source: str = "") -> list[Difference]:
    """Return what differs and may.

    Parameters
    ----------
    before, after : list of dict
        The effective configurations.
    n_begun : int
        How many cycles have begun.
    n_epochs_done : int
        Epochs done in the last of these: its number of epochs may be changed, not below that.
    source : str
        Where the new one comes from.

    Raises
    ------
    TrainConfigError
        Naming everything that differs and may not.
    """
    found = list(differences(list(before), list(after)))
    wrong = [each for each in found if not _may_differ(each, n_begun, n_epochs_done)]
    if wrong:
        remedy = "resume with the run's own configuration (config.json in its directory), or choose another directory"
        texts = [(each.where, str(each).removeprefix(f"{each.where}: ")) for each in wrong]
        raise TrainConfigError.of([ConfigProblem(where, text, remedy) for where, text in texts], source)
    return found


def _may_differ(this: Difference, n_begun: int, n_epochs_done: int) -> bool:
    cycle, *keys = this.keys
    assert isinstance(cycle, int)
    if cycle >= n_begun:
        return True
    if keys and (keys[0] in _FREE or (keys[0] == "checkpoint" and keys[1:] and keys[1] in _FREE_OF_CHECKPOINT)):
        return True
    if cycle != n_begun - 1 or keys[:1] != ["train_loop"] or len(keys) != 3 or keys[2] != _EPOCHS:
        return False
    return isinstance(this.after, int) and this.after >= n_epochs_done


def _shown(value: Any) -> str:
    text = "nothing" if value is ABSENT else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
