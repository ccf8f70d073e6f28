"""What figures by Matplotlib share: colours, a figure without a display, PNG, inline SVG, and writing a file whole."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from hpcckpt.errors import ConfigError
from hpcckpt.rundir.atomic_files import atomic_path
from hpcckpt.tools.report.markup import Element, element

NEEDED = "charts need Matplotlib: pip install 'hpcckpt[plot]'"
INK, SOFT, LINE = "#1c2128", "#57606a", "#d5d9de"
BLUE, LIGHT_BLUE, GREEN, AMBER, RED, GREY = "#1f6fb2", "#a9cbe6", "#1a7f4b", "#b06a00", "#c0322b", "#a7aeb7"
_VARIABLES = {
    INK: "--ink", SOFT: "--soft", LINE: "--line", BLUE: "--blue", LIGHT_BLUE: "--blue-soft", GREEN: "--green",
    AMBER: "--amber", RED: "--red", GREY: "--grey",
}  # fmt: skip
"""The variables of the page's style sheet that have these colours by day, and others by night."""
_SETTINGS = {
    "font.size": 8.0, "text.color": SOFT, "axes.edgecolor": LINE, "axes.labelcolor": SOFT, "xtick.color": SOFT,
    "ytick.color": SOFT, "grid.color": LINE, "svg.fonttype": "none",
}  # fmt: skip
_XLINK = "{http://www.w3.org/1999/xlink}href"


def has_matplotlib() -> bool:
    """Return True if charts can be drawn here. Independent."""
    try:
        import matplotlib.figure
    except ImportError:
        return False
    return bool(matplotlib.figure)


@contextmanager
def drawing(salt: str = "") -> Iterator[None]:
    """Draw by our settings alone, whatever a matplotlibrc says; `salt` makes the ids of an SVG reproducible.

    Raises
    ------
    ConfigError
        If Matplotlib is not installed.
    """
    if not has_matplotlib():
        raise ConfigError(NEEDED)
    import matplotlib as mpl

    with warnings.catch_warnings(), mpl.rc_context():
        warnings.simplefilter("ignore")  # of letters that the font does not have
        mpl.rcdefaults()
        mpl.rcParams.update({**_SETTINGS, "svg.hashsalt": salt})
        yield


def new_figure(width: float, height: float) -> Any:
    """Return a figure that needs no display, and touches no state of pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Any) -> None:
    """Draw a light grid and small labels."""
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, axis="y")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def plain_text(text: str, limit: int = 60) -> str:
    """Return a text that Matplotlib draws literally: without its mathematics and unprintable characters. Pure."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(letter if letter.isprintable() else "?" for letter in shown).replace("$", r"\$")


def png_of(figure: Any, dpi: int = 110) -> bytes:
    """Return a figure as PNG."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=dpi)
    return data.getvalue()


def svg_of(figure: Any, title: str, description: str) -> Element:
    """Return a figure as an element of a page, with the page's colours and a name for screen readers."""
    data = io.BytesIO()
    figure.savefig(data, format="svg", transparent=True)
    made = ET.fromstring(data.getvalue())
    chart = element(
        "svg", element("title", title), element("desc", description),
        viewBox=made.get("viewBox"), role="img", aria_label=f"{title}: {description}",
    )  # fmt: skip
    chart.extend(made.findall("{*}g"))  # without the metadata, which have the date
    for each in chart.iter():
        each.tag = each.tag.rpartition("}")[2]
        if each.tag == "g":
            each.attrib.pop("id", None)  # it is the same in each chart
        each.attrib.pop("clip-path", None)  # nothing is drawn beyond the axes
        if _XLINK in each.attrib:
            each.set("href", each.attrib.pop(_XLINK))
        if "style" in each.attrib:
            each.set("style", re.sub("#[0-9a-f]{6}", _variable, each.attrib["style"]))
    return chart


def _variable(colour: re.Match[str]) -> str:
    name = _VARIABLES.get(colour[0])
    return f"var({name})" if name else colour[0]


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all, in place of one that is there. Independent.

    Raises
    ------
    OptionError
        If it is no file, or its directory does not exist.
    StorageError, NoSpaceError, ReadOnlyError
        If it cannot be written.
    """
    with atomic_path(path, is_overwriting=True) as temporary:
        temporary.write_bytes(data)
