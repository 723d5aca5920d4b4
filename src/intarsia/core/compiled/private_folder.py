"""A folder for files that have to be on the disk for a moment, and that nobody else may see."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from intarsia.errors import EngineError, first_line

_PREFIX = "intarsia-compiled-code-"
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")  # as `mkdtemp` makes them
_YOUNG_SECONDS = 60


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder that its owner alone may enter, and that is removed when the block ends.

    A process that dies inside of the block leaves its folder. The next one that makes a folder removes it: a lock on
    the folder, which ends with the process, tells that nobody uses it.

    Raises:
        EngineError: No folder can be made.

    Example:
        >>> with private_folder() as folder:
        ...     print(oct(folder.stat().st_mode & 0o777))
        0o700
        >>> folder.exists()
        False
    """
    folder = _make_folder()
    descriptor = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _make_folder() -> Path:
    try:
        _remove_abandoned()
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        raise EngineError(
            "compiled code",
            found=f"no folder to open it in ({first_line(error)})",
            expected="a folder for temporary files that can be written",
            fix="Name one in the environment variable TMPDIR.",
        ) from error


def _remove_abandoned() -> None:
    """Remove what processes have left that died, and no folder that somebody else may have made."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Another process may be about to lock a young one, or to remove any.
        with suppress(OSError):
            status = folder.lstat()
            mine = sys.platform != "win32" and status.st_uid == os.getuid() and _NAME.fullmatch(folder.name)
            private = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
            if not mine or not private or time.time() - status.st_mtime < _YOUNG_SECONDS:
                continue
            descriptor = _lock(folder)
            if descriptor is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)


def _lock(folder: Path) -> int | None:
    """Lock a folder until the descriptor is closed; None where somebody else has locked it, or nobody can."""
    if sys.platform == "win32":
        return None
    import fcntl  # noqa: PLC0415 - not on Windows

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
