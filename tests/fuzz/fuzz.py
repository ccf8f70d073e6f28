"""Coverage-guided fuzzing of the readers, with atheris; started by ``scripts/dev/fuzz.sh``.

    fuzz.py manifest|step CORPUS [options of libFuzzer]

The mutator changes a checkpoint's description as a tree, and every checksum is made to fit, so that what lies behind the
checksums is reached.  A description that breaks a promise is left as ``crash-…``: it belongs into ``found/``, where the
suite reads it for ever after.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parent))

with atheris.instrument_imports(include=["hpcckpt"], enable_loader_override=False):
    import _cases
    import _readers

    from hpcckpt import inspecting  # noqa: F401 - the verbs import it late

SCRATCH = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
PROFILE_EVERY = 16


def manifest(data: bytes) -> None:
    """Read any text as a manifest, as it is and sealed."""
    _readers.read_manifest(data)
    _readers.read_manifest(_cases.seal_manifest(data))


def step(data: bytes) -> None:
    """Read the step that a description describes."""
    case = _cases.decode(data)
    if case is None:
        return
    place = SCRATCH / "step"
    try:
        where = _readers.step_path(place, case)
        nbytes = _cases.build(case, where)
        rng = random.Random(zlib.crc32(data))
        _readers.read_step(where, nbytes, rng)
        if rng.randrange(PROFILE_EVERY) == 0:
            _readers.run_verb(where, rng.choice(_readers.VERBS))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def mutate_step(data: bytes, max_size: int, seed: int) -> bytes:
    """Return a description with a few changes."""
    case = _cases.decode(data) or random.Random(seed).choice(_cases.seeds())
    fresh = _cases.encode(_cases.mutated(random.Random(seed), case))
    return fresh if 0 < len(fresh) <= max_size else data


def mutate_manifest(data: bytes, max_size: int, seed: int) -> bytes:
    """Return a manifest's text with a few changes: of the tree if it is one, and now and then of its bytes."""
    rng = random.Random(seed)
    document = _cases.decode(data)
    if document is None or rng.random() < 0.3:
        return bytes(atheris.Mutate(data, max_size))
    fresh = _cases.manifest_text(_cases.mutated(rng, {"manifest": document})["manifest"])
    return fresh if len(fresh) <= max_size else data


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[bytes, int, int], bytes], Callable[[], list[bytes]]]] = {
    "manifest": (manifest, mutate_manifest, lambda: [_cases.manifest_text(case["manifest"]) for case in _cases.seeds()]),
    "step": (step, mutate_step, lambda: [_cases.encode(case) for case in _cases.seeds()]),
}


def main() -> None:
    """Fill an empty corpus with the seeds, and fuzz."""
    name, corpus, *options = sys.argv[1:]
    target, mutate, seeds = TARGETS[name]
    Path(corpus).mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        Path(corpus, f"seed-{number}").write_bytes(seed)
    atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
    atheris.Setup([sys.argv[0], corpus, *options], target, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
