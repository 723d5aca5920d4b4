"""Look into a PT2 archive without torch: what it is, which members it has, and the manifest."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from intarsia.errors import FormatError

_MAGICS = (
    (b"\x80\x02", "a pickle"),
    (b"\x7fELF", "a shared library"),
    (b"\x08", "an ONNX model"),
)
_EXPECTED = "a PT2 archive"
_COPY_AGAIN = "Copy or save the file again."


class Archive:
    """The members of an archive, by their names below its root folder.

    Attributes:
        path: Where it is.
        members: Names of the members.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._archive = archive
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
            raise FormatError(str(path), found="a folder", expected=_EXPECTED, fix="Give the path of the file.")
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError as error:
        raise FormatError(str(path), found="no file", expected=_EXPECTED, fix="Check the path.") from error
    except (OSError, ValueError) as error:  # a ValueError is about the path's text
        found = f"that it cannot be read ({getattr(error, 'strerror', None) or error})"
        fix = "Check the path, and whether you may read it."
        raise FormatError(str(path), found=found, expected=_EXPECTED, fix=fix) from error
    if not start:
        raise damaged(path, "an empty file")
    if start.startswith(b"PK\x03\x04"):
        return _open_zip(path)
    raise FormatError(
        str(path), found=_recognise(start), expected=_EXPECTED, fix="Load it with the tool that wrote it."
    )


def check_kind(archive: Archive) -> None:
    """Refuse an archive that does not hold one exported program named `model`.

    Raises:
        FormatError: Says what it is.
    """
    members = archive.members
    if "models/model.json" in members:
        return
    if any(name.startswith("data/aotinductor/") for name in members):
        found = "an AOTInductor package"
    elif any(name.startswith("code/") for name in members):
        found = "a TorchScript program"
    elif "data.pkl" in members:
        found = "tensors saved by torch.save"
    elif any(name.startswith("models/") for name in members):
        found = "a PT2 archive without a program named 'model'"
    else:
        found = "a zip archive of another kind"
    raise FormatError(str(archive.path), found=found, expected=_EXPECTED, fix="Load it with the tool that wrote it.")


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
    return FormatError(str(path), found=found, expected=_EXPECTED, fix=_COPY_AGAIN)


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        raise damaged(path, "an archive that is cut short or damaged") from error


def _recognise(start: bytes) -> str:
    if start[4:8] in (b"ET12", b"ET13"):
        return "an ExecuTorch program"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        return "a safetensors file"
    return next((what for magic, what in _MAGICS if start.startswith(magic)), "a file of an unknown kind")
