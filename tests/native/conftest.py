"""Every promise is tested on both implementations."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hpcckpt import native


@pytest.fixture(params=["native", "pure"])
def io(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return ``hpcckpt.native`` running on one implementation."""
    if request.param == "native" and os.environ.get("HPCCKPT_REQUIRE_NATIVE", "0") == "0":
        pytest.importorskip("hpcckpt.native._native", reason="the native part is not built")
    monkeypatch.setattr(native, "_core", importlib.import_module(f"hpcckpt.native._{request.param}"))
    return native


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """Return a new file, open for reading and writing."""
    number = os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT, 0o600)
    yield number
    os.close(number)
