"""The end of a zip archive, which says where its directory is. Tools differ in what they make of a doubtful one."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import IO

from intarsia.errors import FormatError
from intarsia.formats.archive.limits import DIRECTORY_BYTES, MEMBERS

_END = struct.Struct("<4s4H2IH")
_MAGIC = b"PK\x05\x06"
_LOCATOR = struct.Struct("<4sIQI")
_END_64 = struct.Struct("<4sQ2H2I4Q")
# What stands in a 32-bit or 16-bit field whose value is in the 64-bit record.
_ELSEWHERE = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)


def count_members(path: Path, file: IO[bytes]) -> int | None:
    """How many members an archive has, or None where there is no end record: the file is cut short, or no archive.

    Args:
        path: Named in errors.
        file: The file, seekable; its position is changed.

    Raises:
        FormatError: The directory does not end the file, is not where its end says, or is beyond the limits.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END.size - 0xFFFF))
    tail = file.read()
    found = tail.rfind(_MAGIC)
    if found < 0 or len(tail) < found + _END.size:
        return None
    if len(tail) > found + _END.size or tail[-2:] != b"\0\0":
        raise _refusal(path, "a comment, or other bytes, behind its directory")
    _, disk, first_disk, here, *fields, _ = _END.unpack(tail[-_END.size :])
    end = size - _END.size
    small = (here, *fields)
    large = _read_64(path, file, end)
    if large is not None:
        end -= _LOCATOR.size + _END_64.size
        if any(a not in (b, c) for a, b, c in zip(small, large, _ELSEWHERE, strict=True)):
            raise _refusal(path, "two ends of its directory that differ")
    members_here, members, size_bytes, start = large or small
    if disk or first_disk or members_here != members or start + size_bytes != end:
        raise _refusal(path, "a directory that is not where its end says")
    if members > MEMBERS or size_bytes > DIRECTORY_BYTES:
        raise _refusal(path, f"{members} members and a directory of {size_bytes} bytes", _LIMITS)
    return int(members)


def _read_64(path: Path, file: IO[bytes], end: int) -> tuple[int, int, int, int] | None:
    """Entries here, entries, size and start, from the 64-bit records before the end record, if they are there."""
    if end < _LOCATOR.size:
        return None
    file.seek(end - _LOCATOR.size)
    magic, disk, position, disks = _LOCATOR.unpack(file.read(_LOCATOR.size))
    if magic != b"PK\x06\x07":
        return None
    expected = end - _LOCATOR.size - _END_64.size
    if disk or disks > 1 or position != expected:
        raise _refusal(path, "a 64-bit end of its directory that is not where it should be")
    file.seek(position)
    magic, size, _, _, disk, first_disk, *fields = _END_64.unpack(file.read(_END_64.size))
    if magic != b"PK\x06\x06" or size != _END_64.size - 12 or disk or first_disk:
        raise _refusal(path, "a damaged 64-bit end of its directory")
    here, members, size_bytes, start = fields
    return here, members, size_bytes, start


_LIMITS = f"at most {MEMBERS} and {DIRECTORY_BYTES}"


def _refusal(path: Path, found: str, expected: str = "one directory, which ends the file") -> FormatError:
    return FormatError(
        str(path),
        found=f"an archive with {found}",
        expected=expected,
        fix="Save the program again, and copy the file as it is.",
    )
