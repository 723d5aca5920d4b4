"""Programs are not copied: a copy would share state or engines without saying so."""

from __future__ import annotations

from typing import NoReturn

from intarsia.errors import StateError


class Uncopied:
    """What `copy` and `pickle` refuse."""

    def __reduce__(self) -> NoReturn:
        """Refused: `copy` and `pickle` come here.

        Raises:
            StateError: Always.
        """
        raise StateError(
            "program",
            found="an attempt to copy or to pickle it",
            expected="a session or a file",
            fix="Call program.session() for one with state of its own; intarsia.save and intarsia.load go by a file.",
        )
