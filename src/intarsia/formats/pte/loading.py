"""Read ExecuTorch files that intarsia wrote."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from intarsia.errors import EngineRefused, FormatError, first_line
from intarsia.formats.archive.layout import checked_path
from intarsia.formats.pte.description import DESCRIPTION, Description, read_description
from intarsia.formats.pte.library import import_executorch
from intarsia.formats.pte.positions import InputPositions
from intarsia.formats.recognition import FOLDER, recognise

Run = Callable[[Sequence[Any]], Sequence[Any]]

# Magic, size of the header, size of the program, start of the segments, size of the segments.
_HEADER = struct.Struct("<4x4s4sIQQQ")


class PteFile(NamedTuple):
    """A file whose methods can be loaded.

    Attributes:
        boundaries: What each method takes and gives, by name.
        load: Loads all methods anew, on one state in its initial values; by name, each takes flat inputs and gives flat
            outputs.
    """

    boundaries: Mapping[str, torch.export.ExportedProgram]
    load: Callable[[], dict[str, Run]]


def has_pte_ending(path: object) -> bool:
    """Whether a path ends in `.pte`."""
    return isinstance(path, str | os.PathLike) and Path(path).suffix == ".pte"


def open_pte(path: str | os.PathLike[str], *, rebuild: bool = False, verify: bool = False) -> PteFile:
    """Read what a `.pte` says of itself.

    Load only files that you trust: they hold compiled engines.

    Args:
        path: Of the file.
        rebuild: Refused, for the file has no portable forms of engines.
        verify: Refused, for the file has no hashes.

    Raises:
        EngineUnavailable: ExecuTorch is not installed, or its versions do not go together.
        FormatError: The file is missing, cut short, damaged or of another kind, or another tool wrote it.
        UnsupportedVersion: A newer intarsia wrote it.
    """
    path = checked_path(path)
    if rebuild or verify:
        option = "verify=True" if verify else "engines='rebuild'"
        raise FormatError(
            str(path),
            found=f"a .pte file, which has no {'hashes' if verify else 'portable forms of engines'}",
            expected=f"a .pt2 file for {option}",
            fix=f"Load it without {option}.",
        )
    description = read_pte(path)
    return PteFile(description.boundaries, lambda: _load(path, description))


def read_pte(path: Path) -> Description:
    """What a `.pte` says of itself; none of its methods is loaded.

    Raises:
        EngineUnavailable: ExecuTorch is not installed, or its versions do not go together.
        FormatError: The file is missing, cut short, damaged or of another kind, or another tool wrote it.
        UnsupportedVersion: A newer intarsia wrote it.
    """
    _check_header(path)
    return _describe(path, _open(path))


def _check_header(path: Path) -> None:
    """Refuse another kind of file, and one that is shorter than it says, before native code reads it."""
    try:
        size = path.stat().st_size
        kind = recognise(path)
        head = b"" if kind is FOLDER else _read_start(path)
    except (OSError, ValueError) as error:
        raise FormatError(
            str(path), found="no file that can be read", expected="a .pte file", fix="Give the path of a file."
        ) from error
    if head[4:6] != b"ET":
        raise FormatError(str(path), found=kind.what, expected="an ExecuTorch program", fix=kind.advice)
    _, magic, _, program, start, segments = _HEADER.unpack(head.ljust(_HEADER.size, b"\0"))
    needed = max(program, start + segments) if magic == b"eh00" else _HEADER.size
    if size < needed:
        raise _damaged(path, f"{size} bytes, where its header says {needed}")


def _read_start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEADER.size)


def _open(path: Path) -> Any:
    try:
        return import_executorch("runtime").Runtime.get().load_program(path)
    except RuntimeError as error:
        raise _damaged(path, f"contents that ExecuTorch cannot read ({first_line(error)})") from error


def _describe(path: Path, program: Any) -> Description:
    if DESCRIPTION not in program.method_names:
        raise FormatError(
            str(path),
            found="a file of another tool, which does not say how its methods are called",
            expected="one that intarsia.save wrote",
            fix="Run it with executorch.runtime, or save the program with intarsia.",
        )
    (text,) = program.load_method(DESCRIPTION).execute([])
    description = read_description(text, str(path))
    missing = sorted(description.boundaries.keys() - program.method_names)
    if missing:
        raise _damaged(path, f"no method {missing[0]!r}")
    return description


def _load(path: Path, description: Description) -> dict[str, Run]:
    """All methods, at once: loading one gives the state that it shares its initial values."""
    program = _open(path)
    try:
        for name in description.boundaries:
            program.load_method(name)
    except RuntimeError as error:
        built = sorted({engine.version for engines in description.engines.values() for engine in engines})
        raise EngineRefused(
            str(path),
            found=f"that ExecuTorch cannot load it here ({first_line(error)})",
            expected=f"a machine like that it was built on, with {' and '.join(built)}"
            if built
            else "methods that load",
            fix="Save the program again on this machine.",
        ) from error
    return {name: partial(_run, program, name, description.positions[name]) for name in description.boundaries}


def _run(program: Any, name: str, positions: Sequence[InputPositions], inputs: Sequence[Any]) -> Sequence[Any]:
    """Run a method; a method whose program is gone would read memory that was freed."""
    for one in positions:
        one.check(inputs)
    outputs: Sequence[Any] = program.load_method(name).execute(inputs)
    return outputs


def _damaged(path: Path, found: str) -> FormatError:
    return FormatError(str(path), found=found, expected="a whole .pte file", fix="Copy or save the file again.")
