"""The programs in examples/, as modules."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from tests.support.paths import EXAMPLES


def load(name: str) -> ModuleType:
    """Import an example; examples import each other by their bare names."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)
