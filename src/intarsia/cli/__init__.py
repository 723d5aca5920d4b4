"""The command line. Importing it imports nothing: each command imports what it needs when it runs."""

from __future__ import annotations

import sys

__all__ = ["INTERRUPTED", "main"]

INTERRUPTED = "interrupted: no file is left half-written"


def main() -> None:
    """Run the command line on `sys.argv` and exit: 0 right, 1 checked and wrong, 2 cannot be done as asked."""
    try:
        from intarsia.cli.application import app  # here, so that an interruption of the import is told too

        app(prog_name="intarsia")
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)  # noqa: T201 - the console may not be imported yet
        sys.exit(130)
