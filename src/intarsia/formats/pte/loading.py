"""Read ExecuTorch files that intarsia wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from intarsia.core.positions import InputPositions
from intarsia.errors import EngineRefused, FormatError, first_line
from intarsia.formats.archive.layout import checked_path
from intarsia.formats.manifest import Manifest
from intarsia.formats.pte.combination import check_combination
from intarsia.formats.pte.contents import PteContents, identity_of, read_pte
from intarsia.formats.pte.description import read_boundary, read_positions
from intarsia.formats.pte.fitness import find_misfits
from intarsia.formats.pte.layout import damaged
from intarsia.formats.pte.library import import_executorch

Run = Callable[[Sequence[Any]], Sequence[Any]]


class PteFile(NamedTuple):
    """A file whose methods can be loaded.

    Attributes:
        boundaries: What each method takes and gives, by name.
        manifests: What the file tells of each method.
        load: Loads all methods anew, on one state in its initial values; by name, each takes flat inputs and gives flat
            outputs.
    """

    boundaries: Mapping[str, torch.export.ExportedProgram]
    manifests: Mapping[str, Manifest]
    load: Callable[[], dict[str, Run]]


def has_pte_ending(path: object) -> bool:
    """Whether a path ends in `.pte`."""
    return isinstance(path, str | os.PathLike) and Path(path).suffix == ".pte"


def open_pte(path: str | os.PathLike[str], *, rebuild: bool = False, verify: bool = False) -> PteFile:
    """Read what a `.pte` says of itself. One that `save` wrote is compared with its hash, before native code sees it.

    Load only files that you trust: they hold compiled engines.

    Args:
        path: Of the file.
        rebuild: Refused, for the file has no portable forms of engines.
        verify: Whether to refuse a file without hashes: what `to_edge` made is one.

    Raises:
        EngineUnavailable: ExecuTorch is not installed, or its versions do not go together.
        FormatError: The file is missing, cut short, damaged or of another kind, or another tool wrote it.
        UnsupportedVersion: A newer intarsia wrote it.
    """
    path = checked_path(path)
    if rebuild:
        raise FormatError(
            str(path),
            found="a .pte file, which has no portable forms of engines",
            expected="a .pt2 file for engines='rebuild'",
            fix="Load it without engines='rebuild'.",
        )
    check_combination()
    contents = read_pte(path)
    if verify and not contents.layout.sealed:
        raise FormatError(
            str(path),
            found="a file without hashes",
            expected="one that intarsia.save wrote, to be verified",
            fix="Load it without verify=True, or save the program with intarsia.save.",
        )
    described = contents.description
    misfits = [misfit for manifest in described.manifests.values() for misfit in find_misfits(manifest.engines)]
    if misfits:
        raise EngineRefused(
            str(path),
            found=misfits[0],
            expected="engines that were compiled for this machine",
            fix="Save the program again on this machine.",
        )
    boundaries = {name: read_boundary(text, str(path)) for name, text in described.boundaries.items()}
    positions = {name: read_positions(fields, str(path)) for name, fields in described.positions.items()}
    return PteFile(boundaries, described.manifests, lambda: _load(path, contents, positions))


def _open(path: Path, identity: tuple[int, ...]) -> Any:
    try:
        if identity_of(path.stat()) != identity:
            raise _changed(path, "another file in its place")
        return import_executorch("runtime").Runtime.get().load_program(path)
    except OSError as error:
        raise _changed(path, f"that it cannot be read ({error.strerror})") from error
    except RuntimeError as error:
        raise damaged(path, f"contents that ExecuTorch cannot read ({first_line(error)})") from error


def _changed(path: Path, found: str) -> FormatError:
    return FormatError(
        str(path), found=found, expected="the file that was loaded", fix="Load the new file with intarsia.load."
    )


def _load(path: Path, contents: PteContents, positions: Mapping[str, Sequence[InputPositions]]) -> dict[str, Run]:
    """All methods, at once: loading one gives the state that it shares its initial values."""
    program = _open(path, contents.identity)
    try:
        for name in positions:
            program.load_method(name)
    except RuntimeError as error:
        engines = [engine for manifest in contents.description.manifests.values() for engine in manifest.engines]
        built = sorted({f"{engine.backend} {engine.backend_version}" for engine in engines})
        raise EngineRefused(
            str(path),
            found=f"that ExecuTorch cannot load it here ({first_line(error)})",
            expected=f"a machine like that it was built on, with {' and '.join(built)}"
            if built
            else "methods that load",
            fix="Save the program again on this machine.",
        ) from error
    return {name: partial(_run, program, name, own) for name, own in positions.items()}


def _run(program: Any, name: str, positions: Sequence[InputPositions], inputs: Sequence[Any]) -> Sequence[Any]:
    """Run a method; a method whose program is gone would read memory that was freed."""
    for one in positions:
        one.check(inputs, "input")
    outputs: Sequence[Any] = program.load_method(name).execute(inputs)
    return outputs
