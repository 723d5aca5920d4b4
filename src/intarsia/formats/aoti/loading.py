"""Read AOTInductor packages that intarsia wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from intarsia._torch import deserialize_graph
from intarsia.core.compiled.machine import reason_against_code
from intarsia.core.compiled.model import CompiledModel
from intarsia.core.vectors import Vectors
from intarsia.errors import EngineRefused, FormatError, first_line
from intarsia.formats.aoti.layout import CODE, boundary_member, code_folder
from intarsia.formats.archive.integrity import Integrity
from intarsia.formats.archive.layout import checked_path
from intarsia.formats.archive.listing import Archive, open_archive
from intarsia.formats.archive.writer import MemberEntry
from intarsia.formats.contents import contents_of, is_ours
from intarsia.formats.file_vectors import find_vectors
from intarsia.formats.judgement.unsafe_members import checked_words
from intarsia.formats.loading import check_byte_order, compare_members, read_checked, read_values, telling
from intarsia.formats.manifest import Manifest


class AotiFile(NamedTuple):
    """A package whose methods can be opened.

    Attributes:
        boundaries: What each method takes and gives, by name.
        manifests: What the file tells of each method.
        open: Opens the code of all methods anew, on state in its initial values. From here on code of the file runs.
        vectors: Reads the test vectors of the file, of all its methods. None where there are none.
        libraries: Size and SHA-256 of the code of each method, by name, as the manifest tells them.
    """

    boundaries: Mapping[str, torch.export.ExportedProgram]
    manifests: Mapping[str, Manifest]
    open: Callable[[], dict[str, CompiledModel]]
    vectors: Callable[[], Vectors] | None
    libraries: Mapping[str, MemberEntry]


def is_package(path: object) -> bool:
    """Whether an AOTInductor package of intarsia stands at a path. What cannot be read is none."""
    if not isinstance(path, str | os.PathLike):
        return False
    try:
        with open_archive(checked_path(path)) as archive:
            return is_ours(archive) and any(name.startswith(CODE) for name in archive.members)
    except FormatError:
        return False


def open_aoti(
    path: str | os.PathLike[str], *, allow: Iterable[str] = (), rebuild: bool = False, verify: bool = False
) -> AotiFile:
    """Read what a package says of itself. Its code is opened by `AotiFile.open` only, after a comparison with its hash.

    Args:
        path: Of the file.
        allow: Has to name "native".
        rebuild: Refused, for the file has no portable forms of engines.
        verify: Whether to compare every byte with its hash now.

    Raises:
        FormatError: The file is missing, damaged or of another kind, or native code is not allowed.
        UnsupportedVersion: A newer intarsia wrote it.
    """
    path = checked_path(path)
    words = checked_words(allow)
    with open_archive(path) as archive:
        directory = archive.directory()
        _check_request(path, archive, words, rebuild=rebuild)
        contents = contents_of(archive, directory)
        compare_members(path, directory, contents)
        check_byte_order(archive)
        boundaries = {}
        for name, (program, manifest) in contents.methods.items():
            member = boundary_member(program)
            values = read_values(archive, member, read_checked(archive, contents, member), manifest=manifest)
            with telling(path):
                boundaries[name] = deserialize_graph(values, {}, {})
        integrity = Integrity(path, archive.file, directory, contents.members)
        vectors = find_vectors(path, contents, boundaries, integrity)
    if verify:
        integrity.check(contents.members)
    manifests = {name: method.manifest for name, method in contents.methods.items()}
    members = {
        name: [member for member in contents.members if member.startswith(code_folder(method.program))]
        for name, method in contents.methods.items()
    }
    libraries = {
        name: contents.members[member] for name, own in members.items() for member in own if member.endswith(".so")
    }
    return AotiFile(boundaries, manifests, partial(_open, path, integrity, members, manifests), vectors, libraries)


def describe_aoti(path: str | os.PathLike[str], *, verify: bool = False) -> AotiFile:
    """What a package says of itself, for whoever opens none of its code; arguments as for `open_aoti`."""
    return open_aoti(path, allow=("native",), verify=verify)


def _check_request(path: Path, archive: Archive, allow: Collection[str], *, rebuild: bool) -> None:
    if "native" not in allow:
        code = next(name for name in archive.members if name.startswith(CODE)).removeprefix(CODE).partition("/")[0]
        raise FormatError(
            str(path),
            found=f"an AOTInductor package, whose folder {CODE + code!r} holds native code",
            expected="none that was not allowed",
            consequence="The first call would run code of the file, whatever that does.",
            fix='Where you trust the file: load it with allow={"native"} (--allow native).',
        )
    if rebuild:
        raise FormatError(
            str(path),
            found="an AOTInductor package, which has no portable forms of engines",
            expected="a file of graphs for engines='rebuild'",
            fix="Load it without engines='rebuild'.",
        )


def _open(
    path: Path, integrity: Integrity, members: Mapping[str, Collection[str]], manifests: Mapping[str, Manifest]
) -> dict[str, CompiledModel]:
    manifest = next(iter(manifests.values()))
    reason = reason_against_code(manifest.torch_version, manifest.compiled)
    if reason:
        raise EngineRefused(str(path), found=f"that {reason}", expected="code for this machine", fix=_SAVE_AGAIN)
    integrity.check({member for of_method in members.values() for member in of_method})
    try:
        return {
            name: CompiledModel({member.rpartition("/")[2]: integrity.read(member) for member in of_method})
            for name, of_method in members.items()
        }
    except (RuntimeError, OSError, ValueError) as error:
        raise EngineRefused(
            str(path),
            found=f"that torch {torch.__version__} on this machine refuses its code ({first_line(error)})",
            expected="code that this version compiled on a machine like this one",
            fix=_SAVE_AGAIN,
        ) from error


_SAVE_AGAIN = "Save the program again on this machine."
