"""Write a file beside the one that it replaces, so that a failure leaves the old one whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from intarsia.errors import FormatError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a new empty file in the folder of `path`; put it in the place of `path` when the block ends well.

    The content reaches the disk before the old file goes. When the block raises, the new file is removed and the
    exception goes on. A link at `path` is kept, and what it points to is replaced.

    Raises:
        FormatError: The folder is missing or cannot be written, `path` is a folder, or the disk is full.
    """
    target = find_target(path)
    new = target.with_name(f".{secrets.token_hex(8)}{target.suffix}")
    try:
        new.open("xb").close()
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        yield new
        _put(new, target)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        new.unlink(missing_ok=True)


def find_target(path: Path) -> Path:
    """The file to write for a path, links followed; its folder exists.

    Raises:
        FormatError: The path is a folder, leads into a folder that does not exist, or cannot be.
    """
    try:
        target = path.resolve()
        with suppress(FileNotFoundError, NotADirectoryError):
            target.stat()  # raises for a path that cannot be, where some versions of `is_dir` only say no
        is_folder, has_folder = target.is_dir(), target.parent.is_dir()
    except (OSError, ValueError) as error:  # a ValueError is about the path's text
        raise unwritable(path, error) from error
    if is_folder:
        raise FormatError(str(path), found="a folder", expected="a file name", fix="Add a file name to the path.")
    if not has_folder:
        raise FormatError(str(path), found="no folder there", expected="one", fix=f"Create {target.parent} first.")
    return target


def unwritable(path: Path, error: Exception) -> FormatError:
    """The error that says why `path` cannot be written."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).strip().split("\n")[0]
    return FormatError(
        str(path),
        found=f"that it cannot be written ({reason})",
        expected="a place for the file",
        fix="Choose another path, or make room and give leave to write there.",
    )


def _put(new: Path, target: Path) -> None:
    if target.exists():
        new.chmod(target.stat().st_mode)
    _sync(new, os.O_RDWR)
    new.replace(target)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        _sync(target.parent, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
