"""The command line. Importing it does not import torch: each command imports what it needs when it runs."""

from __future__ import annotations

from intarsia.cli.application import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line on `sys.argv` and exit: 0 right, 1 checked and wrong, 2 cannot be done as asked."""
    app(prog_name="intarsia")
