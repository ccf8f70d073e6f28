"""The one way to say that a name in a configuration means nothing, or nothing that is allowed."""

from __future__ import annotations


class RefusedError(Exception):
    """A name is refused; whoever knows where it stands makes a problem of it.

    Parameters
    ----------
    text : str
        Why.
    remedy : str
        What to do about it.
    """

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.remedy = remedy
