"""Callbacks of a cycle."""
