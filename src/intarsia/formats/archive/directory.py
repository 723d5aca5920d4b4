"""The directory of a zip archive, judged before any member is read."""

from __future__ import annotations

import re
import stat
import struct
import unicodedata
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from intarsia.errors import FormatError
from intarsia.formats.archive.limits import NAME_CHARACTERS
from intarsia.formats.archive.refusal import quoted
from intarsia.formats.archive.writer import PADDING_KIND

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_EXTRA = struct.Struct("<2H")
_ENCRYPTED = 0x1
_DESCRIBED_BEHIND = 0x8
_FOLDER = 0x10
_ELSEWHERE = 0xFFFFFFFF
_SIZES_KIND = 0x0001
# Sizes of 64 bits, our padding and torch's. Others could give a member another name.
_EXTRA_KINDS = {_SIZES_KIND, PADDING_KIND, 0x4246}
# A name that stays below the archive's root folder wherever it is unpacked.
_NAME = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|$))[^/\\:\0]+(?:/[^/\\:\0]+)+", re.DOTALL)
# Control and formatting characters, unassigned ones and line ends.
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


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
        archive: The archive that was opened on it, whose end `count_members` has judged.

    Raises:
        FormatError: A name leaves the archive, stands twice or is none, a member is no file, compressed or encrypted,
            its headers do not agree, or bytes belong to two members or to none.
    """
    members: dict[str, Member] = {}
    root, free = "", 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        root = root or info.filename.partition("/")[0]
        name = info.filename.removeprefix(f"{root}/")
        fault = next(_faults(info, root), None) or (f"{quoted(name)} twice" if name in members else None)
        if fault is not None:
            raise _refusal(path, fault)
        offset = _find_bytes(path, file, info)
        end = offset + info.file_size
        if info.header_offset < free or end > archive.start_dir:
            raise _refusal(path, f"{quoted(name)} over bytes of something else")
        if info.header_offset > free:
            raise _refusal(path, f"{info.header_offset - free} bytes before {quoted(name)} that are no member's")
        members[name], free = Member(name, offset, info.file_size), end + _read_descriptor(path, file, info, end)
    if free != archive.start_dir:
        raise _refusal(path, f"{archive.start_dir - free} bytes before the directory that are no member's")
    return members


def _faults(info: zipfile.ZipInfo, root: str) -> Iterator[str]:
    if not _NAME.fullmatch(info.orig_filename) or not info.filename.startswith(f"{root}/"):
        yield f"the name {quoted(info.orig_filename)}, which does not stay in one folder"
    if _is_doubtful(info.filename):
        yield f"the name {quoted(info.filename)}, which not every tool reads alike"
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG) or info.external_attr & _FOLDER:
        yield f"{quoted(info.filename)}, which is a link, a folder or a device"
    if info.flag_bits & _ENCRYPTED:
        yield f"{quoted(info.filename)} encrypted"
    if info.compress_type != zipfile.ZIP_STORED:
        yield f"{quoted(info.filename)} compressed"
    elif info.compress_size != info.file_size:
        yield f"{quoted(info.filename)} with two sizes, {info.compress_size} and {info.file_size}"
    extra = _read_extra(info.extra)
    if info.comment or info.volume or extra is None or not extra.keys() <= _EXTRA_KINDS:
        yield f"{quoted(info.filename)} with a comment or other facts that not every tool reads alike"


def _is_doubtful(name: str) -> bool:
    return (
        len(name) > NAME_CHARACTERS
        or any(unicodedata.category(letter) in _INVISIBLE for letter in name)
        or unicodedata.normalize("NFC", name) != name
        or any(part.endswith((".", " ")) for part in name.split("/"))
    )


def _find_bytes(path: Path, file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Position of a member's first byte, which only the header before it tells."""
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) == _LOCAL_HEADER.size:
        magic, _, flags, method, _, _, crc, *sizes, name_size, extra_size = _LOCAL_HEADER.unpack(header)
        name = file.read(name_size)
        extra = _read_extra(file.read(extra_size))
        same = (flags, method, name) == (info.flag_bits, info.compress_type, info.orig_filename.encode())
        if magic == b"PK\x03\x04" and same and extra is not None and _agrees(info, crc, sizes, extra):
            return info.header_offset + _LOCAL_HEADER.size + int(name_size + extra_size)
    raise _refusal(path, f"another header before {quoted(info.filename)} than in the directory")


def _agrees(info: zipfile.ZipInfo, crc: int, sizes: list[int], extra: dict[int, bytes]) -> bool:
    """Whether the header before a member tells the sizes of the directory, or leaves them to what follows it."""
    if not extra.keys() <= _EXTRA_KINDS:
        return False
    if info.flag_bits & _DESCRIBED_BEHIND and crc == 0 and set(sizes) <= {0, _ELSEWHERE}:
        return True
    large = extra.get(_SIZES_KIND, b"")
    if _ELSEWHERE in sizes and len(large) == 16:
        sizes = list(struct.unpack("<2Q", large))
    return crc == info.CRC and sizes == [info.file_size, info.file_size]


def _read_descriptor(path: Path, file: IO[bytes], info: zipfile.ZipInfo, end: int) -> int:
    """Number of the bytes behind a member that repeat its checksum and sizes."""
    if not info.flag_bits & _DESCRIBED_BEHIND:
        return 0
    file.seek(end)
    behind = file.read(24)
    for form in ("<4s3I", "<4sI2Q", "<3I", "<I2Q"):
        *magic, crc, size, again = struct.unpack_from(form, behind.ljust(24, b"\0"))
        if magic in ([], [b"PK\x07\x08"]) and (crc, size, again) == (info.CRC, info.file_size, info.file_size):
            return struct.calcsize(form)
    raise _refusal(path, f"other sizes behind {quoted(info.filename)} than in the directory")


def _read_extra(data: bytes) -> dict[int, bytes] | None:
    """Further facts of a header, by their kind, or None where they are cut short or stand twice."""
    facts: dict[int, bytes] = {}
    while data:
        if len(data) < _EXTRA.size:
            return None
        kind, size = _EXTRA.unpack_from(data)
        if kind in facts or size > len(data) - _EXTRA.size:
            return None
        facts[kind], data = data[_EXTRA.size : _EXTRA.size + size], data[_EXTRA.size + size :]
    return facts


def _refusal(path: Path, found: str) -> FormatError:
    return FormatError(
        str(path),
        found=f"an archive that lists {found}",
        expected="members stored as they are, each once, side by side in one folder",
        fix="Save the program again, and copy the file as it is.",
    )
