"""Compare the bytes of a file's members with the hashes that its manifest gives, when they are first needed."""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from intarsia.formats.archive.directory import Member
from intarsia.formats.archive.listing import damaged
from intarsia.formats.archive.writer import MemberEntry

_CHUNK_BYTES = 4 << 20  # a multiple of every page size


class Integrity:
    """The hashes of a file, each compared once.

    Args:
        path: Named in errors.
        file: The file; it may be closed afterwards.
        directory: Where its members lie.
        entries: The hash of each member that can be checked.
    """

    def __init__(
        self, path: Path, file: IO[bytes], directory: Mapping[str, Member], entries: Mapping[str, MemberEntry]
    ) -> None:
        self._path = path
        self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._directory = directory
        self._entries = entries
        self._checked: set[str] = set()
        self._lock = threading.Lock()

    def check(self, names: Iterable[str]) -> None:
        """Compare members with their hashes, unless that was done before.

        Raises:
            FormatError: A member is damaged; names it.
        """
        with self._lock:
            unchecked = sorted(set(names) - self._checked)
            with ThreadPoolExecutor(os.cpu_count(), "intarsia-sha256") as pool:
                digests = dict(zip(unchecked, pool.map(self._digest, unchecked), strict=True))
            wrong = [name for name, digest in digests.items() if digest != self._entries[name].sha256]
            self._checked.update(digests.keys() - wrong)
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise damaged(self._path, f"a damaged member {wrong[0]!r}{more}")

    def read(self, name: str) -> bytes:
        """The bytes of a member, of the file that was opened, also where another one has taken its place.

        Raises:
            FormatError: It is damaged.
        """
        self.check([name])
        member = self._directory[name]
        return self._mapping[member.offset : member.offset + member.size_bytes]

    def _digest(self, name: str) -> str:
        """SHA-256 of a member's bytes, in hexadecimal; none of them stays in the memory of the process."""
        start, end = self._directory[name].offset, self._directory[name].offset + self._directory[name].size_bytes
        digest = hashlib.sha256()
        for chunk in range(start // _CHUNK_BYTES * _CHUNK_BYTES, end, _CHUNK_BYTES):
            with memoryview(self._mapping)[max(chunk, start) : min(chunk + _CHUNK_BYTES, end)] as data:
                digest.update(data)
            if hasattr(mmap, "MADV_DONTNEED"):  # not on every system
                self._mapping.madvise(mmap.MADV_DONTNEED, chunk, min(_CHUNK_BYTES, end - chunk))
        return digest.hexdigest()
