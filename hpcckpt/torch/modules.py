"""The values of an ``nn.Module``: its ``state_dict``, restored in the memory of parameters and buffers.

Names are PyTorch's own: ``model/layer1.0.weight``.  Wrappers do not change them: the prefixes of ``torch.compile``,
`DataParallel` and `DistributedDataParallel` are removed, those of submodules too.

Parameters are equal on all ranks.  Buffers may differ (statistics of BatchNorm are not averaged): rank 0's are saved.
With ``batch_norm(model, "per-rank")`` each rank's are saved beside them, and come back on as many ranks; on another
number of ranks, rank 0's do.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

import torch

from hpcckpt.core.tensors import TensorSpec
from hpcckpt.errors import OptionError
from hpcckpt.state.packing import pack, unpack
from hpcckpt.state.tree import (
    Array,
    DynamicPart,
    Finish,
    Leaf,
    ObjectLeaf,
    Resolved,
    StateTree,
    TensorLeaf,
    declare,
    is_below,
    join,
    leaf_name,
    state_dict_leaves,
)
from hpcckpt.torch.tensors import CpuLeaf, as_array, from_array, new, plain, tensor_leaf

Policy = Literal["rank0", "per-rank"]
OWN_BUFFERS = "per-rank-buffers"
"""Last part of the name of each rank's own buffers; no attribute can be called so."""

_EXTRA = "_extra_state"
"""Last part of the keys of what ``get_extra_state`` returns, which may have another shape each time."""

_POLICIES: weakref.WeakKeyDictionary[Any, Policy] = weakref.WeakKeyDictionary()


def batch_norm(model: torch.nn.Module, policy: Policy) -> None:
    """Choose which ranks' buffers of a model are saved. Independent.

    Buffers such as the statistics of BatchNorm differ between ranks.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    policy : {"rank0", "per-rank"}
        ``rank0``, the default: rank 0's buffers are saved, and restored on all ranks. ``per-rank``: each rank's buffers
        are saved too, and restored if the number of ranks is the same; on another number of ranks rank 0's are.

    Raises
    ------
    OptionError
        If there is no such policy.
    """
    if policy not in get_args(Policy):
        raise OptionError(f"batch_norm: {policy!r} – one of {', '.join(get_args(Policy))}")
    _POLICIES[unwrapped(model)] = policy


def unwrapped(module: Any) -> Any:
    """Return the user's own module."""
    while part := _wrapped_part(module):
        module = getattr(module, part)
    return module


def _wrapped_part(module: Any) -> str:
    """Return the name under which a wrapper has the user's module; empty for any other module."""
    if hasattr(module, "_orig_mod"):
        return "_orig_mod"
    wrappers = (torch.nn.parallel.DataParallel, torch.nn.parallel.DistributedDataParallel)
    return "module" if isinstance(module, wrappers) else ""


def _plain_keys(module: Any, keys: Iterable[str]) -> dict[str, str]:
    """Return keys of a ``state_dict``, each with what it would be without wrappers of submodules."""
    parts = {
        f"{prefix}.{part}.": len(part) + 1
        for prefix, submodule in module.named_modules(remove_duplicate=False)
        if (part := _wrapped_part(submodule))
    }
    return {key: _without(parts, key) for key in keys} if parts else {key: key for key in keys}


def _without(parts: Mapping[str, int], key: str) -> str:
    """Return a key without the last parts of the prefixes that it has, given with the lengths of these parts. Pure."""
    for prefix in sorted((prefix for prefix in parts if key.startswith(prefix)), key=len, reverse=True):
        key = key[: len(prefix) - parts[prefix]] + key[len(prefix) :]
    return key


def module_leaves(wrapped: torch.nn.Module, name: str) -> Iterator[Leaf]:
    """Yield the leaves of a module.

    Raises
    ------
    StateError
        If it holds what cannot be saved.
    """
    module = unwrapped(wrapped)
    held = module.state_dict()
    keys = _plain_keys(module, held)
    kinds = _memories(module)
    seen: set[Any] = set()
    others: dict[str, Any] = {}
    wrapped_leaves: dict[str, TensorLeaf] = {}
    for key, value in held.items():
        memory = _memory(value, key) if isinstance(value, torch.Tensor) else None
        if memory not in kinds:
            others[key] = value
            continue
        leaf = tensor_leaf(value, join(name, keys[key]), kinds[memory])
        if key != keys[key]:
            wrapped_leaves[leaf_name(leaf)] = tensor_leaf(value, join(name, key), kinds[memory])
        if isinstance(leaf, CpuLeaf):
            leaf.is_alias = memory in seen  # of tied weights, the last one counts
        seen.add(memory)
        yield leaf
    resized: dict[str, torch.Tensor] = {}
    if wrapped_leaves:
        yield DynamicPart(lambda specs, _objects: _as_01_named_them(wrapped_leaves, specs))
    yield from _resizable_parts(module, name, resized)
    yield from _other_leaves(module, name, held, others, resized)
    if _POLICIES.get(module) == "per-rank":
        yield from _own_buffers(module, join(name, OWN_BUFFERS))


def _as_01_named_them(wrapped_leaves: Mapping[str, TensorLeaf], specs: Mapping[str, TensorSpec]) -> Resolved:
    """Return leaves with the prefixes of wrapped submodules in their names, where a checkpoint has those. Pure."""
    found = {name: leaf for name, leaf in wrapped_leaves.items() if name not in specs and leaf_name(leaf) in specs}
    return Resolved([*found.values()], [*found])


def _others_as_01_named_them(
    now: Iterable[Leaf],
    then: Iterable[Leaf],
    with_prefix: Container[str],
    specs: Mapping[str, TensorSpec],
    objects: Mapping[str, Any],
) -> Resolved:
    """Return the same of what a module has made for its ``state_dict``, in place of the leaves of `now`."""
    if not any(each in with_prefix or is_below(each, with_prefix) for each in (*specs, *objects)):
        return Resolved()
    leaves = {leaf_name(leaf): leaf for leaf in then if isinstance(leaf, TensorLeaf | ObjectLeaf)}
    parts = tuple(leaf for leaf in then if isinstance(leaf, DynamicPart | Finish))
    tree = StateTree({}, {}, parts).with_leaves(leaves).resolved(specs, objects)

    def finish_all() -> None:
        for finish in tree.finishes:
            if isinstance(finish, Finish):
                finish.run()

    return Resolved(
        [*tree.tensors.values(), *tree.objects.values()],
        [leaf_name(leaf) for leaf in now if isinstance(leaf, TensorLeaf | ObjectLeaf)],
        Finish(finish_all),
        tree.ignored,
        tree.fresh,
    )


def _memories(module: Any) -> dict[Any, Any]:
    """Return how ranks share what is in the memory of parameters and buffers."""
    buffers = {_memory(buffer, name): "root" for name, buffer in module.named_buffers()}
    return buffers | {_memory(parameter, name): "replicated" for name, parameter in module.named_parameters()}


def _memory(tensor: torch.Tensor, name: str) -> Any:
    """Return where a tensor's values are, and which they are of those there."""
    held = plain(tensor, name)
    return held.data_ptr(), held.device, held.dtype, tuple(held.shape), held.stride()


def _other_leaves(
    module: Any, name: str, held: dict[str, Any], others: dict[str, Any], resized: Mapping[str, torch.Tensor]
) -> Iterator[Leaf]:
    """Yield what a module has made for its ``state_dict``; it gets that back, as does one that loads in its own way."""
    keys = _plain_keys(module, held)

    def load(found: Mapping[Any, Any]) -> None:
        state = copy.copy(held)  # with the versions of the modules, which a new dict would lack
        state.update(
            {**resized, **{key: found[own] for key, short in keys.items() for own in (short, key) if own in found}}
        )
        with torch.no_grad():
            module.load_state_dict(state)

    if others:
        own = {keys[key]: value for key, value in others.items()}
        now = list(state_dict_leaves(own, name, load, default="torch", free=_EXTRA))
        yield from now
        if own.keys() != others.keys():
            then = list(state_dict_leaves(others, name, load, default="torch", free=_EXTRA))
            with_prefix = {join(name, key) for key in others if key != keys[key]}

            def resolve(specs: Mapping[str, TensorSpec], objects: Mapping[str, Any]) -> Resolved:
                return _others_as_01_named_them(now, then, with_prefix, specs, objects)

            yield DynamicPart(resolve, name)
    elif any(map(_loads_in_its_own_way, module.modules())):
        yield Finish(lambda: load({}))


def _loads_in_its_own_way(module: Any) -> bool:
    own = type(module)
    has_hooks = module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks
    return bool(has_hooks) or _has_own_load(own) or own.load_state_dict is not torch.nn.Module.load_state_dict


def _has_own_load(cls: type[Any]) -> bool:
    """Return True for classes with a ``_load_from_state_dict`` that is not that of PyTorch's layers."""
    return not cls._load_from_state_dict.__module__.startswith("torch.nn.")


# -- buffers that a module resizes when it is loaded ------------------------------------------------


def _resizable_parts(module: Any, name: str, resized: dict[str, torch.Tensor]) -> Iterator[DynamicPart]:
    """Yield what takes buffers of other shapes from a checkpoint, into `resized`, if their modules take them."""
    owners = {
        ".".join(filter(None, [prefix, buffer])): (owner, buffer)
        for prefix, owner in module.named_modules(remove_duplicate=False)
        if _has_own_load(type(owner))
        for buffer in owner._buffers
    }
    keys = _plain_keys(module, owners)

    def resolve(specs: Mapping[str, TensorSpec], _objects: Mapping[str, Any]) -> Resolved:
        resized.clear()
        leaves = []
        for key, (owner, buffer) in owners.items():
            spec = specs.get(join(name, keys[key]))
            if spec is not None and spec.kind != "per-rank" and _takes(owner, buffer, spec):
                resized[key], leaf = new(spec)
                leaves.append(leaf)
        return Resolved(leaves)

    if owners:
        yield DynamicPart(resolve)


def _takes(module: Any, buffer: str, spec: TensorSpec) -> bool:
    """Return True if a module takes a buffer of another shape than it has; tried on a copy of it."""
    own = module._buffers[buffer]
    if own is None or tuple(own.shape) == spec.shape or str(own.dtype) != f"torch.{spec.dtype}":
        return False
    errors: list[str] = []
    try:
        probe = _copy_of(module)
        state = probe.state_dict()
        state[buffer] = torch.zeros(spec.shape, dtype=own.dtype, device=own.device)
        with torch.no_grad():
            probe._load_from_state_dict(state, "", state._metadata.get("", {}), True, [], [], errors)
    except Exception:  # noqa: BLE001 - it needs its submodules, or refuses in its own way: its shape is not changed
        return False
    return not errors


def _copy_of(module: Any) -> Any:
    """Return a module without its submodules, with copies of its tensors."""
    found = copy.copy(module)
    found._buffers = {key: None if value is None else value.clone() for key, value in module._buffers.items()}
    found._parameters = {
        key: None if value is None else torch.nn.Parameter(value.detach().clone(), value.requires_grad)
        for key, value in module._parameters.items()
    }
    found._modules = {}
    return found


# -- buffers of each rank --------------------------------------------------------------------------


def _own_buffers(module: Any, name: str) -> Iterator[Leaf]:
    """Yield this rank's buffers as one line of bytes, put back when rank 0's are there."""
    held = {key: value for key, value in module.state_dict().items() if isinstance(value, torch.Tensor)}
    kinds = _memories(module)
    keys = _plain_keys(module, held)
    buffers = {keys[key]: value for key, value in held.items() if kinds.get(_memory(value, key)) == "root"}
    packed = pack({key: as_array(plain(value).cpu().contiguous()) for key, value in buffers.items()})
    found: list[Array] = []
    yield TensorLeaf(declare(packed, name, "per-rank"), lambda: packed, found.append)
    yield Finish(lambda: _put_back(module, buffers, found))


def _put_back(module: Any, buffers: Mapping[str, torch.Tensor], found: list[Array]) -> None:
    if not found:
        return
    packed, _ = unpack(found.pop())
    keys = _plain_keys(module, packed)
    arrays = {keys[key]: array for key, array in packed.items()}
    now = module.state_dict()  # a module may have replaced its buffers when it was loaded
    buffers = {short: now[key] for key, short in _plain_keys(module, now).items() if short in buffers}
    with torch.no_grad():
        for key in arrays.keys() & buffers.keys():
            buffers[key].copy_(from_array(arrays[key], buffers[key].dtype))
