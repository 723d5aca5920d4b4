"""Check the place of a file that a command is to write, before the work that makes its content."""

from __future__ import annotations

import os
from pathlib import Path

from intarsia.errors import FormatError
from intarsia.formats.archive.layout import checked_path
from intarsia.formats.replacement import find_target


def check_output(output: Path, ending: str, *, force: bool) -> None:
    """Refuse a path that cannot be written or must not be: a build takes long, and a mistyped path is found at once.

    Args:
        output: File to write.
        ending: What its name must end with, for instance ".pt2".
        force: Whether a file that exists may be replaced.

    Raises:
        FormatError: The path is a folder, has another ending, lies in a folder that does not exist or cannot be
            written, or exists and `force` is false.
    """
    subject = str(output)
    target = find_target(checked_path(output))
    if output.suffix != ending:
        found = f"the ending {output.suffix!r}" if output.suffix else "no ending"
        raise FormatError(subject, found=found, expected=repr(ending), fix=f"Name the file *{ending}.")
    if not os.access(target.parent, os.W_OK):
        raise FormatError(
            subject,
            found=f"a folder that you may not write ({target.parent})",
            expected="a place for the file",
            fix="Choose another folder.",
        )
    if output.exists() and not force:
        raise FormatError(
            subject,
            found="a file that exists",
            expected="a free path",
            fix="Choose another name, or add --force to replace it.",
        )
