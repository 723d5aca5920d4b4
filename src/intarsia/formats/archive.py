"""Look into a PT2 archive without torch: what it is, which members it has, and the manifest."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from intarsia.errors import FormatError
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


class Archive:
    """The members of an archive, by their names below its root folder.

    Attributes:
        path: Where it is.
        names: Names of the members as they stand in the archive.
        members: Names of the members.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._archive = archive
        self.names = frozenset(archive.namelist())
        names = [name for name in archive.namelist() if "/" in name]
        self._root = names[0].partition("/")[0] if names else ""
        prefix = f"{self._root}/"
        self.members = frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    def read(self, member: str) -> bytes:
        """Bytes of a member.

        Raises:
            FormatError: They are damaged.
        """
        try:
            return self._archive.read(f"{self._root}/{member}")
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise damaged(self.path, f"a damaged member {member!r}") from error

    def size_bytes(self, member: str) -> int:
        """Size of a member."""
        return self._archive.getinfo(f"{self._root}/{member}").file_size


def open_archive(path: Path) -> zipfile.ZipFile:
    """The zip archive at a path, still unread.

    Raises:
        FormatError: There is no file, it cannot be read, or it is something else; says what it looks like.
    """
    try:
        if path.is_dir():
            raise foreign(path, FOLDER)
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError as error:
        raise FormatError(str(path), found="no file", expected=_EXPECTED, fix="Check the path.") from error
    except (OSError, ValueError) as error:  # a ValueError is about the path's text
        found = f"that it cannot be read ({getattr(error, 'strerror', None) or error})"
        fix = "Check the path, and whether you may read it."
        raise FormatError(str(path), found=found, expected=_EXPECTED, fix=fix) from error
    if not is_zip(start):
        raise foreign(path, kind_of_start(start))
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        raise foreign(path, DAMAGED_ARCHIVE) from error


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


def pickled_members(archive: Archive) -> Iterator[str]:
    """Members that torch would unpickle, and what they hold."""
    for name in sorted(archive.members):
        leaf = name.rpartition("/")[2]
        if name.startswith("data/sample_inputs/") and archive.size_bytes(name):
            yield f"{name} (example inputs)"
        if name.startswith("data/constants/") and leaf.startswith(("custom_obj_", "opaque_obj_")):
            yield f"{name} (an object)"
        if name.startswith("data/") and leaf.endswith("_config.json"):
            entries = json.loads(archive.read(name)).get("config", {})
            yield from (f"{entry!r} in {name}" for entry, payload in entries.items() if payload.get("use_pickle"))


def damaged(path: Path, found: str) -> FormatError:
    """The error for a file that is not whole."""
    return foreign(path, Kind(found, DAMAGED_ARCHIVE.advice))
