"""Files that are being written, told apart from those that dead writers left: by a lock that ends with its process."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_ENDING = ".saving"
# With the dots, the random part and the ending the name stays below 255 bytes, the limit of most file systems.
_LONGEST_START_BYTES = 200


@contextmanager
def unfinished_file(target: Path) -> Iterator[Path]:
    """A new empty file in the folder of `target`, removed when the block ends unless it was renamed.

    Its name tells the target's. While the block runs it holds a lock, by which `remove_unfinished` knows that its
    writer lives: a number of a process would say nothing to another machine or container. Windows, and file systems
    without locks, know no such lock; there nothing is ever removed.

    Raises:
        OSError: The file cannot be made.
    """
    path, lock = _create(target)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)


def remove_unfinished(target: Path) -> None:
    """Remove the files that writers of `target` left when they were killed; those of living writers stay."""
    start = f".{_start_of_name(target)}."
    with suppress(OSError):  # a folder that cannot be read may still be written
        for name in os.listdir(target.parent):  # noqa: PTH208 - iterdir makes a path of every name
            if name.startswith(start) and name.endswith(_ENDING):
                _remove_dead(target.parent / name)


def _create(target: Path) -> tuple[Path, int | None]:
    # What replaces a private file is private from its first byte on.
    mode = 0o600 if target.exists() else 0o666
    while True:
        path = target.with_name(f".{_start_of_name(target)}.{secrets.token_hex(8)}{_ENDING}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        if sys.platform == "win32":  # an open file could not be renamed there
            os.close(descriptor)
            return path, None
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # another writer took it for a dead one's before it was locked


def _remove_dead(path: Path) -> None:
    if sys.platform == "win32":
        return
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            # A shared lock needs no leave to write, and a dead writer may have taken that away already.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                path.unlink()
        finally:
            os.close(descriptor)


def _start_of_name(target: Path) -> str:
    return os.fsencode(target.name)[:_LONGEST_START_BYTES].decode(errors="ignore")
