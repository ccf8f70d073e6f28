"""Callbacks of a step are called once each, even if an interrupt ends a call and it is repeated."""

from __future__ import annotations

import pytest

from hpcckpt.saving.save_queue import Listeners


def test_a_repeated_call_calls_only_those_that_were_not_called():
    listeners, called = Listeners(), []

    def interrupted_once(step):
        called.append(("second", step))
        if len(called) == 2:
            raise KeyboardInterrupt

    listeners.add(lambda step: called.append(("first", step)))
    listeners.add(interrupted_once)
    listeners.add(lambda step: called.append(("third", step)))
    save = object()
    with pytest.raises(KeyboardInterrupt):
        listeners.call(save, 1)
    listeners.call(save, 1)
    listeners.call(save, 1)
    assert called == [("first", 1), ("second", 1), ("third", 1)]
    listeners.call(object(), 2)
    assert called[3:] == [("first", 2), ("second", 2), ("third", 2)]


def test_a_listener_that_was_removed_is_not_called():
    listeners, called = Listeners(), []
    remove = listeners.add(called.append)
    listeners.call(object(), 1)
    remove()
    remove()
    listeners.call(object(), 2)
    assert called == [1]
