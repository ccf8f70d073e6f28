"""Who has which part of the data, and what one rank does for all."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hpcckpt.errors import CollectiveError, OptionError
from hpcckpt.train.datasets import Share, share, sharing
from hpcckpt.train.datasets.sharing import on_root, seed_or_default


def test_outside_of_a_block_a_program_that_no_launcher_started_has_everything() -> None:
    assert share() == Share(0, 1)


def test_the_share_is_that_of_the_innermost_block() -> None:
    with sharing(1, 3):
        with sharing(0, 2):
            assert share() == (0, 2)
        assert share() == (1, 3)
    assert share() == (0, 1)


def test_a_block_that_fails_gives_the_share_back() -> None:
    with pytest.raises(KeyError), sharing(1, 3):
        raise KeyError
    assert share() == (0, 1)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_there_is_not_is_refused(rank: int, size: int) -> None:
    with pytest.raises(OptionError, match=rf"no rank {rank} of {size}"), sharing(rank, size):
        pass


def test_threads_have_shares_of_their_own() -> None:
    seen: list[Share] = []
    with sharing(1, 3):
        thread = threading.Thread(target=lambda: seen.append(share()))
        thread.start()
        thread.join()
    assert seen == [(0, 1)]


def test_the_order_follows_the_seed_given_then_that_of_the_training_then_zero() -> None:
    assert seed_or_default(None) == 0
    with sharing(0, 1, seed=7):
        assert (seed_or_default(None), seed_or_default(0)) == (7, 0)


def test_rank_0_alone_does_what_is_done_for_all(ranks: Any) -> None:
    done: list[int] = []

    def body(comm: Any) -> int:
        with sharing(comm.rank, comm.size, comm=comm):
            return on_root("count", lambda: done.append(comm.rank) or len(done))

    assert ranks(body) == [1] * ranks.size
    assert set(done) <= {0}


def test_what_fails_on_rank_0_fails_on_all(ranks: Any) -> None:
    def fail() -> None:
        raise OptionError("nothing there")

    def body(comm: Any) -> bool:
        with sharing(comm.rank, comm.size, comm=comm), pytest.raises(OptionError, match="nothing there") as caught:
            on_root("look", fail)
        return isinstance(caught.value, CollectiveError)

    assert all(ranks(body))
