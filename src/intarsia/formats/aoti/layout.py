"""Names of members in packages of ours."""

from __future__ import annotations

from intarsia.core.compiled.model import FOLDER

CODE = f"{FOLDER}/"
"""How the members with code begin."""


def code_folder(program: str) -> str:
    """The folder with the code of a program."""
    return f"{CODE}{program}/"


def boundary_member(program: str) -> str:
    """The member that says what a program takes and gives. What torch does not know, it looks for in `extra`."""
    return f"extra/intarsia_boundary_{program}.json"
