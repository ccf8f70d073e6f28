"""Forked children that use their copy of a checkpointer, in a short form."""

from __future__ import annotations


def test_forked_children_harm_no_step_and_no_save(short_form):
    short_form("forks", 4)
