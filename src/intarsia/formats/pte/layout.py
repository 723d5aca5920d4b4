"""The parts of a `.pte`: a program, segments of bytes, and at the end the seal of intarsia.

    program, with a header where segments follow | segments | seal

The seal is the SHA-256 of all bytes before it, their number (u64, little-endian) and a magic. ExecuTorch reads no
byte of it: the header says where the segments end, and a program without segments ends by itself.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple

from intarsia.errors import FormatError
from intarsia.formats.recognition import FOLDER, PROGRAM, recognise

_SEAL = struct.Struct("<32sQ8s")
_MAGIC = b"INTARPTE"
# Magic of the program, of the header; sizes of header and program, start and size of the segments.
_HEADER = struct.Struct("<4x4s4sIQQQ")
_CHUNK_BYTES = 1 << 20


class Layout(NamedTuple):
    """Where the parts of a file lie.

    Attributes:
        program_bytes: Size of the program, from the start of the file on.
        segments: Where segments begin; 0 where there are none.
        end: Where the program and its segments end.
        sealed: Whether a seal follows.
    """

    program_bytes: int
    segments: int
    end: int
    sealed: bool


class SealedFile:
    """A new file whose bytes are hashed as they are written.

    Args:
        file: Open for writing; nothing has been written.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._count = 0

    def write(self, data: bytes) -> int:
        """Write bytes; gives their number, as files do."""
        self._digest.update(data)
        self._count += len(data)
        return self._file.write(data)

    def seal(self) -> None:
        """Write the seal, the end of the file."""
        self._file.write(_SEAL.pack(self._digest.digest(), self._count, _MAGIC))


@contextmanager
def open_pte_file(path: Path) -> Iterator[IO[bytes]]:
    """The file at a path, which begins as ExecuTorch's do.

    Raises:
        FormatError: There is none, it cannot be read, or it is of another kind.
    """
    try:
        kind = recognise(path)
        with nullcontext(BytesIO()) if kind is FOLDER else path.open("rb") as file:
            if file.read(6)[4:] != b"ET":
                advice = "Name the file *.pt2." if kind is PROGRAM else kind.advice
                raise FormatError(str(path), found=kind.what, expected="an ExecuTorch program", fix=advice)
            yield file
    except FileNotFoundError as error:
        raise FormatError(str(path), found="no file", expected="a .pte file", fix="Check the path.") from error
    except (OSError, ValueError) as error:  # a ValueError is about the path's text
        found = f"that it cannot be read ({getattr(error, 'strerror', None) or error})"
        fix = "Check the path, and whether you may read it."
        raise FormatError(str(path), found=found, expected="a .pte file", fix=fix) from error


def read_layout(path: Path, file: IO[bytes]) -> Layout:
    """Where the parts of a file lie; a file with a seal is compared with it.

    Raises:
        FormatError: The file is cut short, or is not what was written.
    """
    size = file.seek(0, 2)
    file.seek(0)
    _, header, _, program_bytes, segments, segment_bytes = _HEADER.unpack(
        file.read(_HEADER.size).ljust(_HEADER.size, b"\0")
    )
    if header != b"eh00":
        program_bytes = segments = segment_bytes = 0
    end = max(program_bytes, segments + segment_bytes)
    if size < max(end, _HEADER.size):
        raise damaged(path, f"{size} bytes, where its header says {max(end, _HEADER.size)}")
    sealed = _check_seal(path, file, size)
    content = size - _SEAL.size if sealed else size
    if end and content != end:
        raise damaged(path, f"{content - end} bytes after its last segment")
    return Layout(program_bytes or content, segments, content, sealed)


def damaged(path: Path, found: str) -> FormatError:
    """The error for a file that is not whole."""
    return FormatError(str(path), found=found, expected="a whole .pte file", fix="Copy or save the file again.")


def _check_seal(path: Path, file: IO[bytes], size: int) -> bool:
    """Whether a file ends with a seal, which it is compared with."""
    if size < _SEAL.size:
        return False
    file.seek(size - _SEAL.size)
    sha256, count, magic = _SEAL.unpack(file.read(_SEAL.size))
    if magic != _MAGIC:
        return False
    if count != size - _SEAL.size:
        raise damaged(path, f"{size - _SEAL.size} bytes before its seal, which is of {count}")
    if digest_of(file, 0, count).digest() != sha256:
        raise damaged(path, "bytes that do not match its SHA-256")
    return True


def digest_of(file: IO[bytes], start: int, size_bytes: int) -> hashlib._Hash:
    """The SHA-256 of a run of bytes of a file, read in pieces."""
    digest = hashlib.sha256()
    file.seek(start)
    while size_bytes > 0 and (chunk := file.read(min(_CHUNK_BYTES, size_bytes))):
        digest.update(chunk)
        size_bytes -= len(chunk)
    return digest
