"""Look into a PT2 archive without torch: what it is, and which members it has."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from intarsia.errors import FormatError
from intarsia.formats.archive.directory import Member, read_directory
from intarsia.formats.archive.ending import count_members
from intarsia.formats.archive.limits import TEXT_BYTES
from intarsia.formats.archive.refusal import quoted
from intarsia.formats.recognition import (
    DAMAGED_ARCHIVE,
    FOLDER,
    PROGRAM,
    Kind,
    is_zip,
    kind_of_members,
    kind_of_start,
)

_EXPECTED = PROGRAM.what
_CHUNK_BYTES = 1 << 20


class Archive:
    """An open archive, and its members by their names below its root folder.

    Attributes:
        path: Where it is.
        file: The file.
        names: Names of the members as they stand in the archive.
        members: Names of the members.
    """

    def __init__(self, path: Path, file: IO[bytes], archive: zipfile.ZipFile) -> None:
        self.path = path
        self.file = file
        self._archive = archive
        self.names = frozenset(archive.namelist())
        names = [name for name in archive.namelist() if "/" in name]
        self._root = names[0].partition("/")[0] if names else ""
        prefix = f"{self._root}/"
        self.members = frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    def read(self, member: str) -> bytes:
        """Bytes of a member that is small enough to be read whole.

        Raises:
            FormatError: It is not there, damaged, or larger than the limit.
        """
        if member not in self.members:
            raise damaged(self.path, f"no member {quoted(member)}")
        with self._open(member) as file:
            size = self._archive.getinfo(f"{self._root}/{member}").file_size
            if size > TEXT_BYTES:
                raise damaged(self.path, f"a member {quoted(member)} of {size} bytes, more than {TEXT_BYTES},")
            return file.read()

    def check(self, member: str) -> None:
        """Compare the bytes of a member with the checksum that the archive has of them.

        Raises:
            FormatError: It is damaged.
        """
        with self._open(member) as file:
            while file.read(_CHUNK_BYTES):
                pass

    @contextmanager
    def _open(self, member: str) -> Iterator[IO[bytes]]:
        try:
            with self._archive.open(f"{self._root}/{member}") as file:
                yield file
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise damaged(self.path, f"a damaged member {quoted(member)}") from error

    def directory(self) -> dict[str, Member]:
        """Where each member lies in the file.

        Raises:
            FormatError: The directory is not one of a file that intarsia writes.
        """
        return read_directory(self.path, self.file, self._archive)


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """The archive at a path, of which nothing but the directory has been read.

    Raises:
        FormatError: There is no file, it cannot be read, or it is something else; says what it looks like.
    """
    with _open_file(path) as file, _telling_unreadable(path):
        start = file.read(64)
        if not is_zip(start):
            raise foreign(path, kind_of_start(start))
        count = count_members(path, file)
        try:
            opened = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, OSError, struct.error) as error:
            raise foreign(path, DAMAGED_ARCHIVE) from error
        if len(opened.filelist) != count:
            raise foreign(path, DAMAGED_ARCHIVE)
        with opened:
            yield Archive(path, file, opened)


def _open_file(path: Path) -> IO[bytes]:
    with _telling_unreadable(path):
        try:
            if path.is_dir():
                raise foreign(path, FOLDER)
            return path.open("rb")
        except FileNotFoundError as error:
            raise FormatError(str(path), found="no file", expected=_EXPECTED, fix="Check the path.") from error
        except ValueError as error:  # it is about the path's text
            raise OSError(str(error)) from error


@contextmanager
def _telling_unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        found = f"that it cannot be read ({error.strerror or error})"
        fix = "Check the path, and whether you may read it."
        raise FormatError(str(path), found=found, expected=_EXPECTED, fix=fix) from error


def check_kind(archive: Archive) -> None:
    """Refuse an archive that does not hold one exported program named `model`.

    Raises:
        FormatError: Says what it is.
    """
    kind = kind_of_members(archive.names)
    if kind is not PROGRAM:
        raise foreign(archive.path, kind)


def foreign(path: Path, kind: Kind) -> FormatError:
    """The error for a file of another kind."""
    return FormatError(str(path), found=kind.what, expected=_EXPECTED, fix=kind.advice)


def damaged(path: Path, found: str) -> FormatError:
    """The error for a file that is not whole."""
    return foreign(path, Kind(found, DAMAGED_ARCHIVE.advice))
