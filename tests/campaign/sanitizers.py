"""The native parts under AddressSanitizer with UBSan, and under ThreadSanitizer: no byte too far, no race, no leak.

A case is one run of a program, with its own seed: the core, the parts of LMS that need no TensorFlow, the swap engine
of LMS with TensorFlow's tensors; or tests of the TensorFlow ops, built with AddressSanitizer, whose library is
preloaded into Python.  Programs are compiled when a worker needs them first.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcckpt import native
from tests.campaign._common import HERE, Campaign, Case, Outcome

SOURCES = Path(native.__file__).resolve().parent
ADDRESS, THREAD = "address,undefined", "thread"
CHECKSUMS = "crc32c crc32c_arm crc32c_x86"
PROGRAMS = {
    "core": (
        HERE / "_stress_core.cpp",
        "src",
        f"blockio bounce_buffer child_signal copying copying_x86 {CHECKSUMS} file nonfinite prefault workers",
        False,
    ),
    "parts": (HERE.parent / "frameworks/lms/native/parts.cpp", "lms_src", "pool io_queue extents file_store", False),
    "swap_engine": (
        HERE / "_stress_swap_engine.cpp",
        "lms_src",
        "swap_engine io_queue swapped_tensor tier_space extents pool file_store figures",
        True,
    ),
}
KINDS = [(name, sanitizer) for name in PROGRAMS for sanitizer in (ADDRESS, THREAD)]
OPS_EVERY = 50
"""One case in this many runs the tests of the ops."""
OPS_TESTS = (
    "tests/frameworks/lms/test_tiers.py",
    "tests/unit/native/test_tf_ops.py",
    "tests/frameworks/tmci/test_calls.py",
)
# The last reference to a buffer is counted by code of TensorFlow, which is not instrumented.
SUPPRESSED = "race:hpcckpt::lms::MappedBuffer::~MappedBuffer\n"


class Builder:
    """Compiles what cases need, once in a worker."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.suppressions = scratch / "suppressions"
        self.suppressions.write_text(SUPPRESSED, encoding="ascii")

    @functools.cache  # noqa: B019 - it lives as long as its worker
    def program(self, name: str, sanitizer: str) -> Path:
        """Return a program, compiled with a sanitizer."""
        main, folder, parts, needs_tensorflow = PROGRAMS[name]
        made = self.scratch / f"{name}-{sanitizer}"
        files = [str(found) for part in parts.split() for found in (SOURCES / folder).glob(f"{part}.c*")]
        before, after = _tensorflow_flags() if needs_tensorflow else ([], [])
        flags = ["-std=c++17", "-g", "-O1", "-fno-omit-frame-pointer", "-D_FILE_OFFSET_BITS=64", "-pthread"]
        sanitize = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
        command = ["c++", *flags, *sanitize, f"-I{SOURCES / folder}", *before, str(main), *files, "-o", str(made)]
        subprocess.run([*command, "-ldl", *after], check=True)
        return made

    @functools.cache  # noqa: B019
    def ops(self) -> dict[str, str]:
        """Build the ops with AddressSanitizer; return the environment in which Python loads them."""
        place = self.scratch / "ops"
        place.mkdir()
        environment = {
            **os.environ,
            "HPCCKPT_TF_OPS_DIR": str(place),
            "CXX": f"c++ -fsanitize={ADDRESS} -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1",
            "LD_PRELOAD": " ".join(map(_library, ("libasan.so", "libubsan.so"))),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python's own are many
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        subprocess.run([sys.executable, "-m", "hpcckpt.native.build"], env=environment, check=True)
        return environment


def _library(name: str) -> str:
    found = subprocess.run(["c++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _tensorflow_flags() -> tuple[list[str], list[str]]:
    from hpcckpt.native import tfinfo

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's own
        info = tfinfo.resolve()
    folders = [flag[2:] for flag in info.link_flags if flag.startswith("-L")]
    return ["-DNDEBUG", *info.compile_flags], [*info.link_flags, *(f"-Wl,-rpath,{folder}" for folder in folders)]


def kind_of(number: int) -> tuple[str, str]:
    """Return the program and the sanitizer of a case."""
    return ("ops", ADDRESS) if number % OPS_EVERY == OPS_EVERY - 1 else KINDS[number % len(KINDS)]


def run(case: Case) -> Outcome:
    """Run a program once, or a file of tests."""
    name, sanitizer = kind_of(case.number)
    builder: Builder = case.prepared
    environment: dict[str, str] = dict(os.environ)
    if name == "ops":
        command: Sequence[Any] = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *OPS_TESTS]
        environment = builder.ops()
    else:
        command = [builder.program(name, sanitizer), *(["stress"] if name == "parts" else []), case.scratch]
        command = [*command, str(case.rng.randrange(1 << 20))]
        environment |= {
            "ASAN_OPTIONS": "detect_leaks=0" if name == "swap_engine" else "detect_leaks=1",
            "TSAN_OPTIONS": f"halt_on_error=1:exitcode=66:suppressions={builder.suppressions}",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
    done = subprocess.run(
        command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False, errors="replace"
    )
    what = f"{name}, {sanitizer}"
    text = done.stdout[-2000:] + done.stderr[:6000]
    is_reported = "Sanitizer" in text or "runtime error" in text
    return Outcome("wrong", what, text) if done.returncode or is_reported else Outcome("good", what)


def reason_to_skip() -> str:
    """Say why it cannot be run on this machine; "" if it can."""
    if sys.platform != "linux" or shutil.which("c++") is None:
        return "it needs Linux and a C++ compiler"
    probe = ["c++", "-fsanitize=thread", "-x", "c++", "-", "-o", "/dev/null"]
    has_libraries = subprocess.run(probe, input=b"int main(){}", capture_output=True, check=False).returncode == 0
    return "" if has_libraries else "the compiler has no run-time libraries of its sanitizers"


CAMPAIGN = Campaign(
    "sanitizers",
    "The native core, the parts of LMS, its swap engine and the TensorFlow ops run without a report of "
    "AddressSanitizer, UBSan or ThreadSanitizer.",
    full=600,
    run=run,
    prepare=Builder,
    timeout_s=1200.0,
    reason_to_skip=reason_to_skip,
)
