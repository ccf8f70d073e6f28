"""Say why the system's loader refused a plugin, with a remedy that works."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from hpcckpt.errors import PluginError
from hpcckpt.native import abi
from hpcckpt.native.handshake import REBUILD, damaged, wrong_platform

_MACHINES = {
    3: "i386", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64", 258: "loongarch64",
}  # fmt: skip
"""ELF's numbers."""
_ELF = b"\x7fELF"
_TENSORFLOW = re.compile("10tensorflow|6google8protobuf|3tsl|4absl")
"""C++ namespaces in the names of symbols that TensorFlow's library has."""
_TMCI = "4tmci"
_TMCI_HEADER = (
    "it was compiled with TMCI's own header: compile it with the header of hpcckpt, whose directory "
    "`python -m hpcckpt --include-dir` prints, and link it to hpcckpt.tmci.get_library()"
)


def explain(origin: str, error: OSError) -> PluginError:
    """Return an error that says why ``dlopen`` refused a file, and what to do."""
    text = str(error).removeprefix(f"{origin}: ")
    theirs, ours = _machine_of(origin), _machine_of("/proc/self/exe")
    if theirs and ours and theirs != ours:
        return wrong_platform(origin, theirs)
    if not theirs:
        return damaged(origin, f"it is not a shared library ({text})")
    return PluginError(f"plugin {origin} cannot be loaded: {text}; {_remedy(origin, text)}")


def explain_no_entry(origin: str) -> PluginError:
    """Return an error for a library that loads and exports no table of backends."""
    remedy = "add HPCCKPT_REGISTER_BACKEND or TMCI_REGISTER_BACKEND (C++), HPCCKPT_EXPORT_BACKENDS (C) to its source"
    if _mentions(origin, _TMCI):
        remedy = _TMCI_HEADER
    return PluginError(f"{origin} is not a plugin: it exports no {abi.SYMBOL}; {remedy}")


def _remedy(origin: str, text: str) -> str:
    symbol = re.search(r"undefined symbol: (\w+)", text)
    if symbol:
        return _remedy_for_symbol(origin, symbol[1])
    library, is_missing, _ = text.partition(": cannot open shared object file")
    if is_missing:
        return _remedy_for_library(library)
    if re.search(r"version `\S+' not found", text):
        return (
            "it was built with a newer compiler or C library than this program runs with: build it with an older one "
            "(CXX=...), or set LD_LIBRARY_PATH to the newer library's directory before the program starts"
        )
    return REBUILD


def _remedy_for_symbol(origin: str, symbol: str) -> str:
    if _TMCI in symbol:
        return _TMCI_HEADER
    if not (_TENSORFLOW.search(symbol) and _mentions(origin, "10tensorflow")):
        return f"link it to the library that defines it; `ldd -r {origin}` lists all such symbols"
    if _mentions(origin, "libtensorflow_framework"):
        return (
            "it was compiled for another TensorFlow, or with another _GLIBCXX_USE_CXX11_ABI: build it again with the "
            "flags that `python -m hpcckpt.native.tfinfo` prints"
        )
    return f"link it to TensorFlow: {_link_flags()} after its sources (hpcckpt_add_plugin(NAME TMCI ...) does that)"


def _remedy_for_library(library: str) -> str:
    if library.startswith("_tmci_ops"):
        return _TMCI_HEADER
    if library.startswith("libtensorflow"):
        return f"import tensorflow before, or link it with {_link_flags()}"
    return "link it with an rpath to its directory, or set LD_LIBRARY_PATH to that before the program starts"


def _link_flags() -> str:
    """Return how to link to the installed TensorFlow, which is not imported for that."""
    spec = importlib.util.find_spec("tensorflow")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(place).glob("libtensorflow_framework.*")):
            return f"-L{place} -Wl,-rpath,{place} -l:{file.name}"
    return "the flags that `python -m hpcckpt.native.tfinfo` prints, where TensorFlow is installed,"


def _mentions(path: str, name: str) -> bool:
    """Return True if a name is in a file, which lists there what it is linked to and which symbols it uses."""
    try:
        return name.encode() in Path(path).read_bytes()
    except OSError:
        return False


def _machine_of(path: str) -> str:
    """Return for which machine an executable file is, or "" if it is none."""
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return ""
    if len(head) < 20 or not head.startswith(_ELF) or head[4] not in (1, 2) or head[5] not in (1, 2):
        return ""
    order = "little" if head[5] == 1 else "big"
    number = int.from_bytes(head[18:20], order)  # type: ignore[arg-type]
    return f"{_MACHINES.get(number, f'ELF machine {number}')}, {32 * head[4]} bits, {order}-endian"
