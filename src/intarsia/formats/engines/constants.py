"""Constants of engines that lie in a file, once for all engines that refer to them."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from intarsia.core.container import EngineContainer
from intarsia.errors import EngineError
from intarsia.formats.archive.directory import Member
from intarsia.formats.archive.writer import MemberEntry


class FileConstants:
    """The members of an archive by their SHA-256, as `intarsia.core.constants` wants them.

    They are mapped for reading alone: what a program writes into a tensor of the same member is not seen here.

    Args:
        path: Named in errors.
        file: The archive; it may be closed afterwards.
        directory: Its members.
        entries: What the manifest tells of them.
    """

    def __init__(
        self, path: Path, file: IO[bytes], directory: Mapping[str, Member], entries: Mapping[str, MemberEntry]
    ) -> None:
        self._path = path
        self._whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._members = {entry.sha256: directory[name] for name, entry in entries.items()}

    def read(self, sha256: str) -> memoryview:
        """The bytes of a member; they are not compared with the hash."""
        member = self._members[sha256]
        return memoryview(self._whole)[member.offset : member.offset + member.size_bytes]

    def place(self, sha256: str) -> str:
        """Where the bytes are, for messages."""
        return f"member {self._members[sha256].name!r} of {self._path}"

    def check(self, container: EngineContainer) -> None:
        """Refuse a container that refers to what is not here.

        Raises:
            EngineError: Names the engine.
        """
        for constant in container.outside:
            if constant.sha256 not in self._members:
                raise EngineError(
                    container.subject,
                    found=f"no member with a constant of it, of {constant.size} bytes",
                    expected=f"one whose SHA-256 is {constant.sha256[:16]}...",
                    consequence="The engine could not be built from its portable form.",
                    fix="Copy or save the file again.",
                )
