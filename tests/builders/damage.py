"""Files that are damaged on purpose."""

from __future__ import annotations

import zipfile
from pathlib import Path

from intarsia.formats.archive.directory import read_directory


def flip_bit(path: Path, member: str) -> None:
    """Flip a bit in the middle of a member's bytes, and leave the checksum that the archive has of them."""
    with path.open("r+b") as file:
        found = read_directory(path, file, zipfile.ZipFile(file))[member]
        position = found.offset + found.size_bytes // 2
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
