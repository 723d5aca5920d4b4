"""Values of JSON, compared with the types that a class declares, and with what may be shown on a terminal."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any

from intarsia.formats.archive.refusal import quoted

_PLAIN = (str, int, bool, float, type(None))


def check_types(value: Any) -> None:
    """Compare the fields of a dataclass or named tuple, made of JSON values, with its declaration, where that is plain.

    Raises:
        TypeError: A field has another type.

    Example:
        >>> from intarsia.formats.archive.writer import MemberEntry
        >>> check_types(MemberEntry("3", "ab"))
        Traceback (most recent call last):
        TypeError: size_bytes of MemberEntry is '3', a str
    """
    for name, allowed in _fields(type(value)).items():
        found = getattr(value, name)
        if type(found) not in allowed and not (type(found) is str and found in allowed):
            raise TypeError(f"{name} of {type(value).__name__} is {quoted(found)}, a {type(found).__name__}")


def check_texts(value: Any) -> None:
    r"""Refuse texts with control characters among JSON values: they could steer the terminal that shows them.

    Raises:
        ValueError: There is one.

    Example:
        >>> check_texts({"reason": "is kept" + chr(27)})
        Traceback (most recent call last):
        ValueError: the text 'is kept\x1b'
    """
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Mapping):
            waiting += [*found.keys(), *found.values()]
        elif isinstance(found, list):
            waiting += found
        elif isinstance(found, str) and not found.replace("\n", " ").isprintable():
            raise ValueError(f"the text {found!a}")


_known: dict[type, dict[str, tuple[type | str, ...]]] = {}


def _fields(kind: type) -> dict[str, tuple[type | str, ...]]:
    """The types that each field may have, or its texts; fields of other than plain types are left out."""
    if kind not in _known:
        hints = {name: _options(hint) for name, hint in typing.get_type_hints(kind).items()}
        _known[kind] = {
            name: options
            for name, options in hints.items()
            if all(option in _PLAIN or type(option) is str for option in options)
        }
    return _known[kind]


def _options(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType, typing.Literal):
        return typing.get_args(hint)
    return (hint,)
