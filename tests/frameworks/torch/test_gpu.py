"""Tensors on an accelerator: on a GPU (``make gpu``), and with the CPU in its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.gpu.torch_checks import CHECKS, as_accelerator

DEVICES = [
    pytest.param("cpu", id="simulated"),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU, or PyTorch for CPUs"),
        ],
    ),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("device", DEVICES)
def test_tensors_on_an_accelerator(device: str, check: Callable[[torch.device, Path], None], tmp_path: Path) -> None:
    with as_accelerator(torch.device(device)):
        check(torch.device(device), tmp_path)
