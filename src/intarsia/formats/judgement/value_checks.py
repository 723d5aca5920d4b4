"""Checks of JSON values by their types: put together of smaller ones, for the values of a schema."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from intarsia.formats.archive.refusal import Refused, quoted

Check = Callable[[Any], None]
"""Raises `Refused` for a value that may not stand there."""

_NUMBERS = {"Infinity", "-Infinity", "NaN"}
_LARGEST = 1 << 64


def matching(pattern: re.Pattern[str], expected: str) -> Check:
    """A text that a pattern matches as a whole."""

    def check(text: str) -> None:
        if not pattern.fullmatch(text):
            raise Refused(quoted(text), expected)

    return check


def text_of(check: Check) -> Check:
    """A text that passes `check`."""

    def check_text(value: Any) -> None:
        if type(value) is not str:
            raise Refused(quoted(value), "a text")
        check(value)

    return check_text


def mapping_of(check_key: Check, check: Check) -> Check:
    """A mapping whose keys pass one check and whose values pass the other."""

    def check_mapping(value: Any) -> None:
        if type(value) is not dict:
            raise Refused(quoted(value), "a mapping")
        for key, item in value.items():
            check_key(key)
            check(item)

    return check_mapping


def optional(check: Check) -> Check:
    """Null, or what passes `check`."""

    def check_optional(value: Any) -> None:
        if value is not None:
            check(value)

    return check_optional


def list_of(check: Check) -> Check:
    """A list whose items pass `check`."""

    def check_list(value: Any) -> None:
        if type(value) is not list:
            raise Refused(quoted(value), "a list")
        for item in value:
            check(item)

    return check_list


def fields_of(kind: type, checks: Mapping[str, Check]) -> Check:
    """An object with the fields of a dataclass; those without a default have to be there."""
    required = frozenset(
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )

    def check_fields(value: Any) -> None:
        if type(value) is not dict or not required <= value.keys():
            raise Refused(quoted(value), f"a {kind.__name__}")
        for name, item in value.items():
            # Fields of a newer schema are left out by torch.
            check = checks.get(name)
            if check is not None:
                check(item)

    return check_fields


def one_of(kind: type, checks: Mapping[str, Check]) -> Check:
    """An object with one field, of those of a union."""

    def check_union(value: Any) -> None:
        if type(value) is not dict or len(value) != 1:
            raise Refused(quoted(value), f"one kind of {kind.__name__}")
        ((name, item),) = value.items()
        if name not in checks:
            raise Refused(f"the kind {quoted(name)}", f"one of a {kind.__name__}")
        checks[name](item)

    return check_union


def number_of(kind: type[Enum]) -> Check:
    """The number of a member of an enum."""
    values = frozenset(member.value for member in kind)

    def check_number(value: Any) -> None:
        if type(value) is not int or value not in values:
            raise Refused(quoted(value), f"a number of a {kind.__name__}")

    return check_number


def _check_int(value: Any) -> None:
    if type(value) is not int or not -_LARGEST < value < _LARGEST:
        raise Refused(quoted(value), "a whole number of 64 bits")


def _check_float(value: Any) -> None:
    if type(value) is not float and not (type(value) is str and value in _NUMBERS):
        _check_int(value)


def _check_bool(value: Any) -> None:
    if type(value) is not bool:
        raise Refused(quoted(value), "true or false")


PLAIN: dict[type, Check] = {int: _check_int, float: _check_float, bool: _check_bool}
"""Checks of the types that are plain values of JSON."""
