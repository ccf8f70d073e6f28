"""Coverage-guided fuzzing of the readers, with atheris; started by ``scripts/dev/fuzz.sh``.

    fuzz_readers.py manifest|step CORPUS [options of libFuzzer]

The bytes that the fuzzer makes up are not a checkpoint but the choices of our mutator, which changes a checkpoint's
description as a tree; every checksum is made to fit, so that what lies behind the checksums is reached.  A description
that breaks a promise is left as ``found-….json``; what was wrong with it becomes a test in ``test_found.py``.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import random
import shutil
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

ROOT = Path(__file__).resolve().parents[3]


def _import_plainly() -> None:
    """Let Python find hpcckpt where its sources are: what an editable install loads, atheris does not instrument."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__.lower()]
    sys.path.insert(0, str(ROOT))
    (library,) = Path(sysconfig.get_path("platlib"), "hpcckpt", "native").glob("_native.*.so")
    spec = importlib.util.spec_from_file_location("hpcckpt.native._native", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["hpcckpt.native._native"] = module


_import_plainly()
with atheris.instrument_imports(include=["hpcckpt"]):
    from hpcckpt.tools import inspect  # noqa: F401 - the verbs import it late
    from tests.support.fuzz import cases as fuzz_cases, readers as fuzz_readers

SCRATCH = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
VERB_EVERY = 16
MAX_STEPS = 12


class Choices(random.Random):
    """Random numbers that are the fuzzer's bytes, so that it learns which choices lead somewhere; zeros at the end."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self.data, self.position = data, 0

    @property
    def is_over(self) -> bool:
        """Whether all bytes are used."""
        return self.position >= len(self.data)

    def getrandbits(self, k: int) -> int:
        """Return an integer of `k` bits."""
        nbytes = -(-k // 8)
        taken = self.data[self.position : self.position + nbytes].ljust(nbytes, b"\0")
        self.position += nbytes
        return int.from_bytes(taken, "little") & ((1 << k) - 1)

    def random(self) -> float:
        """Return a number from 0 to 1."""
        return self.getrandbits(8) / 256


def described(data: bytes) -> dict[str, Any]:
    """Return the description that the fuzzer's bytes lead to."""
    choices = Choices(data)
    case = choices.choice(fuzz_cases.seeds())
    for _ in range(MAX_STEPS):
        if choices.is_over:
            break
        case = fuzz_cases.mutated(choices, case)
    return case


def manifest(data: bytes) -> None:
    """Read a text as a manifest, as it is and sealed; or the manifest that choices lead to."""
    text = data[1:]
    if data[:1] > b"\x80":
        text = fuzz_cases.manifest_text(described(text).get("manifest"))
    else:
        fuzz_readers.read_manifest(text)
    fuzz_readers.read_manifest(fuzz_cases.seal_manifest(text))


def step(data: bytes) -> None:
    """Read the step that choices lead to."""
    case = described(data)
    place = SCRATCH / "step"
    try:
        where = fuzz_readers.step_path(place, case)
        nbytes = fuzz_cases.build(case, where)
        rng = random.Random(zlib.crc32(data))
        fuzz_readers.read_step(where, nbytes, rng)
        if rng.randrange(VERB_EVERY) == 0:
            fuzz_readers.run_verb(where, rng.choice(fuzz_readers.VERBS))
    except Exception:
        Path(f"found-{zlib.crc32(data):08x}.json").write_bytes(fuzz_cases.encode(case))
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "manifest": (manifest, lambda: [b"\0" + fuzz_cases.manifest_text(case["manifest"]) for case in fuzz_cases.seeds()]),
    "step": (step, lambda: [bytes([number]) for number in range(5)]),
}


def main() -> None:
    """Fill an empty corpus with the seeds, and fuzz."""
    name, corpus, *options = sys.argv[1:]
    target, seeds = TARGETS[name]
    Path(corpus).mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        Path(corpus, f"seed-{number}").write_bytes(seed)
    atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
    atheris.Setup([sys.argv[0], corpus, *options], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
