"""Modules, optimizers, schedulers, streams and loaders come back exactly, into things built just now."""

from __future__ import annotations

import random
import shutil
from typing import Any

import numpy as np
import pytest
import torch

import hpcckpt as hc
from hpcckpt.errors import (
    CorruptError,
    NoRestorableStepError,
    OptionError,
    ReplicaMismatchError,
    StateError,
    StateMismatchError,
    StepNotFoundError,
)
from hpcckpt.state.tree import flatten
from tests.support.torch_trainings import assert_same, net, save_and_restore, train
from tests.support.undrained import killed_before_the_first_drain

optim, schedules = torch.optim, torch.optim.lr_scheduler


# -- optimizers ----------------------------------------------------------------------------------

OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adagrad": {},
    "Adadelta": {},
    "Adamax": {},
    "ASGD": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.1, "centered": True},
    "Rprop": {},
    "LBFGS": {"max_iter": 3, "history_size": 2},
}


@pytest.mark.filterwarnings("ignore:Converting a tensor")  # PyTorch's own, in LBFGS
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_built_just_now_goes_on_as_the_saved_one(run_dir, kind):
    def made(seed: int) -> tuple[Any, Any]:
        model = net(seed)
        return model, getattr(optim, kind)(model.parameters(), lr=0.01, **OPTIMIZERS[kind])

    model, optimizer = made(1)
    train(model, optimizer, 3)
    blank, fresh = made(2)
    save_and_restore(run_dir, {"model": model, "optimizer": optimizer}, {"model": blank, "optimizer": fresh})
    assert_same(fresh.state_dict(), optimizer.state_dict())
    assert train(blank, fresh, 4) == train(model, optimizer, 4)
    assert_same(blank.state_dict(), model.state_dict())


def test_the_names_are_pytorchs(run_dir):
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train_once(model, optimizer)
    tree = flatten({"model": model, "optimizer": optimizer})
    assert [*tree.tensors] == [
        "model/0.bias",
        "model/0.weight",
        "optimizer/state/0/momentum_buffer",
        "optimizer/state/1/momentum_buffer",
    ]
    assert [*tree.objects] == ["optimizer/param_groups"]


def train_once(model: Any, optimizer: Any) -> None:
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()


def test_an_optimizer_that_has_more_state_than_the_checkpoint_loses_it(run_dir):
    model = torch.nn.Linear(2, 1)
    saved, used = (optim.Adam(model.parameters(), lr=rate) for rate in (0.5, 0.1))
    train_once(model, used)
    save_and_restore(run_dir, {"optimizer": saved}, {"optimizer": used})
    assert used.state_dict() == saved.state_dict()


def test_moments_keep_their_dtype_beside_bfloat16_weights(run_dir):
    def made() -> tuple[Any, Any]:
        model = torch.nn.Linear(2, 1).to(torch.bfloat16)
        return model, optim.Adam(model.parameters())

    model, optimizer = made()
    optimizer.state[model.weight] = {"step": torch.tensor(1.0), "exp_avg": torch.full((1, 2), 1.0 + 2**-20)}
    blank, fresh = made()
    save_and_restore(run_dir, {"m": model, "o": optimizer}, {"m": blank, "o": fresh})
    assert fresh.state[blank.weight]["exp_avg"].dtype == torch.float32
    assert torch.equal(fresh.state[blank.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_another_optimizers_groups_are_refused_before_anything_changes(run_dir, rate):
    model = torch.nn.Linear(2, 1)
    blank = torch.nn.Linear(2, 1)
    before = blank.weight.detach().clone()
    saved = {"a_model": model, "optimizer": optim.Adam(model.parameters(), lr=rate)}
    with pytest.raises(StateMismatchError, match="groups of 2 parameters, this optimizer of 1"):
        save_and_restore(run_dir, saved, {"a_model": blank, "optimizer": optim.Adam([blank.weight], lr=rate)})
    assert torch.equal(blank.weight, before)


def test_without_strict_an_optimizer_of_other_groups_is_left_as_it_is_with_a_warning(run_dir):
    model, blank = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    saved, used = (
        optim.SGD(model.parameters(), lr=0.1),
        optim.SGD([{"params": [p]} for p in blank.parameters()], lr=0.5),
    )
    hc.torch.save(run_dir, 1, model=model, optimizer=saved)
    restored = hc.torch.restore(run_dir, model=blank, optimizer=used, strict=False)
    assert torch.equal(blank.weight, model.weight)
    assert [group["lr"] for group in used.param_groups] == [0.5, 0.5]
    assert any("groups of 2 parameters, this optimizer of 1, 1" in text for text in restored.warnings)


CLASSES = {
    "SGD": lambda p: optim.SGD(p, lr=0.1), "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": optim.Adam, "AdamW": optim.AdamW, "amsgrad": lambda p: optim.Adam(p, amsgrad=True),
    "RMSprop": optim.RMSprop, "tensor rate": lambda p: optim.Adam(p, lr=torch.tensor(0.1)),
}  # fmt: skip


@pytest.mark.parametrize("is_used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize(
    ("then", "now"),
    [("SGD", "Adam"), ("momentum", "Adam"), ("Adam", "SGD"), ("Adam", "RMSprop"), ("RMSprop", "tensor rate"),
     ("tensor rate", "SGD")],
)  # fmt: skip
def test_an_optimizer_of_another_class_is_refused_before_anything_changes(run_dir, then, now, is_used):
    model, blank = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    saved, fresh = CLASSES[then](model.parameters()), CLASSES[now](blank.parameters())
    schedules.StepLR(saved, 2)  # gives the groups an option more
    train_once(model, saved)
    if is_used:
        train_once(blank, fresh)
    before = [each.detach().clone() for each in blank.parameters()], repr(fresh.state_dict())
    with pytest.raises(StateMismatchError, match="optimizer: is of another class: ") as raised:
        save_and_restore(run_dir, {"a": model, "optimizer": saved}, {"a": blank, "optimizer": fresh})
    assert str(raised.value).count("of another class") == 1
    assert "params" not in str(raised.value)
    assert all(map(torch.equal, before[0], blank.parameters()))
    assert repr(fresh.state_dict()) == before[1]


class Older(optim.SGD):
    """An optimizer of the program that has got an option more since the save."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self.defaults["warm_up"] = 0


@pytest.mark.parametrize(
    ("then", "now"), [("AdamW", "Adam"), ("Adam", "amsgrad"), ("SGD", "momentum"), ("tensor rate", "Adam")]
)
def test_an_optimizer_of_another_class_with_the_same_options_is_accepted(run_dir, then, now):
    model, blank = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    saved = CLASSES[then](model.parameters())
    train_once(model, saved)
    fresh = CLASSES[now](blank.parameters())
    save_and_restore(run_dir, {"a": model, "optimizer": saved}, {"a": blank, "optimizer": fresh})
    train_once(blank, fresh)


class Bare(optim.Optimizer):
    """A wrapper as Lookahead is often written: without the attributes of its base, and options in another form."""

    def __init__(self, base: Any) -> None:
        self.base, self.options = base, {"k": 5}

    @property
    def param_groups(self) -> Any:
        return self.base.param_groups

    @property
    def state(self) -> Any:
        return self.base.state

    def state_dict(self) -> dict[str, Any]:
        held = self.base.state_dict()
        groups = [{"params": each["params"], "options": {"lr": each["lr"]}} for each in held["param_groups"]]
        return {"state": held["state"], "param_groups": groups}

    def load_state_dict(self, state: Any) -> None:
        groups = [
            {**own, "lr": each["options"]["lr"]}
            for own, each in zip(self.base.state_dict()["param_groups"], state["param_groups"], strict=True)
        ]
        self.base.load_state_dict({"state": state["state"], "param_groups": groups})


class Asserting(optim.SGD):
    """A class of the program that sets an option with its first step, and has got another one since."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.defaults["added"] = 1

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        assert all(group["lr"] > 0 for group in self.param_groups)


@pytest.mark.parametrize("make", [lambda p, lr: Bare(optim.SGD(p, lr=lr)), Asserting], ids=["bare", "asserting"])
def test_optimizers_of_the_program_are_not_judged_by_their_options(run_dir, make):
    model, blank = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    saved, fresh = make(list(model.parameters()), 0.25), make(list(blank.parameters()), 0.5)
    saved.param_groups[0]["calls"] = 3
    save_and_restore(run_dir, {"a": model, "optimizer": saved}, {"a": blank, "optimizer": fresh})
    assert fresh.param_groups[0]["lr"] == 0.25


def test_groups_of_an_older_pytorch_with_an_option_of_the_program_are_accepted(run_dir):
    model, blank = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    saved, fresh = optim.Adam(model.parameters(), lr=0.25), optim.Adam(blank.parameters())
    train_once(model, saved)
    saved.param_groups[0]["lr_scale"] = 0.5
    del saved.param_groups[0]["maximize"]  # PyTorch 1.10 had none
    save_and_restore(run_dir, {"a": model, "optimizer": saved}, {"a": blank, "optimizer": fresh})
    group = fresh.param_groups[0]
    assert (group["lr"], group["lr_scale"], group["maximize"]) == (0.25, 0.5, False)


def test_an_optimizer_whose_class_has_got_an_option_more_is_accepted(run_dir):
    model, blank = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    saved = optim.SGD(model.parameters(), lr=0.1)
    schedules.StepLR(saved, 2)
    fresh = Older(blank.parameters(), lr=0.5)
    save_and_restore(run_dir, {"a": model, "optimizer": saved}, {"a": blank, "optimizer": fresh})
    assert fresh.param_groups[0]["lr"] == 0.1


def test_what_cannot_be_restored_in_place_is_in_the_objects(run_dir):
    fixed, fixed_now = np.arange(3.0), np.zeros(3)
    fixed_now.setflags(write=False)
    hc.torch.save(run_dir, 1, model=net(), best=np.float64(0.25), fixed=fixed, number=0.5)
    restored = hc.torch.restore(run_dir, model=net(), best=np.float64("inf"), fixed=fixed_now, number=np.float32(9))
    found = {name: np.asarray(value).tolist() for name, value in restored.objects.items()}
    assert found == {"best": 0.25, "fixed": [0.0, 1.0, 2.0], "number": 0.5}


SCHEDULERS = {
    "StepLR": lambda o: schedules.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, [2, 5]),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.1, 20),
    "ReduceLROnPlateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0, threshold=0.5),
    "SequentialLR": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.1, total_iters=3), schedules.ExponentialLR(o, 0.9)], [3]
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_schedule_goes_on(run_dir, kind):
    def made(seed: int) -> tuple[Any, Any, Any]:
        model = net(seed)
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return model, optimizer, SCHEDULERS[kind](optimizer)

    model, optimizer, scheduler = made(1)
    train(model, optimizer, 4, scheduler)
    blank, fresh, schedule = made(2)
    hc.torch.save(run_dir, 4, model=model, optimizer=optimizer, scheduler=scheduler)
    hc.torch.restore(run_dir, model=blank, optimizer=fresh, scheduler=schedule)
    assert train(blank, fresh, 5, schedule) == train(model, optimizer, 5, scheduler)
    assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_schedules_that_share_a_tensor_now_get_a_value_each(run_dir):
    def made() -> tuple[Any, ...]:
        model = torch.nn.Linear(2, 2)
        optimizer = optim.Adam(model.parameters(), lr=torch.tensor(0.01))
        return model, optimizer, SCHEDULERS["SequentialLR"](optimizer)

    model, optimizer, scheduler = made()
    train_steps(model, optimizer, scheduler, 4)
    blank, fresh, schedule = made()
    hc.torch.save(run_dir, 4, model=model, optimizer=optimizer, scheduler=scheduler)
    hc.torch.restore(run_dir, model=blank, optimizer=fresh, scheduler=schedule)
    assert schedule.get_last_lr() == scheduler.get_last_lr()
    assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def train_steps(model: Any, optimizer: Any, scheduler: Any, n_steps: int) -> None:
    for _ in range(n_steps):
        train_once(model, optimizer)
        scheduler.step()


# -- modules -------------------------------------------------------------------------------------


def test_parameters_are_restored_in_their_own_memory_and_still_train(run_dir):
    model, blank = net(1), net(2)
    places = [parameter.data_ptr() for parameter in blank.parameters()]
    save_and_restore(run_dir, {"model": model}, {"model": blank})
    assert_same(dict(blank.state_dict()), dict(model.state_dict()))
    assert [parameter.data_ptr() for parameter in blank.parameters()] == places
    assert all(parameter.requires_grad for parameter in blank.parameters())


def test_tied_weights_stay_tied(run_dir):
    def tied(value: float) -> Any:
        model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
        model[1].weight = model[0].weight
        torch.nn.init.constant_(model[0].weight, value)
        return model

    blank = tied(0.0)
    save_and_restore(run_dir, {"model": tied(2.0)}, {"model": blank})
    assert blank[0].weight is blank[1].weight
    assert blank[0].weight.min() == 2.0
    assert set(hc.load(run_dir)) == {"model/0.weight", "model/1.weight"}  # as in PyTorch's own state_dict


def test_a_model_and_its_uncopied_state_dict_are_refused_if_they_differ(run_dir):
    saved = torch.nn.Linear(2, 2)
    hc.torch.save(run_dir, 1, model=saved, best=torch.nn.Linear(2, 2).state_dict())
    blank = torch.nn.Linear(2, 2)
    before = blank.weight.tolist()
    with pytest.raises(StateMismatchError, match="'model/weight': has the memory of 'best/weight' in the state"):
        hc.torch.restore(run_dir, model=blank, best=blank.state_dict())
    assert blank.weight.tolist() == before


class Odd(torch.nn.Module):
    """Has what is no tensor in its state, and loads in another way."""

    def __init__(self, seen: int = 0) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(2))
        self.seen, self.loads = seen, 0

    def get_extra_state(self) -> Any:
        return {"seen": self.seen, "table": {3: torch.arange(self.seen)}}

    def set_extra_state(self, state: Any) -> None:
        self.seen, self.table = state["seen"], state["table"]

    def _load_from_state_dict(self, *args: Any) -> None:
        self.loads += 1
        super()._load_from_state_dict(*args)


def test_extra_state_comes_back_through_the_modules_own_hooks(run_dir):
    blank = Odd()
    save_and_restore(run_dir, {"model": torch.nn.ModuleList([Odd(4)])}, {"model": torch.nn.ModuleList([blank])})
    assert (blank.seen, blank.table[3].tolist(), blank.loads) == (4, [0, 1, 2, 3], 1)


@pytest.mark.parametrize("wrap", [torch.nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_wrappers_change_no_names(run_dir, wrap):
    blank = net(2)
    save_and_restore(run_dir, {"model": wrap(net(1))}, {"model": blank})
    assert_same(dict(blank.state_dict()), dict(net(1).state_dict()))


class Wrapped(torch.nn.Module):
    """Has wrappers within it, one in another, and statistics."""

    def __init__(self, wrap: bool, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), Odd(seed))
        inner[1].running_mean.fill_(seed)
        if wrap:
            inner[0] = torch.compile(inner[0], backend="eager")
            inner = torch.nn.DataParallel(torch.compile(inner, backend="eager"))
        self.inner, self.module = inner, torch.nn.Linear(1, 1)


@pytest.mark.parametrize("policy", ["rank0", "per-rank"])
@pytest.mark.parametrize("wrapped", [(True, False), (False, True), (True, True)])
def test_wrappers_of_submodules_change_no_names(run_dir, wrapped, policy):
    model, blank = (Wrapped(is_wrapped, seed) for seed, is_wrapped in enumerate(wrapped, start=1))
    for each in (model, blank):
        hc.torch.batch_norm(each, policy)
    save_and_restore(run_dir, {"model": model}, {"model": blank})
    assert {"model/inner.0.weight", "model/module.weight"} <= set(hc.load(run_dir))
    states = [each.cpu().state_dict() for each in (model, blank)]  # DataParallel moves its module to a GPU
    for mine, theirs in zip(*(state.values() for state in states), strict=True):
        assert_same(mine, theirs)


def test_a_step_with_the_names_of_wrapped_submodules_can_be_restored(run_dir):
    saved, blank = (torch.nn.Sequential(torch.nn.DataParallel(torch.nn.Linear(2, 2))) for _ in range(2))
    tensors = {f"model/{key}": value for key, value in saved.state_dict().items()}  # as 0.1 named them
    save_and_restore(run_dir, tensors, {"model": blank})
    assert_same(dict(blank.state_dict()), dict(saved.state_dict()))


class Extra(torch.nn.Linear):
    """Has state beside its tensors."""

    own: Any = None

    def get_extra_state(self) -> Any:
        return self.own

    def set_extra_state(self, state: Any) -> None:
        self.own = state


@pytest.mark.parametrize("extra", [{"n": 7}, 7])
def test_extra_state_of_wrapped_submodules_is_restored_from_the_names_of_01(run_dir, extra):
    saved, blank = (torch.nn.Sequential(torch.nn.DataParallel(Extra(2, 2))) for _ in range(2))
    blank[0].module.own = {"n": 0} if isinstance(extra, dict) else 0
    tensors = {f"model/{key}": value for key, value in saved.state_dict().items() if torch.is_tensor(value)}
    save_and_restore(run_dir, {**tensors, "model/0.module._extra_state": extra}, {"model": blank})
    assert blank[0].module.own == extra
    assert_same(dict(blank[0].module.named_parameters()), dict(saved[0].module.named_parameters()))


class Versioned(torch.nn.Module):
    """Loads what its own version has saved."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.w, self.seen = torch.nn.Parameter(torch.rand(2)), None

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *args: Any) -> None:
        self.seen = metadata.get("version")
        super()._load_from_state_dict(state, prefix, metadata, *args)


def test_a_module_that_loads_in_its_own_way_is_given_its_version(run_dir):
    blank = torch.nn.Sequential(Versioned())
    save_and_restore(run_dir, {"model": torch.nn.Sequential(Versioned())}, {"model": blank})
    assert blank[0].seen == 2


class Resizing(torch.nn.Module):
    """Makes its buffer when it is loaded, of the shape that was saved, if it may."""

    def __init__(self, n: int = 0, may_resize: bool = True) -> None:
        super().__init__()
        self.may_resize, self.w = may_resize, torch.nn.Parameter(torch.full((2,), float(n)))
        self.register_buffer("q", torch.rand(n, 2))

    def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
        if self.may_resize:
            self.q = torch.empty_like(state[prefix + "q"])
        super()._load_from_state_dict(state, prefix, *args)


@pytest.mark.parametrize("n", [0, 5])
def test_a_module_that_resizes_its_buffers_gets_those_that_were_saved(run_dir, n):
    model, blank = (torch.nn.Sequential(Resizing(size)) for size in (3, n))
    save_and_restore(run_dir, {"model": model}, {"model": blank})
    assert_same(dict(blank.state_dict()), dict(model.state_dict()))


def test_observers_of_quantization_come_back_into_new_ones(run_dir):
    observer = torch.ao.quantization.PerChannelMinMaxObserver
    model, blank = observer(), observer()
    model(torch.randn(4, 2))
    save_and_restore(run_dir, {"model": model}, {"model": blank})
    assert_same(dict(blank.state_dict()), dict(model.state_dict()))


def test_a_module_that_does_not_resize_its_buffers_is_refused_unchanged(run_dir):
    blank = Resizing(1, may_resize=False)
    hc.torch.save(run_dir, 1, model=Resizing(3))
    with pytest.raises(StateMismatchError, match=r"model/q': has shape \(3, 2\) in the checkpoint and \(1, 2\)"):
        hc.torch.restore(run_dir, model=blank)
    assert blank.w.tolist() == [1, 1]


def test_a_model_that_is_not_built_says_what_to_do():
    with pytest.raises(StateError, match="call the model once"):
        flatten({"model": torch.nn.LazyLinear(2)})


def test_another_model_is_refused_by_name_and_what_fits_can_be_taken(run_dir):
    hc.torch.save(run_dir, 1, model=torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 4)))
    other = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 9))
    with pytest.raises(
        StateMismatchError, match=r"model/1\.weight': has shape \(4, 3\) in the checkpoint and \(9, 3\)"
    ):
        hc.torch.restore(run_dir, model=other)
    restored = hc.torch.restore(run_dir, model=other, strict=False)
    assert other[0].weight.detach().numpy().tolist() == hc.load(run_dir)["model/0.weight"].tolist()
    assert any("model/1.weight" in text for text in restored.warnings)


def test_statistics_of_batch_norm_are_rank_0s_or_each_ranks_own(ranks, run_dir):
    def body(comm):
        found = {}
        for policy in ("rank0", "per-rank"):
            model, blank = (torch.nn.BatchNorm1d(3) for _ in range(2))
            model.running_mean.fill_(float(comm.rank))
            for each in (model, blank):
                hc.torch.batch_norm(each, policy)
            with hc.Checkpointer(run_dir / policy, comm=comm) as ckpt:
                hc.torch.save(ckpt, 1, model=model)
                hc.torch.restore(ckpt, model=blank)
            found[policy] = float(blank.running_mean[0])
        return found["rank0"], found["per-rank"]

    assert ranks(body) == [(0.0, float(rank)) for rank in range(ranks.size)]


# -- streams and loaders -------------------------------------------------------------------------


def draw() -> tuple[float, ...]:
    numpy = float(np.random.random_sample())  # noqa: NPY002 - what programs draw from
    return random.gauss(0, 1), numpy, float(torch.rand(())), float(torch.randn(()))


def test_random_streams_come_back_and_other_ranks_get_others(run_dir):
    draw()
    hc.torch.save(run_dir, 1, rng=hc.torch.rng_state(0, 1))
    expected = [draw(), draw()]
    hc.torch.restore(run_dir, rng=hc.torch.rng_state(0, 1))
    assert [draw(), draw()] == expected
    others = []
    for rank in (0, 1, 0):
        hc.torch.rng_state(rank, 2).load_state_dict({"n_ranks": 1, "seed": 5})
        others.append(draw())
    assert others[0] == others[2]
    assert len({expected[0], *others}) == 3


def test_generators_are_each_ranks_own(ranks, run_dir):
    def body(comm):
        saved, blank = torch.Generator().manual_seed(comm.rank), torch.Generator()
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            ckpt.save(1, {"g": saved}).result()
            ckpt.restore({"g": blank})
        return torch.rand(2, generator=saved).tolist() == torch.rand(2, generator=blank).tolist()

    assert all(ranks(body))


class Loader:
    """A data loader that knows its position, which differs by rank."""

    def __init__(self, position: int = 0) -> None:
        self.position, self.buffer = position, {0: torch.arange(position)}

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "buffer": self.buffer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.buffer = state["position"], state["buffer"]


@pytest.mark.counts(1, 2, 5)
def test_what_each_rank_has_for_itself_comes_back_to_it(ranks, run_dir):
    def body(comm):
        blank = Loader()
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            hc.torch.save(ckpt, 1, data=hc.torch.per_rank(Loader(comm.rank + 2)))
            hc.torch.restore(ckpt, data=hc.torch.per_rank(blank))
        return blank.position, blank.buffer[0].tolist()

    assert ranks(body) == [(rank + 2, [*range(rank + 2)]) for rank in range(ranks.size)]


class Growing:
    """A loader whose state_dict has keys only after it was used."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


def test_what_each_rank_has_for_itself_may_grow_with_use(run_dir):
    saved, blank = Growing(pos=5, buffer=torch.arange(3), inner=Growing(epoch=2)), Growing(inner=Growing())
    save_and_restore(run_dir, {"data": hc.torch.per_rank(saved)}, {"data": hc.torch.per_rank(blank)})
    assert (blank.state["pos"], blank.state["buffer"].tolist()) == (5, [0, 1, 2])
    assert blank.state["inner"].state == {"epoch": 2}


@pytest.mark.parametrize(
    ("now", "named"),
    [(torch.nn.Linear(2, 1), "model/bias.* in the state"), (torch.nn.Linear(3, 1, bias=False), r"\(1, 2\).*\(1, 3\)")],
)
def test_another_model_of_each_rank_is_refused_by_name(run_dir, now, named):
    hc.torch.save(run_dir, 1, mine=hc.torch.per_rank(torch.nn.Linear(2, 1, bias=False)))
    with pytest.raises(StateMismatchError, match=named):
        hc.torch.restore(run_dir, mine=hc.torch.per_rank(now))


# -- save and restore ----------------------------------------------------------------------------


def test_json_values_come_back_as_objects_and_parts_may_be_left_out(run_dir):
    model, optimizer = net(1), None
    optimizer = optim.Adam(model.parameters())
    train(model, optimizer, 1)
    saved = hc.torch.save(run_dir, 3, model=model, optimizer=optimizer, epoch=2, names=["a"], metrics={"loss": 0.5})
    blank = net(2)
    restored = hc.torch.restore(run_dir, model=blank)
    assert saved.result().step == restored.step == 3
    assert (restored.objects, restored.metrics, restored.warnings) == ({"epoch": 2, "names": ["a"]}, {"loss": 0.5}, ())
    assert_same(dict(blank.state_dict()), dict(model.state_dict()))


def test_a_run_that_begins_has_nothing_to_restore(run_dir):
    with pytest.raises(StepNotFoundError):
        hc.torch.restore(run_dir, model=net())
    assert hc.torch.restore(run_dir, model=net(), must_exist=False) is None
    with pytest.raises(OptionError, match="nothing to save"):
        hc.torch.save(run_dir, 1, epoch=3)


def test_with_scratch_a_step_is_in_the_run_directory_when_the_checkpointer_is_closed(tmp_path):
    model = net()
    with hc.Checkpointer(tmp_path / "run", scratch=tmp_path / "scratch") as ckpt:
        assert hc.torch.save(ckpt, 1, model=model).result().tier == "scratch"
    shutil.rmtree(tmp_path / "scratch")
    other = net()
    assert hc.torch.restore(tmp_path / "run", model=other).step == 1
    assert_same(other.state_dict(), model.state_dict())


def test_a_run_whose_only_step_is_on_scratch_does_not_begin_anew(tmp_path):
    run, scratch = tmp_path / "run", tmp_path / "scratch"
    with killed_before_the_first_drain(run, scratch), hc.Checkpointer(run, scratch=scratch) as ckpt:
        hc.torch.save(ckpt, 1, model=net())
    with hc.Checkpointer(run, scratch=scratch) as ckpt:
        restored = hc.torch.restore(ckpt, model=net(), must_exist=False)
        assert restored is not None
        assert restored.step == 1


def test_where_all_is_damaged_a_run_does_not_begin_anew(run_dir, damage):
    saved = hc.torch.save(run_dir, 1, model=net()).result()
    damage.flip(damage.first_file(saved.path), -1)
    with pytest.raises(NoRestorableStepError):
        hc.torch.restore(run_dir, model=net(), must_exist=False)
    with pytest.raises(CorruptError):
        hc.torch.restore(run_dir, model=net(), step=1)


def test_nothing_on_disk_is_pickled(run_dir):
    for seed in (random.seed, np.random.seed, torch.manual_seed):  # or the three bytes may be there by chance
        seed(1)
    model = Odd(3)
    train_state = optim.Adam(model.parameters())
    saved = hc.torch.save(run_dir, 1, model=model, optimizer=train_state, rng=hc.torch.rng_state()).result()
    for path in saved.path.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        assert b"\x80\x02}" not in data
        assert b"torch._utils" not in data
    assert "optimizer/param_groups" in (saved.path / "manifest.json").read_text(encoding="utf-8")


def test_ranks_write_a_model_together(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt:
            return hc.torch.save(ckpt, 1, model=constant(1.0)).result().files

    assert ranks(body) == [ranks.size] * ranks.size


def constant(value: float) -> Any:
    model = torch.nn.Linear(40, 30)
    torch.nn.init.constant_(model.weight, 1.0)
    torch.nn.init.constant_(model.bias, value)
    return model


@pytest.mark.counts(2, 3)
def test_ranks_whose_parameters_differ_are_named(ranks, run_dir):
    def body(comm):
        with hc.Checkpointer(run_dir, comm=comm) as ckpt, pytest.raises(ReplicaMismatchError) as caught:
            hc.torch.save(ckpt, 1, model=constant(float(comm.rank))).result()
        return "'model/bias' on rank 1" in str(caught.value), "model/weight" in str(caught.value)

    assert ranks(body) == [(True, False)] * ranks.size


# -- the same memory, in another form ---------------------------------------------------------------


def _numpys_view(w: torch.Tensor) -> Any:
    return w.numpy()


def _sharded(w: torch.Tensor) -> Any:
    return hc.Sharded(hc.torch.as_array(w), tuple(w.shape), (0, 0))


VIEWS = {
    "flat": torch.flatten,
    "part": lambda w: w[:1],
    "transposed": torch.t,
    "numpy": _numpys_view,
    "shard": _sharded,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("name", ["a", "z"])
def test_another_form_of_a_tensors_memory_is_refused_if_the_values_differ(run_dir, view, name):
    w = torch.arange(6.0).reshape(2, 3)
    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"w": w, name: view(w + 1)}).result()
        ckpt.save(2, {"w": w, name: view(w)}).result()
    new = torch.zeros(2, 3)
    with hc.Checkpointer(run_dir) as ckpt:
        with pytest.raises(StateMismatchError, match=r"has the memory of .* another value in the checkpoint"):
            ckpt.restore({"w": new, name: view(new)}, 1)
        assert not new.any()
        ckpt.restore({"w": new, name: view(new)}, 2)
    assert torch.equal(new, w)


def test_one_generator_or_optimizer_under_two_names_gets_its_state_or_is_refused(run_dir):
    def optimizer(n_steps: int) -> torch.optim.Adam:
        parameter = torch.nn.Parameter(torch.zeros(2))
        made = torch.optim.Adam([parameter], lr=0.1 * (n_steps + 1))
        parameter.grad = torch.ones(2)
        for _ in range(n_steps):
            made.step()
        return made

    with hc.Checkpointer(run_dir) as ckpt:
        ckpt.save(1, {"a": torch.Generator().manual_seed(1), "b": torch.Generator().manual_seed(7)}).result()
        generator = torch.Generator().manual_seed(3)
        with pytest.raises(StateMismatchError, match="'b': has the memory of 'a'"):
            ckpt.restore({"a": generator, "b": generator})
        assert generator.initial_seed() == 3
        ckpt.save(2, {"a": optimizer(2), "b": optimizer(0)}).result()
        held = optimizer(0)
        for strict in (True, False):
            with pytest.raises(StateMismatchError, match="has the memory of"):
                ckpt.restore({"a": held, "b": held}, strict=strict)
        assert held.state_dict()["state"] == {}


# -- values in another form than they were saved in -------------------------------------------------


@pytest.mark.parametrize("given", [[], [0.0]])
def test_a_list_of_scalars_comes_back_as_a_list_where_the_program_has_one(run_dir, given):
    saved = [np.float64(1), np.float32(2), 3]
    hc.torch.save(run_dir, 1, model=torch.nn.Linear(1, 1), losses=saved).result()
    restored = hc.torch.restore(run_dir, model=torch.nn.Linear(1, 1), losses=given)
    assert restored is not None
    assert restored.objects["losses"] == saved


def test_scalars_come_back_as_objects_where_the_program_has_plain_values(run_dir):
    last = {"loss": np.float64(1.5), "acc": 0.5}
    hc.torch.save(run_dir, 1, model=net(), best=np.float64(0.2), loss=torch.tensor(0.5), last=last, epoch=3)
    restored = hc.torch.restore(run_dir, model=net(), best=0.0, loss=float("inf"), last={}, epoch=0)
    assert restored.objects == {"best": 0.2, "loss": 0.5, "last": last, "epoch": 3}


@pytest.mark.parametrize("now", [None, 0, {}])
def test_more_than_plain_values_where_the_program_has_some_is_told_of(run_dir, now, caplog):
    history = {"loss": [np.float64(1.5)]}
    hc.torch.save(run_dir, 1, model=net(), best=net().state_dict(), history=history)
    restored = hc.torch.restore(run_dir, model=net(), best=now, history=now)
    assert restored.objects == {}
    for name in ("best", "history"):
        assert (f"{name} is more than plain values in the checkpoint, and is not restored" in caplog.text) == (
            now is not None
        )


# -- optimizers and modules of other libraries ------------------------------------------------------


class Preconditioned(optim.Optimizer):
    """Has tensors in lists and dicts of its state, as Shampoo and SOAP do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        del closure
        for parameter in self.param_groups[0]["params"]:
            own = self.state[parameter]
            if not own:
                own["GG"] = [torch.full((2,), 1.001), (torch.full((1,), 2.001), {"q": torch.full((1,), 3.001)})]


def test_tensors_within_lists_of_an_optimizers_state_keep_their_dtype(run_dir):
    model = torch.nn.Linear(2, 1).to(torch.bfloat16)
    optimizer = Preconditioned(model.parameters())
    optimizer.step()
    hc.torch.save(run_dir, 1, optimizer=optimizer)
    new = Preconditioned(model.parameters())
    hc.torch.restore(run_dir, optimizer=new)
    for parameter in model.parameters():
        assert_same(new.state[parameter]["GG"], optimizer.state[parameter]["GG"])


class Lookahead(optim.Optimizer):
    """Its ``state_dict`` has no ``state``, but that of the optimizer within it."""

    def __init__(self, base: Any) -> None:
        self.base, self.k = base, 0
        super().__init__(base.param_groups, {})

    def step(self, closure: Any = None) -> None:
        del closure
        self.base.step()
        self.k += 1

    def state_dict(self) -> dict[str, Any]:
        return {"base": self.base.state_dict(), "k": self.k}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict["base"])
        self.k = state_dict["k"]


def test_an_optimizer_around_another_is_restored(run_dir):
    model = torch.nn.Linear(2, 1)
    optimizer = Lookahead(optim.Adam(model.parameters()))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    hc.torch.save(run_dir, 1, optimizer=optimizer)
    new = Lookahead(optim.Adam(model.parameters()))
    hc.torch.restore(run_dir, optimizer=new)
    assert new.k == 1
    assert_same(new.base.state_dict()["state"], optimizer.base.state_dict()["state"])


class Recipe(torch.nn.Module):
    """Has extra state that is empty in a new module, as layers of Transformer Engine do."""

    held = torch.empty(0, dtype=torch.uint8)

    def get_extra_state(self) -> Any:
        return self.held

    def set_extra_state(self, state: Any) -> None:
        self.held = state


def test_extra_state_may_have_another_length_each_time(run_dir):
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), Recipe())
    model[1].held = torch.arange(26, dtype=torch.uint8)
    hc.torch.save(run_dir, 1, model=model)
    new = torch.nn.Sequential(torch.nn.Linear(2, 1), Recipe())
    hc.torch.restore(run_dir, model=new)
    assert torch.equal(new[1].held, model[1].held)


def trained() -> tuple[Any, Any]:
    model = net()
    optimizer = optim.Adam(model.parameters())
    train(model, optimizer, 1)
    return model, optimizer


def test_the_default_device_does_not_matter(run_dir, tmp_path):
    model, optimizer = trained()
    hc.torch.save(run_dir, 1, model=model, optimizer=optimizer)
    hc.torch.save(model.state_dict(), tmp_path / "model.safetensors")
    new = net()
    with torch.device("meta"):
        own = optim.Adam(new.parameters())
        hc.torch.restore(run_dir, model=new, optimizer=own)
        file = hc.torch.load(tmp_path / "model.safetensors")
    assert_same(own.state_dict()["state"], optimizer.state_dict()["state"])
    assert_same(dict(file), dict(model.state_dict()))


def test_an_optimizers_state_dict_is_refused_with_what_to_pass():
    with pytest.raises(StateError, match=r"pass the optimizer itself, not its state_dict\(\)"):
        flatten({"optimizer": trained()[1].state_dict()})


@pytest.mark.parametrize("wrap", [hc.PerRank, lambda w: hc.Sharded(w, (2,), (0,))], ids=["PerRank", "Sharded"])
def test_a_tensor_in_a_wrapper_is_refused_with_what_to_pass(wrap):
    with pytest.raises(StateError, match=r"give hpcckpt\.torch\.as_array"):
        flatten({"w": wrap(torch.zeros(2))})
