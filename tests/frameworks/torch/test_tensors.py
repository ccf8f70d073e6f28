"""Tensors come back bit for bit, in their own memory, whatever their dtype, layout and place in the state."""

from __future__ import annotations

import threading
from collections import defaultdict

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import hpcckpt as hc
from hpcckpt.core.plan import WriteItem
from hpcckpt.errors import ConfigError, StateError, StateMismatchError
from hpcckpt.format import layout
from hpcckpt.native.arena import ArenaPool
from hpcckpt.saving.snapshot import take
from hpcckpt.state.tree import StagedPart, flatten
from hpcckpt.torch import staging, tensors
from hpcckpt.torch.staging import copy_to_host, unstage
from hpcckpt.torch.tensors import DeviceLeaf
from tests.support.torch_trainings import save_and_restore

DTYPES = [
    *("float32", "float64", "float16", "bfloat16", "complex64", "complex128", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


def any_bits(dtype: str, *shape: int) -> torch.Tensor:
    """Return a tensor of any bit patterns that the dtype has."""
    kind = getattr(torch, dtype, None)
    if kind is None or (dtype.startswith("float8") and not hasattr(ml_dtypes, dtype)):
        pytest.skip(f"this PyTorch, or this ml_dtypes, has no {dtype}")
    if dtype == "bool":
        return torch.rand(shape) > 0.5
    count = int(np.prod(shape, dtype=int)) * kind.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(kind).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_in_its_own_memory(run_dir, dtype):
    saved = {shape: any_bits(dtype, *shape) for shape in [(13, 7), (), (0, 3)]}
    state = {str(shape): tensor for shape, tensor in saved.items()}
    blank = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    before = {name: (tensor, tensor.data_ptr()) for name, tensor in blank.items()}
    save_and_restore(run_dir, state, blank)
    for name, tensor in state.items():
        assert blank[name] is before[name][0]
        assert blank[name].data_ptr() == before[name][1]
        assert (blank[name].dtype, blank[name].shape, bits(blank[name])) == (tensor.dtype, tensor.shape, bits(tensor))


class Buffered(torch.nn.Module):
    """A module with one buffer, which a restore may keep as each rank's own."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("held", tensor)
        hc.torch.batch_norm(self, "per-rank")


class Holder:
    """Something with a ``state_dict``."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.held = tensor

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"held": self.held}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.held = state["held"]


OWNED = {"buffer of a module": Buffered, "state of an object": Holder}


@pytest.mark.parametrize("kind", OWNED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_as_a_ranks_own(run_dir, dtype, kind):
    tensor = any_bits(dtype, 5, 3)
    saved, blank = OWNED[kind](tensor), OWNED[kind](torch.zeros_like(tensor))
    state = [{"x": each if kind == "buffer of a module" else hc.torch.per_rank(each)} for each in (saved, blank)]
    save_and_restore(run_dir, *state)
    assert (blank.held.dtype, bits(blank.held)) == (tensor.dtype, bits(tensor))


LAYOUTS = {
    "transposed": lambda t: t.transpose(0, 2),
    "every second": lambda t: t[::2, 1:, ::3],
    "channels last": lambda t: t[None].to(memory_format=torch.channels_last),
    "flipped": lambda t: t.flip(0),
    "zero-dimensional view": lambda t: t[1, 2, 3],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("async_save", [True, False])
def test_any_layout_can_be_saved_and_restored_into(run_dir, layout, async_save):
    whole = torch.arange(4 * 5 * 6, dtype=torch.bfloat16).reshape(4, 5, 6)
    saved, blank = LAYOUTS[layout](whole), LAYOUTS[layout](torch.zeros_like(whole))
    strides = blank.stride()
    save_and_restore(run_dir, {"x": saved}, {"x": blank}, async_save=async_save)
    assert torch.equal(blank, saved)
    assert blank.stride() == strides


def test_conjugated_and_negated_views_are_saved_as_what_they_show(run_dir):
    z = torch.randn(5, dtype=torch.complex64)
    saved = {"conj": z.conj(), "neg": torch.imag(z.conj())}
    blank = {"conj": torch.zeros(5, dtype=torch.complex64).conj(), "neg": torch.zeros(5)}
    save_and_restore(run_dir, saved, blank)
    assert torch.equal(blank["conj"].resolve_conj(), z.conj().resolve_conj())
    assert torch.equal(blank["neg"], saved["neg"])
    assert hc.load(run_dir)["conj"].tobytes() == z.conj().resolve_conj().numpy().tobytes()


def test_tensors_that_lie_in_a_row_are_neither_copied_to_be_read_nor_to_be_restored():
    tensor = torch.randn(100, dtype=torch.float32, requires_grad=True)
    leaf = flatten({"x": tensor}).tensors["x"]
    assert leaf.read().ctypes.data == tensor.data_ptr()
    assert leaf.target().ctypes.data == tensor.data_ptr()


def test_a_restore_is_seen_by_autograd(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": torch.ones(3)}).result()
        w = torch.full((3,), 2.0, requires_grad=True)
        loss = (w * w).sum()
        ckpt.restore({"w": w})
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert w.requires_grad


def test_saves_in_the_background_do_not_see_later_updates(run_dir):
    tensor = torch.zeros(1 << 20)
    with hc.Checkpointer(run_dir, max_to_keep=None) as ckpt:
        for step in range(5):
            ckpt.save(step, {"x": tensor})
            tensor += 1
        ckpt.wait()
    for step in range(5):
        saved = hc.load(run_dir / layout.step_dirname(step))["x"]
        assert saved.min() == saved.max() == step


def test_tensors_stand_anywhere_in_a_state(ranks, run_dir):
    def state(value):
        return {"a": [torch.full((2,), value), {"b": torch.tensor(value)}], "np": np.full(2, value), "n": int(value)}

    def body(comm):
        blank = state(0.0)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, state(3.0)).result()
            ckpt.restore(blank)
        return blank["a"][0].tolist(), blank["a"][1]["b"].item(), blank["np"].tolist(), blank["n"]

    assert ranks(body) == [([3.0, 3.0], 3.0, [3.0, 3.0], 3)] * ranks.size


def test_one_tensor_can_be_a_state(run_dir):
    blank = torch.zeros(3)
    save_and_restore(run_dir, torch.ones(3), blank)
    assert blank.tolist() == [1, 1, 1]


def test_a_part_of_a_tensor_is_sharded_through_its_array(ranks, run_dir):
    def body(comm):
        rows = torch.full((2, 3), float(comm.rank), dtype=torch.bfloat16)
        shape, offset = (2 * comm.size, 3), (2 * comm.rank, 0)
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"x": hc.Sharded(hc.torch.as_array(rows), shape, offset)}).result()
            blank = torch.zeros(2, 3, dtype=torch.bfloat16)
            ckpt.restore({"x": hc.Sharded(hc.torch.as_array(blank), shape, offset)})
        return torch.equal(blank, rows)

    assert all(ranks(body))


def test_values_travel_between_numpy_and_torch(run_dir):
    blank = {"x": np.zeros((2, 3), np.float32)}
    save_and_restore(run_dir, {"x": torch.ones(2, 3)}, blank)
    assert blank["x"].tolist() == [[1.0] * 3] * 2


def test_an_expanded_buffer_is_restored_into_its_own_memory(run_dir):
    class Scale(torch.nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor([[value], [float("nan")]]).expand(2, 3))

    blank = Scale(0.0)
    place = blank.scale.data_ptr()
    save_and_restore(run_dir, {"model": Scale(2.0)}, {"model": blank})
    assert (blank.scale.data_ptr(), blank.scale[0].tolist(), blank.scale.stride()) == (place, [2.0] * 3, (1, 0))


def test_values_that_differ_are_not_restored_into_an_expanded_tensor(run_dir):
    blank = {"deep": {"x": torch.zeros(1).expand(3)}}
    with pytest.raises(StateMismatchError, match="deep/x is an expanded tensor"):
        save_and_restore(run_dir, {"deep": {"x": torch.arange(3.0)}}, blank)
    assert blank["deep"]["x"].tolist() == [0, 0, 0]


REFUSED = {
    "meta": lambda: torch.empty(3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "complex32": lambda: torch.zeros(3, dtype=torch.complex32),
    "no shape yet": lambda: torch.nn.LazyLinear(3).weight,
    "masked": lambda: torch.masked.masked_tensor(torch.arange(2.0), torch.tensor([True, False])),
    "two in one": lambda: TwoTensor(torch.ones(3), torch.zeros(3)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_saved_is_named(kind):
    with pytest.raises(StateError, match="deep/x"):
        flatten({"deep": {"x": REFUSED[kind]()}})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["masked", "two in one"])
@pytest.mark.parametrize("place", [lambda t: t, lambda t: torch.nn.ParameterDict({"p": t})])
def test_a_subclass_that_wraps_tensors_is_named_with_what_to_save(kind, place):
    with pytest.raises(StateError, match=r"(MaskedTensor|TwoTensor), which wraps other tensors: save these"):
        flatten({"deep": {"x": place(REFUSED[kind]())}})


def test_a_dtype_that_a_library_is_too_old_for_is_refused_with_that_reason(monkeypatch):
    def numpy_dtype(token: str) -> None:
        raise ConfigError(f"ml_dtypes on this machine has no {token}: update it")

    monkeypatch.setattr("hpcckpt.torch.tensors.numpy_dtype", numpy_dtype)
    with pytest.raises(StateError, match="no float8_e5m2: update it"):
        flatten({"x": torch.zeros(2, dtype=torch.float8_e5m2)})


def test_another_dtype_is_refused(run_dir):
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"x": torch.ones(3)}).result()
        blank = torch.zeros(3, dtype=torch.bfloat16)
        with pytest.raises(StateMismatchError, match="float32 in the checkpoint and bfloat16"):
            ckpt.restore({"x": blank})
    assert blank.sum() == 0


# -- staging, with a CPU in the accelerator's place ----------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 4, 64, 1000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "bool"])
def test_every_byte_is_copied_to_the_host_and_back(nbytes, dtype):
    tensor = any_bits(dtype, nbytes // 4, 4).T
    array = copy_to_host(tensor)
    assert array.shape == tuple(tensor.shape)
    assert array.tobytes() == bits(tensor)
    back = torch.zeros_like(tensor)
    unstage(tensor, back)
    assert bits(back) == bits(tensor)


def test_a_tensor_elsewhere_is_staged_and_assigned():
    tensor = torch.arange(10.0)
    leaf = DeviceLeaf(tensor, "x")
    staged = np.zeros(16, np.uint8)
    leaf.stager([StagedPart(leaf.source, 3, 5, staged[:8]), StagedPart(leaf.source, 0, 2, staged[8:])], None)
    leaf.assign(np.ones(10, np.float32))
    assert staged.view(np.float32).tolist() == [3, 4, 0, 1]
    assert tensor.tolist() == [1.0] * 10
    assert leaf.target() is None


def test_memory_is_used_again_after_staging_failed(monkeypatch):
    def fail(_parts, _arena):
        raise RuntimeError("out of memory on the device")

    monkeypatch.setattr(tensors, "CpuLeaf", DeviceLeaf)
    monkeypatch.setattr(DeviceLeaf, "stager", staticmethod(fail))
    pool, tree = ArenaPool(1), flatten({"x": torch.ones(1000)})
    arena = pool.take(4096)
    pool.give_back(arena)
    (leaf,) = tree.tensors.values()
    spec, extent = leaf.declaration.spec, leaf.declaration.extent
    with pytest.raises(RuntimeError, match="on the device"):
        take(tree, [WriteItem(spec, extent, 0, 1000)], pool, 1)
    assert pool.take(4000) is arena


@pytest.mark.parametrize("async_save", [True, False])
def test_only_what_a_rank_writes_is_staged(async_save, ranks, run_dir, monkeypatch):
    staged: dict[int, int] = defaultdict(int)

    def noted(parts):
        staged[threading.get_ident()] += sum(part.into.nbytes for part in parts)
        copy(parts)

    copy = staging._copy
    monkeypatch.setattr(staging, "_copy", noted)
    monkeypatch.setattr(tensors, "CpuLeaf", DeviceLeaf)
    numbers = torch.arange(100_000.0)

    def job(comm):
        with hc.Checkpointer(run_dir, comm=comm, async_save=async_save, check_replicas=0) as ckpt:
            ckpt.save(1, {"x": numbers.clone()}).result()
            blank = torch.zeros(100_000)
            ckpt.restore({"x": blank})
            return torch.equal(blank, numbers)

    assert all(ranks(job))
    assert len(staged) == ranks.size
    assert sum(staged.values()) == numbers.nbytes
