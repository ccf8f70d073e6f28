"""Plans: all ranks' items together are every tensor, exactly once, whatever is mixed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hpcckpt.collective.outcomes import MAX_FAILURES, Outcome, failures_of
from hpcckpt.collective.planner import gather_declarations, plan_for, plan_save
from hpcckpt.collective.sharding import boxes_of_span
from hpcckpt.core.plan import Declaration
from hpcckpt.core.tensors import Extent, TensorSpec, itemsize
from hpcckpt.errors import Failure, TreeMismatchError
from hpcckpt.testing.ranks import run_ranks

pytestmark = pytest.mark.one_case

DTYPES = ["bool", "float32", "bfloat16", "complex128", "|V7"]


@st.composite
def cuts(draw, length, n_parts):
    """Draw how a length is cut into parts, some of them empty."""
    points = sorted(draw(st.lists(st.integers(0, length), min_size=n_parts - 1, max_size=n_parts - 1)))
    return list(itertools.pairwise([0, *points, length]))


@st.composite
def declared_states(draw):
    """Draw what each of some ranks declares: replicated, root's, per-rank, and tensors cut along any axis."""
    n_ranks = draw(st.integers(1, 6))
    dtype = st.sampled_from(DTYPES)
    shared, own = [], [[] for _ in range(n_ranks)]
    for number in range(draw(st.integers(0, 7))):
        kind = draw(st.sampled_from(["replicated", "replicated", "root", "per-rank", "sharded", "sharded"]))
        shape = draw(st.lists(st.integers(0, 40), max_size=3).map(tuple))
        spec = TensorSpec(f"t{number}", draw(dtype), shape, kind)
        if kind in {"replicated", "root"}:
            shared.append(Declaration(spec, Extent.whole(shape)))
        elif kind == "per-rank":
            for rank in range(n_ranks):
                length = draw(st.integers(0, 9))
                own[rank].append(
                    Declaration(TensorSpec(spec.name, spec.dtype, (length,), kind), Extent.whole((length,)))
                )
        else:
            holders = draw(st.integers(1, n_ranks))  # rank r holds part r mod holders: parts may be held twice
            axis = draw(st.integers(0, max(0, len(shape) - 1)))
            parts = draw(cuts(shape[axis], holders)) if shape else [(0, 1)] * holders
            for rank in range(n_ranks):
                own[rank].append(Declaration(spec, _part(shape, axis, *parts[rank % holders])))
    everything = [sorted(shared + mine, key=lambda d: d.spec.name) for mine in own]
    return everything, [[d for d in mine if d.spec.kind in {"sharded", "per-rank"}] for mine in everything]


def _part(shape, axis, begin, end):
    offset = tuple(begin if a == axis else 0 for a in range(len(shape)))
    return Extent(offset, tuple(end - begin if a == axis else n for a, n in enumerate(shape)))


def count_elements(spec, items):
    """Return how often each element of a tensor is written."""
    counts = np.zeros(spec.shape, int)
    for item in items:
        for box in boxes_of_span(item.extent.shape, item.start, item.stop):
            offset = [a + b for a, b in zip(box.offset, item.extent.offset, strict=True)]
            counts[tuple(slice(o, o + n) for o, n in zip(offset, box.shape, strict=True))] += 1
    return counts


@given(declared_states())
def test_every_element_of_every_tensor_is_written_once(state):
    everything, gathered = state
    plans = [plan_for(rank, mine, gathered) for rank, mine in enumerate(everything)]
    for spec in plans[0].tensors:
        items = [item for plan in plans for item in plan.items if item.spec.name == spec.name]
        if spec.kind == "per-rank":
            assert [(i.start, i.stop) for i in items] == [(0, i.extent.n_elements) for i in items]
            assert len(items) == len(plans)
        else:
            assert (count_elements(spec, items) == 1).all()


@given(declared_states())
def test_every_rank_finds_the_same_plan(state):
    everything, gathered = state
    plans = [plan_for(rank, mine, gathered) for rank, mine in enumerate(everything)]
    assert len({(plan.tensors, plan.nbytes, plan.shared_nbytes_of) for plan in plans}) == 1
    for rank, plan in enumerate(plans):
        shared = [item.nbytes for item in plan.items if item.spec.kind != "per-rank"]
        assert sum(shared) == plan.shared_nbytes_of[rank]
    assert sum(item.nbytes for plan in plans for item in plan.items) == plans[0].nbytes


@given(declared_states())
def test_a_rank_writes_only_what_it_holds(state):
    everything, gathered = state
    for rank, mine in enumerate(everything):
        held = {(d.spec.name, d.extent) for d in mine}
        plan = plan_for(rank, mine, gathered)
        assert {(item.spec.name, item.extent) for item in plan.items} <= held
        assert rank == 0 or all(item.spec.kind != "root" for item in plan.items)


@given(declared_states())
def test_tensors_are_named_once_and_sorted(state):
    everything, gathered = state
    names = [spec.name for spec in plan_for(0, everything[0], gathered).tensors]
    assert names == sorted({d.spec.name for d in everything[0]})


@given(
    st.integers(1, 6),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    st.lists(st.integers(0, 10**6), max_size=6),
)
def test_replicated_bytes_go_where_shards_leave_room(n_ranks, shards, dense):
    """No rank that got replicated bytes ends above a rank that could have taken them."""
    spec = TensorSpec("x", "int8", (sum(shards[:n_ranks]),), "sharded")
    starts = [0, *itertools.accumulate(shards[:n_ranks])]
    parts = [
        Declaration(spec, Extent((starts[min(r, len(starts) - 1)],), (shards[r] if r < len(shards) else 0,)))
        for r in range(n_ranks)
    ]
    replicated = [Declaration(TensorSpec(f"d{k}", "int8", (n,)), Extent.whole((n,))) for k, n in enumerate(dense)]
    plans = [plan_for(rank, [*replicated, parts[rank]], [[part] for part in parts]) for rank in range(n_ranks)]
    ends = plans[0].shared_nbytes_of
    fed = [r for r, plan in enumerate(plans) if any(i.spec.kind == "replicated" and i.nbytes for i in plan.items)]
    if fed:
        assert max(ends[r] for r in fed) - min(ends) <= 2 * 64 + 4


def test_an_empty_sharded_tensor_has_an_entry_in_one_file():
    spec = TensorSpec("t", "float32", (0, 4), "sharded")
    own = [[Declaration(spec, Extent((0, 2 * rank), (0, 2)))] for rank in range(2)]
    items = [plan_for(rank, own[rank], own).items for rank in range(2)]
    assert [[(item.spec, item.nbytes) for item in mine] for mine in items] == [[(spec, 0)], []]


def test_the_message_does_not_grow_with_the_number_of_replicated_tensors():
    """However many tensors there are, ranks exchange a digest."""
    sizes = []

    def body(comm):
        import pickle

        gather = comm.allgather

        def measured(value):
            sizes.append(len(pickle.dumps(value)))
            return gather(value)

        comm.allgather = measured
        specs = [TensorSpec(f"t{k:05d}", "float32", (3, 3)) for k in range(comm.size * 5000)]
        plan_save(comm, [Declaration(spec, Extent.whole(spec.shape)) for spec in specs])

    run_ranks(1, body)
    assert max(sizes) < 200


def test_a_large_tree_is_planned_in_no_time():
    specs = [TensorSpec(f"t{k:05d}", "float32", (k % 50, 3)) for k in range(20_000)]
    declarations = [Declaration(spec, Extent.whole(spec.shape)) for spec in specs]
    plan = plan_for(3, declarations, [[] for _ in range(64)])
    assert plan.nbytes == sum(math.prod(spec.shape) * itemsize(spec.dtype) for spec in specs)


def test_of_states_that_differ_root_gets_those_alone_that_differ_from_its_own(monkeypatch):
    def body(comm):
        sent, gather = [], comm.gather
        monkeypatch.setattr(comm, "gather", lambda value: (sent.append(value), gather(value))[1])
        spec = TensorSpec("y" if comm.rank == 1 else "x", "int8", (3,))
        with pytest.raises(TreeMismatchError, match="rank 1") as caught:
            gather_declarations(comm, [Declaration(spec, Extent.whole((3,)))])
        return [value is not None for value in sent], str(caught.value)

    found = run_ranks(3, body)
    assert [sent for sent, _ in found] == [[True], [True], [False]]
    assert len({text for _, text in found}) == 1


def test_of_many_ranks_that_fail_the_first_are_reported_and_one_of_each_further_kind():
    outcomes = [Outcome(None, Failure("space", str(rank))) for rank in range(40)] + [Outcome(1)]
    outcomes += [Outcome(None, Failure("storage", "other")), Outcome(None, Failure("storage", "more"))]
    assert [*failures_of(outcomes)] == [*range(MAX_FAILURES), 41]
