"""Exported programs as PT2 archives that `torch.export.load` reads too."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from intarsia._torch import FakeTensor, load_archive
from intarsia.errors import EngineError, FormatError, IntarsiaError, StateError, first_line, with_article
from intarsia.formats.archive import Archive, check_kind, damaged, open_archive, pickled_members
from intarsia.formats.engines import EngineEntry, read_engines
from intarsia.formats.manifest import Manifest
from intarsia.formats.replacement import PatientFile, replacing, unwritable

MANIFEST_NAME = "intarsia_manifest.json"
_MANIFEST_MEMBER = f"extra/{MANIFEST_NAME}"
# What torch says of a container whose class was registered where the file was written, and is not here.
_UNKNOWN_CONTAINER = re.compile(r"Deserializing (.+) in pytree is not registered\.")


class UnknownContainer(FormatError):
    """A class among the arguments or outputs of a program in a file is not known in this process."""


def save_pt2(program: torch.export.ExportedProgram, path: str | os.PathLike[str], *, facts: Mapping[str, Any]) -> None:
    """Write an exported program to a `.pt2` file.

    The file is an ordinary PT2 archive and holds no pickle: example inputs are left out, and state must be plain
    tensors. It appears in one step, so a failed save leaves an older file at `path` as it was.

    Args:
        program: Not modified.
        path: Ends in `.pt2`.
        facts: JSON values for the manifest: `ledger` (a list of entries) and `coverage`, each where there is one.

    Raises:
        FormatError: The path cannot be written or has another ending, or the program is no exported program or
            cannot be stored.
        StateError: A state entry is no plain tensor.
        EngineError: An engine of the program is damaged.
    """
    if not isinstance(program, torch.export.ExportedProgram):
        raise FormatError(
            "program",
            found=f"an object of type {type(program).__name__!r}",
            expected="a hybrid or a torch.export.ExportedProgram",
            fix="Save what intarsia.compile or intarsia.export returned.",
        )
    path = _checked_path(path)
    if path.suffix != ".pt2":
        raise FormatError(str(path), found=f"the ending {path.suffix!r}", expected="'.pt2'", fix="Name the file *.pt2.")
    _check_state(program)
    _check_outputs(program, path)
    manifest = Manifest.of(program, facts)
    stripped = copy.copy(program)
    stripped.example_inputs = None
    with replacing(path) as new:
        _write(stripped, new, path, manifest)
        _check_pickles(new, path)


def load_pt2(path: str | os.PathLike[str]) -> tuple[torch.export.ExportedProgram, Manifest | None]:
    """Read an exported program and its manifest from a PT2 archive.

    Load only files that you trust: torch unpickles and evaluates some of what it finds in an archive, and nothing
    here stops it yet.

    Returns:
        The program, and the manifest, or None when another tool wrote the file.

    Raises:
        FormatError: The path is none, or the file is missing, cut short, damaged, or something else than a PT2
            archive.
        UnknownContainer: The class of a container among its arguments or outputs has to be imported first.
        UnsupportedVersion: A newer intarsia wrote it; nothing of it was loaded.
        EngineError: An engine's bytes are not those that were written; names the engine and the file.
    """
    path = _checked_path(path)
    manifest = read_manifest(path)
    program = _read(path)
    try:
        engines = read_engines(program)
        if manifest is not None:
            _compare_engines(manifest.engines, engines)
    except EngineError as error:
        raise EngineError(
            f"{error.subject} in {path}",
            found=error.found,
            expected=error.expected,
            consequence=error.consequence,
            fix=error.fix,
        ) from error
    return program, manifest


def read_manifest(path: str | os.PathLike[str]) -> Manifest | None:
    """The manifest of a PT2 archive, or None when another tool wrote it. Reads nothing else.

    Raises:
        FormatError: The file is missing, cut short, damaged, or something else than a PT2 archive.
        UnsupportedVersion: A newer intarsia wrote it.
    """
    path = Path(path)
    with open_archive(path) as opened:
        archive = Archive(path, opened)
        # A newer version may lay out everything else anew, so its number comes before all other checks.
        text = archive.read(_MANIFEST_MEMBER) if _MANIFEST_MEMBER in archive.members else None
        manifest = None if text is None else Manifest.from_text(text, str(path))
        check_kind(archive)
    return manifest


def _checked_path(path: Any) -> Path:
    if isinstance(path, str | os.PathLike):
        return Path(path)
    raise FormatError(
        "path",
        found=with_article(type(path).__name__),
        expected="the path of a file, as a str or a pathlib.Path",
        fix="Pass a path; what is in memory has to be written to a file first.",
    )


def _check_state(program: torch.export.ExportedProgram) -> None:
    for name, value in (*program.state_dict.items(), *program.constants.items()):
        found = _unstorable(value)
        if found:
            raise StateError(
                f"state {name!r}",
                found=found,
                expected="a plain tensor",
                consequence="A file without pickles cannot hold it.",
                fix="Replace it by a dense torch.Tensor before the export.",
            )
    missing = [
        str(spec.target)
        for spec in program.graph_signature.input_specs
        if spec.kind is not InputKind.USER_INPUT
        and spec.target is not None
        and spec.target not in program.state_dict
        and spec.target not in program.constants
    ]
    if missing:
        raise StateError(
            f"state {missing[0]!r}", found="no value", expected="a tensor in the program", fix="Export the model again."
        )


def _check_outputs(program: torch.export.ExportedProgram, path: Path) -> None:
    """Refuse a text among the outputs: torch writes it, and then cannot read the file."""
    (output,) = program.graph.find_nodes(op="output")
    texts = [value for value in output.args[0] if isinstance(value, str)]
    if texts:
        raise FormatError(
            str(path),
            found=f"the text {texts[0]!r} among the outputs",
            expected="tensors, numbers and None",
            fix="Let the model return tensors only.",
        )


def _unstorable(value: Any) -> str:
    """Why a state entry cannot be stored as raw bytes, or nothing."""
    if not isinstance(value, torch.Tensor):
        return f"an object of type {type(value).__name__}"
    if isinstance(value, FakeTensor) or value.is_meta:
        return "a tensor without memory"
    if type(value.data) is not torch.Tensor:
        return f"a tensor subclass {type(value.data).__name__}"
    if value.layout is not torch.strided or value.is_quantized:
        return f"a tensor of layout {value.layout}" if not value.is_quantized else "a quantized tensor"
    if value.is_conj() or value.is_neg():
        return "a lazily conjugated or negated tensor"
    return ""


def _write(program: torch.export.ExportedProgram, new: Path, path: Path, manifest: Manifest) -> None:
    try:
        with PatientFile(new, "wb") as file:
            torch.export.save(program, file, extra_files={MANIFEST_NAME: manifest.to_text()})
            file.check()
    except OSError as error:
        raise unwritable(path, error) from error
    except Exception as error:
        raise FormatError(
            str(path),
            found=f"a program that torch cannot store ({type(error).__name__}: {first_line(error)})",
            expected="one that torch.export.save takes",
            fix=(
                "Export the model with operators that torch can store, and with values in tuples, lists, dicts or "
                "dataclasses registered by torch.export.register_dataclass with a serialized_type_name."
            ),
        ) from error


def _check_pickles(new: Path, path: Path) -> None:
    with open_archive(new) as opened:
        pickled = list(pickled_members(Archive(new, opened)))
    if pickled:
        raise FormatError(
            str(path),
            found=f"that torch pickled {', '.join(pickled)}",
            expected="raw bytes only",
            fix="Replace what was pickled by plain tensors.",
        )


def _read(path: Path) -> torch.export.ExportedProgram:
    try:
        with path.open("rb") as file:
            return load_archive(file)["model"]
    except IntarsiaError:
        raise
    except Exception as error:
        container = _UNKNOWN_CONTAINER.fullmatch(str(error))
        if container is not None:
            raise _unknown_container(path, container[1]) from error
        raise damaged(path, f"contents that torch cannot read ({type(error).__name__}: {first_line(error)})") from error


def _unknown_container(path: Path, name: str) -> UnknownContainer:
    return UnknownContainer(
        str(path),
        found=f"arguments or outputs in a {name}, which this process does not know",
        expected="containers that are registered as pytree nodes of torch",
        fix="Import its module before loading, or register it under that name: a load imports nothing by itself.",
    )


def _compare_engines(expected: tuple[EngineEntry, ...], found: tuple[EngineEntry, ...]) -> None:
    for entry in expected:
        if entry not in found:
            raise EngineError(
                f"engine {entry.name!r} (constant {entry.constant!r})",
                found="another engine, or none, in its place",
                expected=f"the one whose SHA-256 is {entry.sha256[:16]}...",
                consequence="The program would compute something else.",
                fix="Save the program again.",
            )
