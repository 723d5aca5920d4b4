"""How two values differ, for the message of a check that failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intarsia.core.numbering import Number


def tell_apart(found: Any, wanted: Any, keys: Mapping[Number, Any]) -> tuple[str, str]:
    """Texts for two values; where both have one name, what the first operator that differs is called with.

    Args:
        found: A value, as a reader gives it.
        wanted: Another one.
        keys: What describes each number, see `Numbering.keys`.

    Example:
        >>> from intarsia.core.numbering import Numbering
        >>> numbering = Numbering()
        >>> a, b = (numbering.number(("input", position), name) for position, name in enumerate("ab"))
        >>> one, other = (numbering.number(("sub", operands, (), 0), "sub") for operands in ((a, b), (b, a)))
        >>> tell_apart(one, other, numbering.keys())
        ('%sub of %a', '%sub of %b')
    """
    while _share_name(found, wanted):
        one, other = keys[found], keys[wanted]
        if one[0] != other[0]:
            return _text(found), f"{_text(wanted)} of another operator"
        if one[1:3] == other[1:3]:
            return f"{_text(found)} after other effects", _text(wanted)
        part, wanted_part = _first_difference(one[1:3], other[1:3])
        if not _share_name(part, wanted_part):
            return f"{_text(found)} of {_text(part)}", f"{_text(wanted)} of {_text(wanted_part)}"
        found, wanted = part, wanted_part
    return _text(found), _text(wanted)


def _share_name(one: Any, other: Any) -> bool:
    return isinstance(one, Number) and isinstance(other, Number) and one is not other and one.origin == other.origin


def _first_difference(one: Any, other: Any) -> tuple[Any, Any]:
    """The first parts in which two keys differ; constants are parts as a whole."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other) and not _is_constant(one):
        return next(_first_difference(*pair) for pair in zip(one, other, strict=True) if pair[0] != pair[1])
    return one, other


def _is_constant(key: Any) -> bool:
    """Whether a key is that of a constant: its type and its value, see `key_of`."""
    return isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], type)


def _text(key: Any) -> str:
    if isinstance(key, Number):
        return f"%{key.origin}"
    if _is_constant(key):
        return f"{key[1]} ({key[0].__name__})"
    return f"({', '.join(map(_text, key))})" if isinstance(key, tuple) else repr(key)
