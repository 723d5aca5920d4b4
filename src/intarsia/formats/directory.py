"""The directory of a zip archive, judged before any member is read."""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from intarsia.errors import FormatError

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_ENCRYPTED = 0x1
# A name that stays below the archive's root folder wherever it is unpacked.
_NAME = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|$))[^/\\:\0]+(?:/[^/\\:\0]+)+", re.DOTALL)


class Member(NamedTuple):
    """Where the bytes of a member lie.

    Attributes:
        name: Name below the archive's root folder.
        offset: Position of its first byte in the file.
        size_bytes: Number of its bytes; they stand in the file as they are.
    """

    name: str
    offset: int
    size_bytes: int


def read_directory(path: Path, file: IO[bytes], archive: zipfile.ZipFile) -> dict[str, Member]:
    """The members of an archive, by their names below its root folder; nothing is read but headers.

    Args:
        path: Named in errors.
        file: The file, seekable; its position is changed.
        archive: The archive that was opened on it.

    Raises:
        FormatError: A name leaves the archive or stands twice, a member is compressed or encrypted, its headers do not
            agree, or it shares bytes with another one or with the directory.
    """
    members: dict[str, Member] = {}
    root, free = "", 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        root = root or info.filename.partition("/")[0]
        name = info.filename.removeprefix(f"{root}/")
        fault = next(_faults(info, root), None) or (f"{name!r} twice" if name in members else None)
        if fault is not None:
            raise _refusal(path, fault)
        offset = _find_bytes(path, file, info)
        end = offset + info.file_size
        if info.header_offset < free or end > archive.start_dir:
            raise _refusal(path, f"{name!r} over bytes of something else")
        members[name], free = Member(name, offset, info.file_size), end
    return members


def _faults(info: zipfile.ZipInfo, root: str) -> Iterator[str]:
    if not _NAME.fullmatch(info.orig_filename) or not info.filename.startswith(f"{root}/"):
        yield f"the name {info.orig_filename!r}, which does not stay in one folder"
    if info.flag_bits & _ENCRYPTED:
        yield f"{info.filename!r} encrypted"
    if info.compress_type != zipfile.ZIP_STORED:
        yield f"{info.filename!r} compressed"
    elif info.compress_size != info.file_size:
        yield f"{info.filename!r} with two sizes, {info.compress_size} and {info.file_size}"


def _find_bytes(path: Path, file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Position of a member's first byte, which only the header before it tells."""
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) == _LOCAL_HEADER.size:
        magic, _, flags, method, *_, name_size, extra_size = _LOCAL_HEADER.unpack(header)
        name = file.read(name_size)
        same = (flags & _ENCRYPTED, method, name) == (0, info.compress_type, info.orig_filename.encode())
        if magic == b"PK\x03\x04" and same:
            return info.header_offset + _LOCAL_HEADER.size + int(name_size + extra_size)
    raise _refusal(path, f"another header before {info.filename!r} than in the directory")


def _refusal(path: Path, found: str) -> FormatError:
    return FormatError(
        str(path),
        found=f"an archive that lists {found}",
        expected="members stored as they are, each once, side by side in one folder",
        fix="Save the program again, and copy the file as it is.",
    )
