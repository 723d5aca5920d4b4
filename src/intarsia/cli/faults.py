"""What a person reads when a command fails: one message, and a traceback only where it is of their own code."""

from __future__ import annotations

import traceback

from intarsia.cli import INTERRUPTED
from intarsia.cli.console import error_console
from intarsia.cli.target import FactoryError
from intarsia.errors import IntarsiaError, first_line


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
    text = str(error) if isinstance(error, IntarsiaError) else _unforeseen(error)
    console.print(f"error: {text}", style="red", markup=False)


def tell_interruption() -> None:
    """Print to standard error that the command was interrupted."""
    error_console().print(INTERRUPTED, markup=False)


def _unforeseen(error: Exception) -> str:
    return (
        f"intarsia: found {type(error).__name__} ({first_line(error)}), expected none. This is a fault of intarsia. "
        "Add --debug to see where, and report it."
    )
