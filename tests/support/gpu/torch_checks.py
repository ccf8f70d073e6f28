"""What is promised of tensors on an accelerator, checked with PyTorch alone.

Each check takes the device and a directory, and raises `AssertionError`.  They run on a GPU (``make gpu``), and in the
suite on the CPU, which then is treated as the accelerator: see `as_accelerator`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hpcckpt as hc
from hpcckpt.native.arena import Arena
from hpcckpt.state.tree import StagedPart
from hpcckpt.torch import modules, staging, tensors  # noqa: F401 - modules: before a class is replaced

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int64", "bool", "complex64")
N_STEPS, SAVED_AT = 12, 5


@contextlib.contextmanager
def as_accelerator(device: torch.device) -> Iterator[None]:
    """Have tensors on the CPU saved and restored as those of an accelerator are, if that is the device."""
    before = tensors.CpuLeaf
    if device.type == "cpu":
        tensors.CpuLeaf = tensors.DeviceLeaf  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        tensors.CpuLeaf = before  # type: ignore[misc]


def every_byte_arrives(device: torch.device, directory: Path) -> None:
    """Stage tensors of many dtypes, sizes and layouts, and put them back."""
    del directory
    for dtype in DTYPES:
        for nbytes in (0, 16, 4096, 20528):
            tensor = _filled(getattr(torch, dtype), nbytes // 16, device)
            for shown in (tensor, tensor.t(), tensor[::2]):
                array = staging.copy_to_host(shown)
                assert array.shape == tuple(shown.shape)
                assert array.tobytes() == _bits(shown), (dtype, nbytes)
                assert _through_an_arena(shown) == _bits(shown), (dtype, nbytes)
                back = torch.zeros_like(shown)
                staging.unstage(tensors.from_array(array, shown.dtype), back)
                assert _bits(back) == _bits(shown), (dtype, nbytes)


def a_snapshot_is_what_was_asked_for_so_far(device: torch.device, directory: Path) -> None:
    """Queue much work, hold its result, and queue what changes it: the snapshot has the result, not the change."""
    del directory
    streams: list[Any] = [contextlib.nullcontext()]
    if device.type == "cuda":
        streams.append(torch.cuda.stream(torch.cuda.Stream(device)))
    for stream in streams:
        with stream:
            n = 64 if device.type == "cpu" else 2048  # a GPU has to be busy when the snapshot is asked for
            x = torch.full((n, n), 1.0 / n, device=device)
            for _ in range(50):
                x = (x @ x) * 1.0
            x += 1.0
            arena = Arena(x.nbytes)
            staging.stage([StagedPart(x, 0, x.numel(), arena.view(0, x.nbytes))], arena)
            x.zero_()
            assert float(arena.view(0, x.nbytes).view(np.float32).min()) > 0.5
            assert float(x.max()) == 0.0


def threads_stage_at_the_same_time(device: torch.device, directory: Path) -> None:
    """Stage tensors of different values on several threads, again and again."""
    del directory

    def stage_own(number: int) -> None:
        tensor = torch.full((1 << 18,), float(number), device=device)
        for _ in range(20):
            assert _through_an_arena(tensor) == _bits(tensor), number

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(stage_own, range(4)))


def memory_that_goes_back_can_be_used_again(device: torch.device, directory: Path) -> None:
    """Make and drop arenas, which CUDA registers: the system gives the same addresses again."""
    del directory
    x = torch.ones(1 << 20, device=device)
    for _ in range(20):
        arena = Arena(x.nbytes)
        view = arena.view(0, x.nbytes)
        staging.stage([StagedPart(x, 0, x.numel(), view)], arena)
        assert device.type != "cuda" or torch.from_numpy(view).is_pinned()
        assert view.tobytes() == _bits(x)
        del arena, view


def memory_that_is_not_registered_is_copied_too(device: torch.device, directory: Path) -> None:
    """Have CUDA refuse to register an arena: every byte arrives, and PyTorch goes on as if nothing had happened."""
    del directory
    x = torch.ones(1 << 20, device=device)
    arena = Arena(x.nbytes)
    view = arena.view(0, x.nbytes)
    if device.type == "cuda":  # registered already, so not again
        assert int(torch.cuda.cudart().cudaHostRegister(view.ctypes.data, x.nbytes, 0)) == 0
    staging.stage([StagedPart(x, 0, x.numel(), view)], arena)
    assert view.tobytes() == _bits(x)
    assert float((x + x).sum()) == 2.0 * x.numel()
    if device.type == "cuda":
        assert int(torch.cuda.cudart().cudaHostUnregister(view.ctypes.data)) == 0


def staging_goes_on_beside_a_forked_child(device: torch.device, directory: Path) -> None:
    """Fork, as a DataLoader does, with registered memory, and stage again while the child lives."""
    del directory
    x = torch.ones(1 << 20, device=device)
    arena = Arena(x.nbytes)
    part = StagedPart(x, 0, x.numel(), arena.view(0, x.nbytes))
    staging.stage([part], arena)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch has threads; the child does nothing but wait
        child = os.fork()
    if child == 0:
        os.read(os.pipe()[0], 1)
        os._exit(1)
    try:
        x += 1.0
        staging.stage([part], arena)
        assert part.into.tobytes() == _bits(x)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def a_training_resumes_to_the_bit(device: torch.device, directory: Path) -> None:
    """Train with Adam and dropout; save in the background on the way; resume in new objects."""
    straight = _train(directory / "straight", device, saves=False, resumes=False)
    saving = _train(directory / "run", device, saves=True, resumes=False)
    resumed = _train(directory / "run", device, saves=False, resumes=True)
    for name, value in straight.items():
        assert _bits(value) == _bits(saving[name]), name
        assert _bits(value) == _bits(resumed[name]), name


def checkpoints_go_from_device_to_device(device: torch.device, directory: Path) -> None:
    """Save on the device and restore on the host, and the other way round."""
    host = torch.device("cpu")
    for number, (source, target) in enumerate(((device, host), (host, device), (device, device))):
        run, saved, blank = directory / f"between-{number}", _model(source, seed=1), _model(target, seed=2)
        hc.torch.save(run, 1, model=saved)
        hc.torch.restore(run, model=blank)
        for (name, old), new in zip(saved.state_dict().items(), blank.state_dict().values(), strict=True):
            assert new.device.type == target.type
            assert _bits(old) == _bits(new), name
        loaded = hc.load(run)
        assert loaded["model/0.weight"].tobytes() == _bits(saved[0].weight)


def a_state_dict_comes_back_to_the_device(device: torch.device, directory: Path) -> None:
    """Write one file, and load it on the device."""
    from mpi4py import MPI

    file = directory / f"model-{MPI.COMM_WORLD.rank}.safetensors"
    model = _model(device, seed=3)
    hc.torch.save(model.state_dict(), file)
    for name, tensor in hc.torch.load(file, map_location=device).items():
        assert tensor.device.type == device.type
        assert _bits(tensor) == _bits(model.state_dict()[name]), name


CHECKS: tuple[Callable[[torch.device, Path], None], ...] = (
    every_byte_arrives,
    a_snapshot_is_what_was_asked_for_so_far,
    threads_stage_at_the_same_time,
    memory_that_goes_back_can_be_used_again,
    memory_that_is_not_registered_is_copied_too,
    staging_goes_on_beside_a_forked_child,
    a_training_resumes_to_the_bit,
    checkpoints_go_from_device_to_device,
    a_state_dict_comes_back_to_the_device,
)


def _filled(dtype: torch.dtype, n_rows: int, device: torch.device) -> torch.Tensor:
    """Return a matrix of rows of 16 bytes, on the device."""
    values = torch.arange(n_rows * 16 // dtype.itemsize).remainder(101)
    return values.to(dtype).reshape(n_rows, 16 // dtype.itemsize).to(device)


def _through_an_arena(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor that was staged in two parts, from an odd offset on."""
    arena, width, middle = Arena(tensor.nbytes + 1), tensor.element_size(), tensor.numel() // 3
    into = arena.view(1, tensor.nbytes)
    cuts = [(middle, tensor.numel()), (0, middle)]
    staging.stage([StagedPart(tensor, i, j, into[i * width : j * width]) for i, j in cuts], arena)
    return into.tobytes()


def _bits(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor by PyTorch's own way to the host."""
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _model(device: torch.device, seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(64, 128), torch.nn.BatchNorm1d(128), torch.nn.ReLU(), torch.nn.Dropout(0.3)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(128, 8)).to(device)


def _train(run: Path, device: torch.device, *, saves: bool, resumes: bool) -> dict[str, torch.Tensor]:
    """Train from the beginning, or from what is saved; return the weights at the end."""
    model = _model(device, seed=9 if resumes else 1)  # other weights, which a restore has to replace
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    if not resumes:
        torch.manual_seed(5)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(N_STEPS, 32, 64)).astype("float32")).to(device)
    parts = {"model": model, "optimizer": optimizer, "rng": hc.torch.rng_state()}
    with hc.Checkpointer(run) as ckpt:
        first = hc.torch.restore(ckpt, **parts).step if resumes else 0
        assert first == (SAVED_AT if resumes else 0)
        for step in range(first, N_STEPS):
            if saves and step == SAVED_AT:
                hc.torch.save(ckpt, step, **parts)
            optimizer.zero_grad()
            model(x[step]).square().mean().backward()
            optimizer.step()
            ckpt.poll()
    return dict(model.state_dict())
