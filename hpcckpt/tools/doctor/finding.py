"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    topic : str
        What was looked at.
    level : {"ok", "note", "warning", "problem"}
        ``note``: absent or unusual, and nothing to worry about; ``warning``: will bite in some cases;
        ``problem``: saving or restoring will fail.
    message : str
        What was found.
    remedy : str
        What to do about it; "" if nothing.
    gist : str
        What of the message must be equal for two ranks to have found the same; "" is the whole message.
    """

    topic: str
    level: Level
    message: str
    remedy: str = ""
    gist: str = field(default="", compare=False)

    @property
    def sameness(self) -> tuple[str, str, str]:
        """What is equal where two ranks have found the same."""
        return self.topic, self.level, self.gist or self.message
