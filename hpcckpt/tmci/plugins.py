"""Plugins, under the name that TMCI has for them: ``tmci.plugins.load("libdummy.so")``."""

from __future__ import annotations

from hpcckpt.plugins import available, find, load, loaded

__all__ = ["available", "find", "load", "loaded"]
