"""Write a zip archive as a stream: members stored as they are, aligned, each with its SHA-256."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

# A member that is mapped begins at a multiple of this many bytes, as in the files of torch.
ALIGNMENT = 64

_ROOT = "archive"
# An extra field of this kind holds the alignment and zeros; tools that align archives know it.
_PADDING = struct.Struct("<3H")
PADDING_KIND = 0xD935
# From here on the sizes stand in a field of their own, well below where `zipfile` would decide so by itself.
_BIG = 1 << 30


class MemberEntry(NamedTuple):
    """What the manifest tells of a member.

    Attributes:
        size_bytes: Its size.
        sha256: SHA-256 of its bytes, in hexadecimal.
    """

    size_bytes: int
    sha256: str


class Streamed(Protocol):
    """A member that is written chunk by chunk; see `Writer.stream`."""

    @property
    def name(self) -> str:
        """Its name below the root folder."""
        ...

    @property
    def size_bytes(self) -> int:
        """Number of its bytes."""
        ...

    def chunks(self) -> Iterable[memoryview]:
        """Its bytes."""
        ...


class Writer:
    """A new archive; the directory is written when the block ends.

    The bytes of the file depend on names, contents and their order only: times are fixed.

    Args:
        path: An empty file.

    Attributes:
        members: What was written, by name.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Writer(Path(folder, "a.pt2")) as writer:
        ...         writer.write("byteorder", b"little")
        ...     print(zipfile.ZipFile(Path(folder, "a.pt2")).namelist(), writer.members["byteorder"].size_bytes)
        ['archive/byteorder'] 6
    """

    def __init__(self, path: Path) -> None:
        self.members: dict[str, MemberEntry] = {}
        self._file = path.open("wb")
        self._archive = zipfile.ZipFile(self._file, "w")
        self._hashing = ThreadPoolExecutor(1, "intarsia-sha256")

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._hashing.shutdown()
        with self._file:
            self._archive.close()

    def write(self, name: str, data: bytes) -> None:
        """Write a member that is in memory as a whole."""
        self.stream(name, len(data), [memoryview(data)])

    def stream(self, name: str, size_bytes: int, chunks: Iterable[memoryview]) -> None:
        """Write a member chunk by chunk.

        Args:
            name: Name below the root folder.
            size_bytes: Sum of the chunks' sizes.
            chunks: Contiguous bytes. The next one is asked for when the one before it is written.

        Raises:
            OSError: The file cannot be written.
        """
        digest = hashlib.sha256()
        info = self._describe(name, size_bytes)
        with self._archive.open(info, "w", force_zip64=size_bytes >= _BIG) as member:
            for chunk in chunks:
                hashed = self._hashing.submit(digest.update, chunk)
                member.write(chunk)
                hashed.result()
        self.members[name] = MemberEntry(size_bytes, digest.hexdigest())

    def _describe(self, name: str, size_bytes: int) -> zipfile.ZipInfo:
        info = zipfile.ZipInfo(f"{_ROOT}/{name}")
        info.create_system = 3  # else it would tell on which system the file was written
        info.file_size, info.compress_size, info.CRC = size_bytes, 0, 0
        start = self._file.tell() + len(info.FileHeader(zip64=size_bytes >= _BIG)) + _PADDING.size
        padding = -start % ALIGNMENT
        info.extra = _PADDING.pack(PADDING_KIND, 2 + padding, ALIGNMENT) + bytes(padding)
        return info
