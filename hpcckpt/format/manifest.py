"""The manifest: the JSON document that makes a directory a checkpoint.

``docs/format.md`` is the normative description.  The document begins with its own CRC32C, computed
over the whole text with the eight digits of that field set to zero, so a reader needs no
canonical form of JSON to check it.  A manifest is untrusted input: :func:`decode` bounds its size,
checks the CRC first, and then reports every problem of its content at once.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcckpt.core.plan import FileRecord
from hpcckpt.core.tensors import KINDS, MAX_DIMS, MAX_NBYTES, TensorSpec, itemsize, name_problem
from hpcckpt.errors import FormatVersionError, ManifestError, Problem, StateError, list_problems
from hpcckpt.format.layout import MAX_STEP

FORMAT_VERSION = 1
MAX_MANIFEST_BYTES = 1 << 28
MAX_DEPTH = 200
_HEAD = re.compile(rb'\{\n "crc32c": "([0-9a-f]{8})"')
_CRC_AT = slice(14, 22)
_IDENTITY = re.compile(r"[0-9a-f]{8,64}")
_FILE_PATH = re.compile(r"data/[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")

Crc = Callable[[bytes], int]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds and where it comes from.

    Attributes
    ----------
    save_id, run_id : str
        Identity of this save, and of the lineage of saves it belongs to.
    parent : str or None
        `save_id` of the checkpoint that the run had saved or restored before.
    created : str
        UTC time, ISO 8601.
    backend_options : dict
        What the backend decided about how to write; small JSON values.
    level : str
        What a resume from it can promise: ``exact``, ``state`` or ``weights``.
    metrics : dict of str to float
        NaN and infinities allowed.
    objects : dict
        Small JSON values, the same for all ranks.
    """

    save_id: str
    run_id: str
    parent: str | None
    step: int
    n_ranks: int
    created: str
    backend: str
    block_bytes: int
    tensors: tuple[TensorSpec, ...]
    files: tuple[FileRecord, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    objects: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    level: str = "state"
    backend_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all data files."""
        return sum(file.nbytes for file in self.files)


# -- writing -------------------------------------------------------------------------------------


def encode(manifest: Manifest, crc: Crc) -> bytes:
    """Return the manifest as UTF-8 JSON text that carries its own CRC32C.

    Raises
    ------
    StateError
        If readers would refuse it: too large, or with something beside files and tensors that `validate` finds.
    """
    document = {
        "crc32c": "00000000",
        "format": FORMAT_VERSION,
        "save_id": manifest.save_id,
        "run_id": manifest.run_id,
        "parent": manifest.parent,
        "step": manifest.step,
        "ranks": manifest.n_ranks,
        "created": manifest.created,
        "backend": manifest.backend,
        **({"backend_options": manifest.backend_options} if manifest.backend_options else {}),
        "block_bytes": manifest.block_bytes,
        "level": manifest.level,
        "metrics": {name: _encode_float(value) for name, value in manifest.metrics.items()},
        "environment": manifest.environment,
        "objects": encode_objects(manifest.objects),
        "files": [encode_record(file) for file in manifest.files],
        "tensors": [_encode_tensor(spec) for spec in manifest.tensors],
    }
    problems = [*_scalar_problems(document)]  # a save has checked the tensors, and the files if the backend is a plugin
    if problems:
        raise StateError(f"the manifest of step {manifest.step}: {list_problems(problems)}; nothing was committed")
    lines = {key: _lines(value) for key, value in document.items()}
    text = "{{\n{}\n}}".format(",\n".join(f' "{key}": {line}' for key, line in lines.items())).encode()
    if len(text) > MAX_MANIFEST_BYTES:
        raise StateError(
            f"the manifest of step {manifest.step} would have {len(text)} bytes, and readers take at most "
            f"{MAX_MANIFEST_BYTES}: {_largest(document, lines)}; nothing was committed"
        )
    return text[: _CRC_AT.start] + b"%08x" % crc(text) + text[_CRC_AT.stop :]


_line = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode  # with indent it would not be the one in C


def _lines(value: Any) -> str:
    """Return JSON in one line; of a list, one line for each item."""
    if not isinstance(value, list) or not value:
        return _line(value)
    return "[\n  " + ",\n  ".join(map(_line, value)) + "\n ]"


def _largest(document: Mapping[str, Any], lines: Mapping[str, str]) -> str:
    """Return what of a manifest takes most bytes, and how to save it otherwise. Pure."""
    key = max(lines, key=lambda key: len(lines[key]))
    if key != "objects":
        return f"{key} take {len(lines[key])} characters of it: save fewer of them"
    sizes = {(place, name): len(_line(item)) for place, own in document[key].items() for name, item in own.items()}
    place, name = max(sizes, key=lambda at: sizes[at])
    return (
        f"{name!r} of {'the state' if place == 'state' else 'objects'} takes {sizes[place, name]} characters of it: "
        "save it as a NumPy array, as hpcckpt.PerRank(value), or in a separate file"
    )


def _encode_float(value: float) -> float | str:
    value = float(value)
    return value if math.isfinite(value) else str(value)


def encode_objects(value: Any) -> Any:
    """Return `value` with NaN and infinities replaced by ``{"$float": "nan"}``, which JSON can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, Mapping):
        return {_escaped(key) if len(value) == 1 else key: encode_objects(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode_objects(item) for item in value]
    return value


def _escaped(key: str) -> str:
    """Return a lone key that cannot be taken for our ``$float``: with one ``$`` more if it looks like that."""
    return f"${key}" if key.startswith("$") and key.lstrip("$") == "float" else key


def _unescaped(key: str) -> str:
    return key[1:] if key.startswith("$$") and key.lstrip("$") == "float" else key


def decode_objects(value: Any) -> Any:
    """Return what `encode_objects` was given."""
    if isinstance(value, dict):
        if value.keys() == {"$float"} and value["$float"] in ("nan", "inf", "-inf"):
            return float(value["$float"])
        return {_unescaped(key) if len(value) == 1 else key: decode_objects(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode_objects(item) for item in value]
    return value


def encode_record(file: FileRecord) -> dict[str, Any]:
    """Return the JSON object of a data file."""
    written_by = {"save_id": file.save_id} if file.save_id else {}
    return {"path": file.path, "bytes": file.nbytes, "header_crc32c": f"{file.header_crc:08x}", **written_by}


def decode_record(file: Mapping[str, Any]) -> FileRecord:
    """Return the data file of a valid JSON object."""
    return FileRecord(file["path"], file["bytes"], int(file["header_crc32c"], 16), file.get("save_id", ""))


def _encode_tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape), "kind": spec.kind}


# -- reading -------------------------------------------------------------------------------------


def decode(text: bytes, crc: Crc, where: str) -> Manifest:
    """Return the manifest that `text` holds.

    Parameters
    ----------
    text : bytes
        Content of the file.
    crc : callable
        CRC32C of bytes.
    where : str
        Path, for messages.

    Raises
    ------
    ManifestError
        If the text is damaged, or says what cannot be; names every problem.
    FormatVersionError
        If it is of a newer format.
    """
    if len(text) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"{where}: {len(text)} bytes are more than a manifest may have; use an older step")
    head = _HEAD.match(text)
    if head is None:
        raise ManifestError(f"{where}: not an hpcckpt manifest, or damaged; use an older step")
    zeroed = text[: _CRC_AT.start] + b"00000000" + text[_CRC_AT.stop :]
    if crc(zeroed) != int(head[1], 16):
        raise ManifestError(f"{where}: checksum mismatch, the manifest is damaged; use an older step")
    return _from_document(_parse(text, where), where)


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{where}: not valid JSON ({error}); use an older step") from None
    if not isinstance(document, dict):
        raise ManifestError(f"{where}: not a JSON object; use an older step")
    return document


def _from_document(document: dict[str, Any], where: str) -> Manifest:
    version = document.get("format")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise FormatVersionError(
            f"{where}: format {version} is newer than {FORMAT_VERSION}; upgrade hpcckpt to read it"
        )
    problems = validate(document)
    if problems:
        raise ManifestError(f"{where}: {list_problems(problems)}; use an older step")
    return Manifest(
        save_id=document["save_id"],
        run_id=document["run_id"],
        parent=document["parent"],
        step=document["step"],
        n_ranks=document["ranks"],
        created=document["created"],
        backend=document["backend"],
        block_bytes=document["block_bytes"],
        backend_options=document.get("backend_options", {}),
        level=document["level"],
        metrics={name: float(value) for name, value in document["metrics"].items()},
        environment=document["environment"],
        objects=decode_objects(document["objects"]),
        files=tuple(map(decode_record, document["files"])),
        tensors=tuple(TensorSpec(t["name"], t["dtype"], tuple(t["shape"]), t["kind"]) for t in document["tensors"]),
    )


def _is_count(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, float) or _is_count(value, -(1 << 1000), 1 << 1000)
    return is_number or value in ("nan", "inf", "-inf")


def validate(document: Mapping[str, Any]) -> list[Problem]:
    """Return every problem of a parsed manifest; pure, and safe on any JSON object."""
    return [
        *_scalar_problems(document),
        *_list_problems(document, "files", _file_problem),
        *_list_problems(document, "tensors", _tensor_problem),
    ]


def problems_of_files(files: Sequence[FileRecord], backend_options: Mapping[str, Any]) -> list[Problem]:
    """Return what readers would refuse of what a backend reports for a manifest; pure."""
    document = {"files": [encode_record(file) for file in files], "backend_options": backend_options}
    options = (
        []
        if _is_table(backend_options) and _is_shallow(backend_options)
        else [Problem("backend_options", f"must be an object, nested at most {MAX_DEPTH} deep")]
    )
    return [*_list_problems(document, "files", _file_problem), *options]


def _scalar_problems(document: Mapping[str, Any]) -> Iterator[Problem]:
    get = document.get
    rules = [
        ("format", _is_count(get("format"), 1, FORMAT_VERSION), f"must be 1 to {FORMAT_VERSION}"),
        ("save_id", _is_identity(get("save_id")), "must be 8 to 64 hexadecimal digits"),
        ("run_id", _is_identity(get("run_id")), "must be 8 to 64 hexadecimal digits"),
        ("parent", get("parent", "") is None or _is_identity(get("parent")), "must be null or hexadecimal digits"),
        ("step", _is_count(get("step"), 0, MAX_STEP), "must be a step number"),
        ("ranks", _is_count(get("ranks"), 1, 1 << 31), "must be a positive number"),
        ("created", isinstance(get("created"), str), "must be a time"),
        ("backend", isinstance(get("backend"), str), "must be a backend's name"),
        ("backend_options", _is_table(get("backend_options", {})), "must be an object"),
        ("backend_options", _is_shallow(get("backend_options")), f"nested deeper than {MAX_DEPTH}"),
        ("block_bytes", _is_count(get("block_bytes"), 1, 1 << 30), "must be 1 to 2**30"),
        ("level", get("level") in ("exact", "state", "weights"), "must be one of exact, state, weights"),
        ("objects", _is_table(get("objects"), _is_table), "must be an object of objects"),
        ("objects", _is_shallow(get("objects")), f"nested deeper than {MAX_DEPTH}"),
        ("environment", _is_shallow(get("environment")), f"nested deeper than {MAX_DEPTH}"),
        ("environment", _is_table(get("environment")), "must be an object"),
        ("metrics", _is_table(get("metrics"), _is_number), "must map names to numbers"),
    ]
    return (Problem(name, message) for name, is_met, message in rules if not is_met)


def _is_table(value: Any, is_fitting: Callable[[Any], bool] = lambda _: True) -> bool:
    return isinstance(value, dict) and all(map(is_fitting, value.values()))


def _is_shallow(value: Any) -> bool:
    """Return True if JSON is not nested too deeply for recursive functions."""
    layer = [value]
    for _ in range(MAX_DEPTH):
        nested = (item.values() if isinstance(item, dict) else item for item in layer if isinstance(item, dict | list))
        layer = [inner for items in nested for inner in items]
        if not layer:
            return True
    return False


def _is_identity(value: Any) -> bool:
    return isinstance(value, str) and _IDENTITY.fullmatch(value) is not None


def _list_problems(
    document: Mapping[str, Any], key: str, problem_of: Callable[[Any, set[str]], str | None]
) -> Iterator[Problem]:
    """Yield what is wrong with a list, each entry of which has a name that no other may have. Pure."""
    entries = document.get(key)
    if not isinstance(entries, list):
        yield Problem(key, "must be a list")
        return
    seen: set[str] = set()
    for number, entry in enumerate(entries):
        message = problem_of(entry, seen)
        if message:
            yield Problem(f"{key}[{number}]", message)


def _file_problem(file: Any, seen: set[str]) -> str | None:
    if not isinstance(file, dict):
        return "must be an object"
    path, crc = file.get("path"), file.get("header_crc32c")
    if not isinstance(path, str) or _FILE_PATH.fullmatch(path) is None:
        return f"path {path!r} is not a plain name under data/"
    if path in seen:
        return f"path {path!r} appears twice"
    seen.add(path)
    if not _is_count(file.get("bytes"), 0, MAX_NBYTES):
        return "bytes must be a size"
    if not isinstance(crc, str) or re.fullmatch("[0-9a-f]{8}", crc) is None:
        return "header_crc32c must be eight hexadecimal digits"
    if not _is_identity(file.get("save_id", "0" * 8)):
        return "save_id must be 8 to 64 hexadecimal digits"
    return None


def _tensor_problem(tensor: Any, seen: set[str]) -> str | None:
    if not isinstance(tensor, dict):
        return "must be an object"
    name, dtype, shape = tensor.get("name"), tensor.get("dtype"), tensor.get("shape")
    if not isinstance(name, str):
        return "name must be a string"
    problem = name_problem(name)
    if problem:
        return f"name {name!r} {problem}"
    if name in seen:
        return f"name {name!r} appears twice"
    seen.add(name)
    if tensor.get("kind") not in KINDS:
        return f"{name!r}: kind must be one of {', '.join(KINDS)}"
    return shape_problem(dtype, shape)


def shape_problem(dtype: Any, shape: Any) -> str | None:
    """Say what is wrong with a dtype token and a shape from an untrusted file, or ``None``."""
    try:
        width = itemsize(dtype)
    except (ValueError, TypeError):
        return f"unknown dtype {dtype!r}"
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not _are_sizes(shape):
        return f"shape {str(shape)[:80]} is not a list of at most {MAX_DIMS} sizes"
    if math.prod([n or 1 for n in shape]) * max(width, 1) > MAX_NBYTES:  # NumPy counts so too where one side is 0
        return f"shape {str(shape)[:80]} of {dtype} is larger than any file"
    return None


def _are_sizes(values: list[Any]) -> bool:
    for value in values:  # noqa: SIM110 - not all(...), for every shape of every file passes here
        if type(value) is not int or not 0 <= value <= MAX_NBYTES:
            return False
    return True
