"""Text files of one directory: appended to, or replaced as a whole; and values as JSON has them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcckpt.errors import from_os_error, from_read_error
from hpcckpt.rundir.atomic_files import atomic_path

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class TextFiles:
    """The text files of a directory, by name.

    Parameters
    ----------
    directory : pathlib.Path
        Where they are; made when something is written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file, with their ends; none if there is no file. Independent."""
        try:
            text = (self._directory / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise from_read_error(error, "read") from error
        return _LINE.findall(text)  # not splitlines, which also splits at characters that may be within a text

    def append(self, name: str, text: str) -> None:
        """Add text to the end of a file. Root only."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with (self._directory / name).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise from_os_error(error, "write") from error

    def replace(self, name: str, text: str) -> None:
        """Write a file, whole or not at all, in place of the one that is there. Root only."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, "make run directory") from error
        with atomic_path(self._directory / name, is_overwriting=True, follows_links=False) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def end_last_line(self, name: str) -> None:
        """Take out a last line that a crash has cut, so that the next one can be read. Root only."""
        lines = self.lines(name)
        if lines and not lines[-1].endswith("\n"):
            self.replace(name, "".join(lines[:-1]))


def finite(value: Any) -> Any:
    """Return a value as JSON has it: numbers that it has not, such as NaN, become texts. Pure."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)
