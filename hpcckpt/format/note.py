"""Facts that other formats have no place for, as a small JSON note that their readers ignore.

A note names the step that a file was written from and what each tensor was, and contains the objects and metrics of
the checkpoint.  Its place depends on the format; a file without a note is read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

from hpcckpt.core.tensors import KINDS, TensorSpec
from hpcckpt.format.layout import MAX_STEP
from hpcckpt.format.manifest import Manifest

ARCHITECTURE = "architecture"
KEY = "hpcckpt"
"""What the note is called where it needs a name."""


class _Described(Protocol):
    """An array of a checkpoint: its name in the file, and its tensor."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> TensorSpec: ...


@dataclass(frozen=True, slots=True)
class Note:
    """What our own files of foreign formats say of themselves.

    Attributes
    ----------
    kinds : dict of str to str
        Names of tensors that are not replicated, and what they are.
    dtypes : dict of str to str
        Dtypes of tensors that were written in a wider one.
    objects : dict or None
        The objects of the checkpoint; ``None`` if there was no room for them.
    """

    step: int
    save_id: str = ""
    ranks: int = 1
    kinds: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    objects: Mapping[str, Any] | None = field(default_factory=dict)


def note_of(manifest: Manifest, wanted: Iterable[_Described], widened: Iterable[_Described] = ()) -> Note:
    """Return the note of a file with these arrays of a checkpoint. Pure."""
    kinds = {source.spec.name: source.spec.kind for source in wanted if source.spec.kind != "replicated"}
    dtypes = {source.name: source.spec.dtype for source in widened}
    return Note(manifest.step, manifest.save_id, manifest.n_ranks, kinds, dtypes, manifest.metrics, manifest.objects)


def encode(note: Note, limit: int | None = None) -> str:
    """Return a note as JSON, in ASCII. Pure.

    Where `limit` asks it goes without what can be spared: the architecture, all objects, all but the step.
    """
    small = {
        place: {name: value for name, value in values.items() if name.rpartition("/")[2] != ARCHITECTURE}
        for place, values in (note.objects or {}).items()
    }
    bare = Note(note.step, note.save_id, note.ranks, objects=None)
    text = ""
    for candidate in (note, replace(note, objects=small), replace(note, objects=None), bare):
        text = json.dumps(asdict(candidate), separators=(",", ":"))
        if limit is None or len(text) <= limit:
            break
    return text


def decode(text: str | bytes) -> Note | None:
    """Return a note, or None if the text is not a valid one: it is not trusted. Pure."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return from_json(found)


def from_json(found: Any) -> Note | None:
    """Return the note that a JSON value is, or ``None``. Pure."""
    known = {each.name for each in fields(Note)}
    if not isinstance(found, dict) or not {"step", "save_id"} <= found.keys() <= known:
        return None
    note = Note(**found)
    kinds, objects = note.kinds, note.objects
    is_sound = (
        _is_count(note.step, MAX_STEP)
        and _is_count(note.ranks, 1 << 32)
        and all(isinstance(each, dict) for each in (kinds, note.dtypes, note.metrics))
        and (objects is None or (isinstance(objects, dict) and all(isinstance(o, dict) for o in objects.values())))
        and all(kind in KINDS for kind in kinds.values())
        and all(isinstance(value, int | float) for value in note.metrics.values())
    )
    return note if is_sound else None


def _is_count(value: Any, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit
