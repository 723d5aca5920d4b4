"""What is wrong with a part of a file, before it is known where in the file that part stands."""

from __future__ import annotations

import reprlib

_SHOWN_CHARACTERS = 60
_short = reprlib.Repr()
_short.maxlevel, _short.maxdict, _short.maxlist = 2, 2, 2


class Refused(Exception):
    """A part of a file is not what it may be.

    Args:
        found: What was found.
        expected: What may stand there.
    """

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"found {found}, expected {expected}")
        self.found = found
        self.expected = expected


def quoted(text: object) -> str:
    r"""A short piece of what a file says, for a message: no control character and no letter that looks like another.

    Example:
        >>> print(quoted("caf" + chr(233) + chr(27) + "[2J"), quoted({"a": 1}))
        'caf\xe9\x1b[2J' {'a': 1}
    """
    if not isinstance(text, str):
        return _short.repr(text).encode("ascii", "backslashreplace").decode()
    return ascii(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!a} and more"
