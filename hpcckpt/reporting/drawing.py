"""What pictures by Matplotlib share: whether there is one, a figure without a display, and writing it whole."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcckpt import files, layout
from hpcckpt.errors import ConfigError, from_os_error

NEEDED = "pictures need Matplotlib: pip install 'hpcckpt[plot]'"


def check_possible() -> None:
    """Raise unless Matplotlib is installed.

    Raises
    ------
    ConfigError
        Saying what to install.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(NEEDED)


def new_figure(width: float, height: float) -> Any:
    """Return a figure that needs no display, and touches no state of pyplot."""
    check_possible()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain_text(text: str, limit: int = 60) -> str:
    """Return a text that Matplotlib draws as it stands: without its mathematics, and what cannot be printed. Pure."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(letter if letter.isprintable() else "?" for letter in shown).replace("$", r"\$")


def png_of(figure: Any, dpi: int = 110) -> bytes:
    """Return a figure as PNG."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=dpi)
    return data.getvalue()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all, in place of one that is there. Independent.

    Raises
    ------
    StorageError, NoSpaceError, ReadOnlyError
        If it cannot be written.
    """
    draft = path.with_name(f".{path.name[:80]}.{layout.new_nonce()}")
    try:
        draft.write_bytes(data)
        files.rename(draft, path)
    except OSError as error:
        files.unlink(draft)
        raise from_os_error(error, "write") from error
