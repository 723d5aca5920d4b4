"""Read the exported programs of PT2 archives: ours as mapped tensors, those of other tools by torch."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from intarsia._torch import deserialize_graph, load_archive
from intarsia.core.constants import attach_constants
from intarsia.core.container import EngineContainer
from intarsia.errors import EngineError, FormatError, IntarsiaError, first_line
from intarsia.formats.archive import Archive, check_kind, damaged, open_archive
from intarsia.formats.contents import Contents, contents_of
from intarsia.formats.directory import Member
from intarsia.formats.engines import EngineReader, engine_tensor
from intarsia.formats.file_constants import FileConstants
from intarsia.formats.integrity import Integrity
from intarsia.formats.layout import (
    KINDS,
    MANIFEST_HASH_MEMBER,
    MANIFEST_MEMBER,
    METHOD,
    checked_path,
    graph_member,
    table_member,
    tensor_member,
)
from intarsia.formats.manifest import EngineEntry, Manifest
from intarsia.formats.mapping import MappedTensors
from intarsia.formats.payload import Payload, read_payloads

# What torch says of a container whose class was registered where the file was written, and is not here.
_UNKNOWN_CONTAINER = re.compile(
    r"Deserializing (\S+) in pytree (?:is not registered|failed because .* is not registered)"
)


class UnknownContainer(FormatError):
    """A class among the arguments or outputs of a program in a file is not known in this process.

    Attributes:
        container: The name under which the class was registered: that of its module and its own, if nobody chose
            another.
    """

    def __init__(self, subject: str, container: str, *, fix: str) -> None:
        self.container = container
        super().__init__(
            subject,
            found=f"arguments or outputs in a {container}, which this process does not know",
            expected="containers that are registered as pytree nodes of torch",
            fix=fix,
        )


class LoadedMethod(NamedTuple):
    """A method of a file.

    Attributes:
        program: Its program.
        manifest: What the file tells of it, or None when another tool wrote the file.
        check: Compares the bytes of its tensors with their hashes, unless that was done before; raises `FormatError`
            where they differ. None when another tool wrote the file, which has no hashes. Engines have their own.
    """

    program: torch.export.ExportedProgram
    manifest: Manifest | None
    check: Callable[[], None] | None


def load_pt2(path: str | os.PathLike[str]) -> LoadedMethod:
    """Read the exported program of a PT2 archive that holds one.

    Load only files that you trust: torch unpickles some of what it finds in an archive of its own, and evaluates some
    of what it finds in every archive, and nothing here stops it yet.

    Raises:
        FormatError: The path is none, or the file is missing, cut short, damaged, or something else than a PT2
            archive of one method.
        UnknownContainer: The class of a container among its arguments or outputs has to be imported first.
        UnsupportedVersion: A newer intarsia wrote it; nothing of it was loaded.
        EngineError: An engine's bytes are not those that were written; names the engine and the file.
    """
    methods = load_methods(path)
    if len(methods) > 1:
        raise FormatError(
            str(path),
            found=f"the methods {', '.join(methods)}",
            expected="a file of one program",
            fix="Load it with intarsia.load, and call its methods.",
        )
    (method,) = methods.values()
    return method


def load_methods(path: str | os.PathLike[str], *, verify: bool = False) -> dict[str, LoadedMethod]:
    """Read the exported programs of a PT2 archive, by the names of their methods.

    Tensors of a file that intarsia wrote are mapped: see `MappedTensors`. What another tool wrote is read by torch.

    Args:
        path: Of the archive.
        verify: Whether to compare every byte with its hash now; otherwise tensors are compared by `check` of a method.

    Raises:
        FormatError: The file is missing, cut short, damaged, or something else than a PT2 archive; or `verify` is True
            and another tool wrote it.
        UnknownContainer: The class of a container among the arguments or outputs has to be imported first.
        UnsupportedVersion: A newer intarsia wrote it; nothing of it was loaded.
        EngineError: An engine's bytes are not those that were written; names the engine and the file.
    """
    path = checked_path(path)
    with open_archive(path) as archive:
        if MANIFEST_MEMBER in archive.members:
            methods = _read(archive, verify=verify)
        else:
            check_kind(archive)
            methods = {METHOD: LoadedMethod(_read_foreign(archive), None, None)}
            _check_engines(path, methods, None)
            if verify:
                raise _without_hashes(path)
    return methods


def _read(archive: Archive, *, verify: bool) -> dict[str, LoadedMethod]:
    """The methods of an archive of ours. Its directory is judged before a member is read."""
    directory = archive.directory()
    contents = contents_of(archive, directory)
    _compare_members(archive.path, directory, contents)
    _check_byte_order(archive)
    tables = {
        (method.program, kind): _read_table(archive, contents, table_member(method.program, kind))
        for method in contents.methods.values()
        for kind in KINDS
    }
    payloads = [(kind, payload) for (_, kind), table in tables.items() for payload in table.values()]
    tensors = MappedTensors(archive.path, archive.file, directory, payloads)
    integrity = Integrity(archive.path, archive.file, directory, contents.members)
    methods = {}
    for name, (program, manifest) in contents.methods.items():
        text = _read_checked(archive, contents, graph_member(program))
        with _telling(archive.path):
            state, constants = (
                {key: tensors.tensor(payload) for key, payload in tables[program, kind].items()} for kind in KINDS
            )
            exported = deserialize_graph(text, state, constants)
        engines = {engine.constant for engine in manifest.engines}
        members = {
            tensor_member(kind, payload.member)
            for kind in KINDS
            for key, payload in tables[program, kind].items()
            if kind == "weights" or key not in engines
        }
        methods[name] = LoadedMethod(exported, manifest, partial(integrity.check, members))
    _check_engines(archive.path, methods, FileConstants(archive.path, archive.file, directory, contents.members))
    if verify:
        integrity.check(contents.members)
    return methods


def _read_foreign(archive: Archive) -> torch.export.ExportedProgram:
    archive.file.seek(0)
    with _telling(archive.path):
        return load_archive(archive.file)["model"]


def _read_table(archive: Archive, contents: Contents, member: str) -> dict[str, Payload]:
    return read_payloads(_read_checked(archive, contents, member), f"{archive.path}, member {member!r}")


def _read_checked(archive: Archive, contents: Contents, member: str) -> bytes:
    """The bytes of a member, compared with their hash."""
    if member not in contents.members:
        raise damaged(archive.path, f"no member {member!r}")
    data = archive.read(member)
    if hashlib.sha256(data).hexdigest() != contents.members[member].sha256:
        raise damaged(archive.path, f"a damaged member {member!r}")
    return data


def _compare_members(path: Path, directory: Mapping[str, Member], contents: Contents) -> None:
    """Refuse an archive whose members are not those that were written; what they hold is not read."""
    own = {MANIFEST_MEMBER, MANIFEST_HASH_MEMBER}
    found = {name: member.size_bytes for name, member in directory.items() if name not in own}
    expected = {name: entry.size_bytes for name, entry in contents.members.items()}
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            size = f"{found[name]} bytes" if name in found else "nothing"
            wanted = f"{expected[name]}" if name in expected else "no such member"
            raise damaged(path, f"{size} in member {name!r} where its manifest says {wanted}")


def _check_byte_order(archive: Archive) -> None:
    order = archive.read("byteorder").decode("ascii", "replace") if "byteorder" in archive.members else "no"
    if order != sys.byteorder:
        raise FormatError(
            str(archive.path),
            found=f"tensors in {order} byte order",
            expected=sys.byteorder,
            fix="Save the program on a machine of this byte order.",
        )


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Tell in our words what torch says of a file."""
    try:
        yield
    except IntarsiaError:
        raise
    except Exception as error:
        container = _UNKNOWN_CONTAINER.match(str(error))
        if container is not None:
            raise _unknown_container(path, container[1]) from error
        raise damaged(path, f"contents that torch cannot read ({type(error).__name__}: {first_line(error)})") from error


def _unknown_container(path: Path, name: str) -> UnknownContainer:
    fix = "Import its module before loading, or register it under that name: a load imports nothing by itself."
    return UnknownContainer(str(path), name, fix=fix)


def _without_hashes(path: Path) -> FormatError:
    return FormatError(
        str(path),
        found="a file of another tool, without hashes",
        expected="one that intarsia wrote, to be verified",
        fix="Load it without verify=True, and save it with intarsia.",
    )


def _check_engines(path: Path, methods: Mapping[str, LoadedMethod], constants: FileConstants | None) -> None:
    """Compare the engines with their hashes and the manifest, and let them find what is beside their containers."""
    reader = EngineReader()
    try:
        for program, manifest, _ in methods.values():
            containers = reader.read(program)
            if manifest is not None:
                _compare_engines(manifest.engines, containers)
            for name, container in containers.items():
                if constants is not None and container.outside:
                    constants.check(container)
                    attach_constants(engine_tensor(program, name), container.digest, constants)
    except EngineError as error:
        raise EngineError(
            f"{error.subject} in {path}",
            found=error.found,
            expected=error.expected,
            consequence=error.consequence,
            fix=error.fix,
        ) from error


def _compare_engines(expected: Sequence[EngineEntry], found: Mapping[str, EngineContainer]) -> None:
    entries = [EngineEntry.of(constant, container, container) for constant, container in found.items()]
    for entry in expected:
        if entry not in entries:
            raise EngineError(
                f"engine {entry.name!r} (constant {entry.constant!r})",
                found="another engine, or none, in its place",
                expected=f"the one whose SHA-256 is {entry.sha256[:16]}...",
                consequence="The program would compute something else.",
                fix="Save the program again.",
            )
