"""The test vectors of a file, which nothing reads before they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from intarsia.core.vectors import Vectors
from intarsia.formats.archive.integrity import Integrity
from intarsia.formats.archive.layout import VECTOR_TENSORS_MEMBER, VECTORS_MEMBER
from intarsia.formats.archive.listing import damaged
from intarsia.formats.contents import Contents
from intarsia.formats.vectors import read_vectors

_NAMES = (VECTORS_MEMBER, VECTOR_TENSORS_MEMBER)


def find_vectors(
    path: Path,
    contents: Contents,
    programs: Mapping[str, torch.export.ExportedProgram],
    integrity: Integrity,
) -> Callable[[], Vectors] | None:
    """What reads the test vectors of a file, or None where it has none. It reads the file as it was opened.

    Args:
        path: Named in errors.
        contents: What the file says of itself.
        programs: Its programs, or their boundaries, by the names of their methods.
        integrity: Gives members, compared with their hashes.

    Raises:
        FormatError: The members that hold them are not as many as the manifest says.
    """
    count = next(iter(contents.methods.values())).manifest.test_vectors
    found = [name for name in _NAMES if name in contents.members]
    if len(found) != (len(_NAMES) if count > 0 else 0):
        raise damaged(path, f"{len(found)} members with test vectors, of which its manifest says {count},")

    def read() -> Vectors:
        text, tensors = map(integrity.read, _NAMES)
        return read_vectors(text, tensors, programs, count, str(path))

    return read if count > 0 else None
