"""Tables that are old, new, of another platform, cut short or forged are refused with the remedy; none is a crash."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st

from hpcckpt.errors import BackendError, PluginError
from hpcckpt.native import abi, handshake

pytestmark = pytest.mark.one_case

CODE = ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value or 0
FUNCTIONS = ("create", "save", "load", "destroy")


class Forged:
    """A plugin's tables in memory, sound until they are changed."""

    def __init__(self, names: tuple[bytes, ...] = (b"good",)) -> None:
        self.names = [ctypes.create_string_buffer(name) for name in names]
        self.backends = [
            abi.BackendTable(
                struct_size=ctypes.sizeof(abi.BackendTable), features=1, name=ctypes.addressof(name),
                create=CODE, save=CODE, load=CODE, destroy=CODE,
            )
            for name in self.names
        ]  # fmt: skip
        self.list = (ctypes.c_uint64 * max(len(names), 1))(*map(ctypes.addressof, self.backends))
        self.table = abi.PluginTable(
            struct_size=ctypes.sizeof(abi.PluginTable), platform=abi.this_platform(), magic=abi.MAGIC,
            abi_major=abi.MAJOR, abi_minor=abi.MINOR, n_backends=len(names), backends=ctypes.addressof(self.list),
        )  # fmt: skip

    def read(self) -> list[handshake.BackendRecord]:
        return handshake.read_plugin("libforged.so", ctypes.addressof(self.table))

    def refusal(self) -> str:
        with pytest.raises(PluginError) as caught:
            self.read()
        assert isinstance(caught.value, OSError)
        assert isinstance(caught.value, BackendError)
        assert "libforged.so" in str(caught.value)
        return str(caught.value)


def test_a_sound_table_is_read() -> None:
    forged = Forged((b"one", b"_two2"))
    assert [record.name for record in forged.read()] == ["one", "_two2"]
    assert forged.read()[0].address == ctypes.addressof(forged.backends[0])


def test_a_table_with_more_fields_and_features_than_we_know_is_read() -> None:
    forged = Forged()
    forged.table.struct_size += 64
    forged.backends[0].struct_size += 64
    forged.backends[0].features = 0xFFFFFFFF
    assert [record.name for record in forged.read()] == ["good"]


def test_one_that_is_too_old_says_to_build_it_again() -> None:
    forged = Forged()
    forged.table.abi_major = abi.MAJOR - 1
    text = forged.refusal()
    assert f"plugin ABI {abi.MAJOR - 1}, need {abi.MAJOR}" in text
    assert "too old" in text
    assert "build it again" in text
    assert "--include-dir" in text


@pytest.mark.parametrize(("field", "by"), [("abi_major", 1), ("abi_major", 1 << 20), ("abi_minor", 1)])
def test_one_that_is_too_new_says_to_upgrade(field: str, by: int) -> None:
    forged = Forged()
    setattr(forged.table, field, getattr(forged.table, field) + by)
    text = forged.refusal()
    assert "too new" in text
    assert "pip install -U hpcckpt" in text


def test_one_that_is_too_old_or_too_new_is_not_read_further() -> None:
    for field, value in {"abi_major": abi.MAJOR + 1, "abi_minor": abi.MINOR + 1}.items():
        forged = Forged()
        setattr(forged.table, field, value)
        forged.table.struct_size, forged.table.backends, forged.table.n_backends = 24, 8, 1 << 60
        assert "too new" in forged.refusal()


@pytest.mark.parametrize("tag", [4, 0x100, 0x10000, 0x30000, 0])
def test_one_of_another_platform_says_to_build_it_for_this_one(tag: int) -> None:
    forged = Forged()
    forged.table.platform ^= tag or 0xFFFFFFFF
    text = forged.refusal()
    assert "wrong platform" in text
    assert abi.platform_name(abi.this_platform()) in text


def test_one_of_the_other_byte_order_is_of_the_wrong_platform() -> None:
    forged = Forged()
    forged.table.magic = int.from_bytes(abi.MAGIC.to_bytes(8, "little"), "big")
    assert "another byte order" in forged.refusal()


def damage(change: Any) -> Any:
    return pytest.param(change, id=change.__name__)


def no_magic(f: Forged) -> None:
    f.table.magic = 0


def table_cut_short(f: Forged) -> None:
    f.table.struct_size -= 1


def table_of_no_size(f: Forged) -> None:
    f.table.struct_size = 0


def table_of_absurd_size(f: Forged) -> None:
    f.table.struct_size = 0xFFFFFFFF


def too_many_backends(f: Forged) -> None:
    f.table.n_backends = handshake.MAX_BACKENDS + 1


def absurdly_many_backends(f: Forged) -> None:
    f.table.n_backends = (1 << 64) - 1


def null_list(f: Forged) -> None:
    f.table.backends = 0


def list_nowhere(f: Forged) -> None:
    f.table.backends = 1 << 46


def null_backend(f: Forged) -> None:
    f.list[0] = 0


def backend_nowhere(f: Forged) -> None:
    f.list[0] = 0x123456789000


def backend_cut_short(f: Forged) -> None:
    f.backends[0].struct_size -= 8


def backend_of_absurd_size(f: Forged) -> None:
    f.backends[0].struct_size = 1 << 31


def null_name(f: Forged) -> None:
    f.backends[0].name = 0


def name_nowhere(f: Forged) -> None:
    f.backends[0].name = 1 << 46


@pytest.mark.parametrize("change", [damage(each) for each in (
    no_magic, table_cut_short, table_of_no_size, table_of_absurd_size, too_many_backends,
    absurdly_many_backends, null_list, list_nowhere, null_backend, backend_nowhere, backend_cut_short,
    backend_of_absurd_size, null_name, name_nowhere,
)])  # fmt: skip
def test_one_that_is_forged_or_cut_short_is_refused_as_damaged(change: Any) -> None:
    forged = Forged()
    change(forged)
    assert "is damaged" in forged.refusal()


def test_a_library_that_registers_no_backend_is_told_the_macro() -> None:
    forged = Forged()
    forged.table.n_backends = 0
    assert "registers no backend: add HPCCKPT_REGISTER_BACKEND(name, Class)" in forged.refusal()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("where", ["null", "small", "data", "nowhere"])
def test_a_function_that_is_none_is_refused(function: str, where: str) -> None:
    forged = Forged()
    data = ctypes.addressof(forged.table)
    setattr(forged.backends[0], function, {"null": 0, "small": 8, "data": data, "nowhere": 1 << 46}[where])
    assert f"the function {function!r} of backend 'good'" in forged.refusal()


@pytest.mark.parametrize(
    "name", [b"", b"1a", b"a b", b"a-b", b"a/b", b"..", b"a\nb", b"\xc3\xa9t\xc3\xa9", b"\xff\xfe", b"x" * 65]
)
def test_a_name_that_is_no_c_identifier_is_refused(name: bytes) -> None:
    assert "C identifier" in Forged((name,)).refusal()
    assert Forged((b"x" * 64,)).read()[0].name == "x" * 64


@pytest.mark.parametrize("address", [0, 8, 4096, 1 << 46, (1 << 63) + 8])
def test_an_entry_point_that_returns_no_table_is_refused(address: int) -> None:
    with pytest.raises(PluginError, match="is damaged"):
        handshake.read_plugin("libforged.so", address)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at where memory ends through /proc")
@pytest.mark.parametrize("n_left", [1, 23, 24, 40, 71])
def test_a_table_at_the_end_of_memory_is_refused_rather_than_read_past(n_left: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    page = mmap.PAGESIZE
    start = libc.mmap(None, 2 * page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    libc.munmap(start + page, page)
    address = start + page - n_left
    ctypes.memmove(address, bytes(Forged().table)[:n_left], n_left)
    with pytest.raises(PluginError, match="is damaged"):
        handshake.read_plugin("libforged.so", address)
    libc.munmap(start, page)


@given(st.data())
def test_any_bytes_for_tables_are_an_error_or_a_plugin_but_no_crash(data: st.DataObject) -> None:
    forged = Forged((b"good", b"other"))
    for struct in (forged.table, *forged.backends):
        for name, kind, *_ in struct._fields_:
            if name != "reserved" and data.draw(st.integers(0, 5)) == 0:
                bits = 8 * ctypes.sizeof(kind)
                setattr(struct, name, data.draw(st.one_of(st.integers(0, 100), st.integers(0, 2**bits - 1))))
    with contextlib.suppress(PluginError):
        assert forged.read()
