"""Names in our PT2 archives, and the paths of files: what writing and reading have in common."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

from intarsia.errors import FormatError, with_article

# As a path writes it, with one slash. One letter is a drive of Windows.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

Kind = Literal["weights", "constants"]
"""A folder of the archive: torch reads `state_dict` from one and `constants` from the other."""

METHOD = "forward"
"""Name of the method of a program that has one."""

MANIFEST_NAME = "intarsia_manifest.json"
"""Name of the manifest among the extra files of an archive."""

MANIFEST_MEMBER = f"extra/{MANIFEST_NAME}"
MANIFEST_HASH_MEMBER = "extra/intarsia_manifest.sha256"
"""Name of the member with the SHA-256 of the manifest, in hexadecimal: the manifest holds those of all others."""

VECTORS_MEMBER = "data/test_vectors/calls.json"
"""Name of the member with the calls that a file records."""

VECTOR_TENSORS_MEMBER = "data/test_vectors/tensors.safetensors"
"""Name of the member with their tensors."""

KINDS: tuple[Kind, ...] = ("weights", "constants")


def graph_member(program: str) -> str:
    """Name of the member with a program's graph."""
    return f"models/{program}.json"


def table_member(program: str, kind: Kind) -> str:
    """Name of the member that says where a program's tensors are."""
    return f"data/{kind}/{program}_{kind}_config.json"


def tensor_member(kind: Kind, member: str) -> str:
    """Name of a member with bytes of tensors."""
    return f"data/{kind}/{member}"


def constant_member(number: int) -> str:
    """Name of a member with a constant of engines."""
    return f"data/engine_constants/constant_{number}"


def checked_path(path: Any) -> Path:
    """The path that a caller gave.

    Raises:
        FormatError: It is no path, or a URL.
    """
    if isinstance(path, str | os.PathLike):
        found = Path(path)
        if _URL.match(str(found)) and not Path(found.parts[0]).exists():
            raise FormatError(
                str(path),
                found="a URL",
                expected="the path of a file",
                fix="Only files of this machine are written and read: copy it from there or to there yourself.",
            )
        return found
    raise FormatError(
        "path",
        found=with_article(type(path).__name__),
        expected="the path of a file, as a str or a pathlib.Path",
        fix="Pass a path; what is in memory has to be written to a file first.",
    )
