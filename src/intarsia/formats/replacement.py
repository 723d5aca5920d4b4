"""Write a file beside the one that it replaces, so that a failure leaves the old one whole."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from intarsia.errors import FormatError, first_line
from intarsia.formats.unfinished import remove_unfinished, unfinished_file

_ACCESS_LIST = "system.posix_acl_access"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a new empty file in the folder of `path`; put it in the place of `path` when the block ends well.

    The content reaches the disk before the old file goes. When the block raises, the new file is removed and the
    exception goes on. A writer that is killed leaves its new file, which the next one that writes `path` removes; not
    on Windows, see `unfinished_file`.

    A link at `path` is kept, and what it points to is replaced. The new file takes over the old one's mode, and its
    owner, group and (on Linux) access list where the system lets it; other attributes are those of a new file.

    Raises:
        FormatError: The folder is missing or cannot be written, `path` is no file, or the disk is full.
    """
    target = find_target(path)
    try:
        remove_unfinished(target)  # before the new file needs the room
        with unfinished_file(target) as new:
            yield new
            _put(new, target)
    except OSError as error:
        raise unwritable(path, error) from error


def find_target(path: Path) -> Path:
    """The file to write for a path, links followed; its folder exists.

    Raises:
        FormatError: The path is a folder or a device, leads into a folder that does not exist, or cannot be.
    """
    kind = 0
    try:
        target = path.resolve()
        with suppress(FileNotFoundError, NotADirectoryError):
            kind = target.stat().st_mode  # raises for a path that cannot be, where `is_dir` may only say no
        has_folder = target.parent.is_dir()
    except (OSError, ValueError, RuntimeError) as error:  # before Python 3.13 a loop of links is a RuntimeError
        raise unwritable(path, error) from error
    if kind and not stat.S_ISREG(kind):
        found, fix = ("a folder", "Add a file name to the path.") if stat.S_ISDIR(kind) else ("a device or pipe", "")
        raise FormatError(str(path), found=found, expected="a file name", fix=fix or "Choose another path.")
    if not has_folder:
        raise FormatError(str(path), found="no folder there", expected="one", fix=f"Create {target.parent} first.")
    return target


def unwritable(path: Path, error: Exception) -> FormatError:
    """The error that says why `path` cannot be written."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
    return FormatError(
        str(path),
        found=f"that it cannot be written ({reason})",
        expected="a place for the file",
        fix="Choose another path, or make room and give leave to write there.",
    )


def _put(new: Path, target: Path) -> None:
    descriptor = os.open(new, os.O_RDWR)
    try:
        with suppress(FileNotFoundError):
            _take_over_access(new, target)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    new.replace(target)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        _sync_folder(target.parent)


def _take_over_access(new: Path, target: Path) -> None:
    """Let the same people read and write the new file as the old one, and nobody else."""
    old = target.stat()
    mode = stat.S_IMODE(old.st_mode) & 0o777
    if sys.platform == "win32":
        new.chmod(mode)
        return
    if not _take_over_owner(new, old):
        mode &= 0o707 | (mode & 0o007) << 3  # it is another group
    new.chmod(mode)
    if sys.platform == "linux":
        with suppress(OSError):  # few files have a list, and some file systems know none
            os.setxattr(new, _ACCESS_LIST, os.getxattr(target, _ACCESS_LIST))


def _take_over_owner(new: Path, old: os.stat_result) -> bool:
    """Whether the new file has the group of the old one in the end; only an administrator may give a file away."""
    for owner in (old.st_uid, -1):
        with suppress(OSError):
            os.chown(new, owner, old.st_gid)
            break
    return new.stat().st_gid == old.st_gid


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems sync no folder
            raise
    finally:
        os.close(descriptor)
