"""What a person reads when a command fails: one message, and a traceback only where it is of their own code."""

from __future__ import annotations

import errno
import traceback

from intarsia.cli import INTERRUPTED
from intarsia.cli.console import error_console
from intarsia.cli.target import FactoryError
from intarsia.errors import IntarsiaError, first_line

_WRITERS = frozenset({"compile", "export", "run"})


def tell_fault(error: Exception, *, debug: bool) -> None:
    """Print the message of an error to standard error.

    Args:
        error: Any exception. One that is not intarsia's own is told as a fault of intarsia.
        debug: Whether to print its whole traceback first.
    """
    console = error_console()
    if debug:
        console.print("".join(traceback.format_exception(error)), markup=False, end="")
    elif isinstance(error, FactoryError):
        console.print(error.own_traceback, markup=False, end="")
    text = str(error) if isinstance(error, IntarsiaError) else _unwritable(error) or _unforeseen(error)
    console.print(f"error: {text}", style="red", markup=False)


def tell_interruption(command: str | None) -> None:
    """Print to standard error that a command was interrupted."""
    text = f"{INTERRUPTED}: no file is left half-written" if command in _WRITERS else INTERRUPTED
    error_console().print(text, markup=False)


def _unwritable(error: Exception) -> str | None:
    """The message where what a command prints finds no room; what it saves is told by the save itself."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return None
    return (
        f"standard output: found that it cannot be written ({error.strerror}), expected room for what is printed. "
        "Make room, or send it elsewhere."
    )


def _unforeseen(error: Exception) -> str:
    return (
        f"intarsia: found {type(error).__name__} ({first_line(error)}), expected none. This is a fault of intarsia. "
        "Add --debug to see where, and report it."
    )
