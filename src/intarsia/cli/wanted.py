"""Which backends a command line wants, and their options."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from intarsia.errors import ArgumentError


def read_backends(texts: Iterable[str]) -> dict[str, list[str]]:
    """The argument `backend` of `compile`.

    Args:
        texts: "NAME", or "WHAT=NAME" for an operator or a module path.

    Raises:
        ArgumentError: A text has an empty part.

    Example:
        >>> read_backends(["onnxruntime", "openvino", "encoder=torch"])
        {'': ['onnxruntime', 'openvino'], 'encoder': ['torch']}
    """
    orders: dict[str, list[str]] = {}
    for text in texts:
        what, separator, name = (part.strip() for part in text.rpartition("="))
        if not name or (separator and not what):
            raise ArgumentError(
                f"--backend {text}",
                found="no name" if not name else "nothing before the equals sign",
                expected="NAME, or OPERATOR=NAME, or MODULE=NAME",
                fix="Write the name of the backend, or torch; before it what it is for, and an equals sign.",
            )
        orders.setdefault(what, []).append(name)
    return orders


def read_options(texts: Iterable[str], backends: Collection[str]) -> dict[str, Any]:
    """The argument `options` of `compile`.

    Args:
        texts: "NAME=VALUE"; where there are several backends, "BACKEND:NAME=VALUE".
        backends: The names of the backends.

    Raises:
        ArgumentError: A text has no value or no name, lacks the backend, or an option is given twice.

    Example:
        >>> read_options(["THREADS=2"], ["openvino"])
        {'THREADS': 2}
        >>> read_options(["openvino:THREADS=2"], ["openvino", "onnxruntime"])
        {'openvino': {'THREADS': 2}}
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, value = _read_option(text)
        place = options
        if len(backends) > 1:
            backend, separator, name = (part.strip() for part in name.partition(":"))
            if not (separator and name):
                example = f"--option {next(iter(backends))}:{name or backend}={text.partition('=')[2].strip()}"
                raise _wrong(
                    text, "no backend whose option it is", "BACKEND:NAME=VALUE, for there are several", example
                )
            place = options.setdefault(backend, {})
        if name in place:
            raise ArgumentError(
                f"--option {name}",
                found=f"two values, {place[name]!r} and {value!r}",
                expected="one",
                fix="Give the option once.",
            )
        place[name] = value
    return options


def _read_option(text: str) -> tuple[str, Any]:
    name, separator, value = (part.strip() for part in text.partition("="))
    if not (name and separator):
        raise _wrong(text, "no name and value" if not separator else "no name", "NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _wrong(text: str, found: str, expected: str, example: str = "") -> ArgumentError:
    return ArgumentError(
        f"--option {text}",
        found=found,
        expected=expected,
        fix=f"Write {example}." if example else "Write the name of the option, an equals sign and the value.",
    )
