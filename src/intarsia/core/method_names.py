"""Names of the methods of a file: each is an attribute of what `load` returns."""

from __future__ import annotations

import keyword
from collections.abc import Iterable

from intarsia.errors import ConventionError

DESCRIPTION = "intarsia_description"
"""The method by which a `.pte` tells how the others are called."""

TAKEN = frozenset([DESCRIPTION, "methods", "reset", "restore", "session", "snapshot", "state", "test_vectors"])
"""What a file, or a program of several methods, has of its own."""


def check_method_names(names: Iterable[str]) -> None:
    """Refuse names that no method can have.

    Raises:
        ConventionError: There is no name, or one is no identifier, or is taken.

    Example:
        >>> check_method_names(["prefill", "decode"])
        >>> check_method_names(["reset"])
        Traceback (most recent call last):
        intarsia.errors.ConventionError: method 'reset': found a name that is taken, ...
    """
    names = list(names)
    if not names:
        raise ConventionError("methods", found="none", expected="at least one", fix="Pass the programs by name.")
    for name in names:
        if not str(name).isidentifier() or keyword.iskeyword(name):
            found = "what is no name in Python"
        elif name.startswith("_") or name in TAKEN:
            found = "a name that is taken"
        else:
            continue
        raise ConventionError(
            f"method {name!r}", found=found, expected="a name for an attribute", fix="Choose another name."
        )
