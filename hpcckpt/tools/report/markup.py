"""HTML and SVG as trees of elements: what is put in is text, and can become nothing else."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

Element = ET.Element
_UNFIT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Return text without what no page may hold, and without what turns the direction of writing. Pure."""
    return _UNFIT.sub("\N{REPLACEMENT CHARACTER}", text)


def element(tag: str, *children: Element | str | None, **attributes: Any) -> Element:
    """Return an element. A trailing underscore of an attribute's name falls, one within it becomes a hyphen. Pure."""
    made = ET.Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(_name(name), clean(_text(value)))
    for child in children:
        add(made, child)
    return made


def _name(name: str) -> str:
    return name if name == "viewBox" else name.rstrip("_").replace("_", "-")


def add(parent: Element, child: Element | str | None) -> None:
    """Append an element or a text. Pure, but for `parent`."""
    if child is None:
        return
    if not isinstance(child, str):
        parent.append(child)
    elif len(parent):
        parent[-1].tail = (parent[-1].tail or "") + clean(child)
    else:
        parent.text = (parent.text or "") + clean(child)


def _text(value: Any) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def as_html(root: Element) -> str:
    """Return a page as text. Pure."""
    return "<!DOCTYPE html>\n" + ET.tostring(root, encoding="unicode", method="html") + "\n"
