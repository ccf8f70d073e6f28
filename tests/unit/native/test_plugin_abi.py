"""The C interface of plugins does not move: header, Python's structs and the words of both say the same."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from hpcckpt import native
from hpcckpt.core import tensors
from hpcckpt.native import abi, handshake

HEADERS = Path(native.__file__).parent / "include"
TEXT = (HEADERS / "hpcckpt" / "plugin.h").read_text(encoding="utf-8")
STRUCTS = {
    "hpcckpt_tensor": abi.Tensor,
    "hpcckpt_context": abi.Context,
    "hpcckpt_backend_table": abi.BackendTable,
    "hpcckpt_plugin_table": abi.PluginTable,
}

LAYOUT_1_0 = {
    "hpcckpt_tensor": (128, {
        "struct_size": 0, "dtype": 4, "name": 8, "dtype_name": 16, "itemsize": 24, "ndim": 28, "kind": 32,
        "reserved_flags": 36, "global_shape": 40, "offset": 48, "shape": 56, "first_element": 64, "n_elements": 72,
        "data": 80, "nbytes": 88, "reserved": 96,
    }),
    "hpcckpt_context": (88, {
        "struct_size": 0, "reserved_flags": 4, "directory": 8, "save_id": 16, "step": 24, "rank": 32, "n_ranks": 36,
        "n_tensors": 40, "tensors": 48, "reserved": 56,
    }),
    "hpcckpt_backend_table": (80, {
        "struct_size": 0, "features": 4, "name": 8, "create": 16, "save": 24, "load": 32, "destroy": 40, "reserved": 48,
    }),
    "hpcckpt_plugin_table": (72, {
        "struct_size": 0, "platform": 4, "magic": 8, "abi_major": 16, "abi_minor": 20, "n_backends": 24, "backends": 32,
        "reserved": 40,
    }),
}  # fmt: skip
"""What version 1.0 was. It is never changed here: a later version adds to it."""


@pytest.mark.parametrize("struct", STRUCTS)
def test_the_header_freezes_every_field_of_version_1_0(struct: str) -> None:
    nbytes, fields = LAYOUT_1_0[struct]
    frozen = dict(re.findall(rf"^HPCCKPT_AT\({struct}, (\w+), (\d+)\);", TEXT, re.MULTILINE))
    assert {name: int(place) for name, place in frozen.items()} == fields
    assert f"sizeof({struct}) == {nbytes}" in TEXT


@pytest.mark.parametrize("struct", STRUCTS)
def test_python_has_the_layout_of_version_1_0(struct: str) -> None:
    nbytes, fields = LAYOUT_1_0[struct]
    ours = STRUCTS[struct]
    assert ctypes.sizeof(ours) == nbytes
    assert {name: getattr(ours, name).offset for name, *_ in ours._fields_} == fields


def enumerated(prefix: str) -> dict[str, int]:
    found = re.findall(rf"{prefix}(\w+)(?: =)? \(?(-?\d+)u?", TEXT)
    return {name: int(number) for name, number in found}


def test_numbers_are_those_of_the_header() -> None:
    dtypes = {name.lower(): number for name, number in enumerated("HPCCKPT_DTYPE_").items()}
    assert dtypes.pop("other") == 0
    assert dtypes == abi.DTYPES
    assert set(dtypes) == set(tensors.ITEMSIZE)
    assert len(set(dtypes.values())) == len(dtypes)
    kinds = {name.lower().replace("_", "-"): number for name, number in enumerated("HPCCKPT_KIND_").items()}
    assert kinds == abi.KINDS
    assert set(kinds) == set(tensors.KINDS)
    assert {name.lower(): bit for name, bit in enumerated("HPCCKPT_FEATURE_").items()} == abi.FEATURES
    assert enumerated("HPCCKPT_ERROR_") == {
        "EXCEPTION": -1,
        "UNKNOWN": -2,
        "NO_SPACE": abi.NO_SPACE,
        "DAMAGED": abi.DAMAGED,
    }
    assert enumerated("HPCCKPT_ABI_M") == {"AJOR": abi.MAJOR, "INOR": abi.MINOR}
    assert f"UINT64_C({abi.MAGIC:#018x})" in TEXT
    assert f'HPCCKPT_ABI_SYMBOL "{abi.SYMBOL}"' in TEXT


def test_the_page_about_the_interface_has_its_version() -> None:
    page = (HEADERS.parent / "ABI.md").read_text(encoding="utf-8")
    assert f"version {abi.MAJOR}.{abi.MINOR}" in page.splitlines()[0]


@pytest.mark.parametrize(
    ("compiler", "standard", "header"),
    [
        ("cc", "c11", "plugin.h"),
        ("c++", "c++17", "plugin.h"),
        ("c++", "c++17", "backend.hpp"),
        ("c++", "c++20", "backend.hpp"),
    ],
)
def test_headers_compile_without_a_warning(tmp_path: Path, compiler: str, standard: str, header: str) -> None:
    source = tmp_path / ("a.c" if compiler == "cc" else "a.cpp")
    source.write_text(f"#include <hpcckpt/{header}>\n", encoding="utf-8")
    flags = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-pedantic", "-Werror", "-fsyntax-only"]
    subprocess.run([compiler, f"-std={standard}", *flags, f"-I{HEADERS}", str(source)], check=True)


def test_this_platform_has_a_name() -> None:
    tag = abi.this_platform()
    assert tag & 0xFF == ctypes.sizeof(ctypes.c_void_p)
    assert "machine 0" not in abi.platform_name(tag)


def test_memory_that_is_not_there_is_not_read() -> None:
    text = ctypes.create_string_buffer(b"abc")
    address = ctypes.addressof(text)
    assert handshake.peek(address, 4) == b"abc\0"
    assert handshake.peek_text(address, 64) == b"abc"
    for nowhere in (0, 1, 4095, 1 << 47, (1 << 64) - 8, -1):
        assert handshake.peek(nowhere, 8) is None
        assert handshake.peek_text(nowhere, 8) is None
        assert not handshake.is_code(nowhere)
    assert not handshake.is_code(address)
