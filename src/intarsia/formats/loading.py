"""Read the exported programs of PT2 archives: ours as mapped tensors, those of other tools in memory."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch

from intarsia._torch import deserialize_graph
from intarsia.core.vectors import Vectors
from intarsia.errors import FormatError, IntarsiaError, first_line, near_match
from intarsia.formats.archive.directory import Member
from intarsia.formats.archive.integrity import Integrity
from intarsia.formats.archive.layout import (
    KINDS,
    MANIFEST_HASH_MEMBER,
    MANIFEST_MEMBER,
    METHOD,
    checked_path,
    graph_member,
    table_member,
    tensor_member,
)
from intarsia.formats.archive.listing import Archive, check_kind, damaged, open_archive
from intarsia.formats.archive.mapping import MappedTensors
from intarsia.formats.archive.payload import Payload, read_payloads
from intarsia.formats.archive.refusal import quoted
from intarsia.formats.contents import Contents, contents_of, is_ours
from intarsia.formats.engines.checks import check_engines
from intarsia.formats.engines.constants import FileConstants
from intarsia.formats.file_vectors import find_vectors
from intarsia.formats.foreign import read_foreign
from intarsia.formats.judgement.graph import read_graph
from intarsia.formats.judgement.unsafe_members import check_own_members, checked_words
from intarsia.formats.manifest import Manifest
from intarsia.formats.packages import describe_operators

Engines: TypeAlias = Literal["verify", "rebuild"]


class NotImported(FormatError):
    """A file needs something that has to be imported first: a load imports nothing because a file says so.

    Attributes:
        module: The module to import, as far as the file's names tell, or empty.
    """

    def __init__(self, subject: str, *, found: str, expected: str, fix: str, module: str) -> None:
        super().__init__(subject, found=found, expected=expected, fix=fix)
        self.module = module


class UnknownContainer(NotImported):
    """A class among the arguments or outputs of a program in a file is not known in this process."""


class UnknownOperator(NotImported):
    """Operators of a program in a file are not known in this process."""


class LoadedMethod(NamedTuple):
    """A method of a file.

    Attributes:
        program: Its program.
        manifest: What the file tells of it, or None when another tool wrote the file.
        check: Compares the bytes of its tensors with their hashes, unless that was done before; raises `FormatError`
            where they differ. None when another tool wrote the file, which has no hashes. Engines have their own.
        vectors: Reads the test vectors of the file, of all its methods; raises `FormatError` where they are damaged or
            do not fit. None where there are none.
    """

    program: torch.export.ExportedProgram
    manifest: Manifest | None
    check: Callable[[], None] | None
    vectors: Callable[[], Vectors] | None = None


def load_methods(
    path: str | os.PathLike[str],
    *,
    allow: Iterable[str] = (),
    engines: Engines = "verify",
    verify: bool = False,
) -> dict[str, LoadedMethod]:
    """Read the exported programs of a PT2 archive, by the names of their methods.

    Tensors of a file that intarsia wrote are mapped: see `MappedTensors`. Nothing of the file is run and nothing is
    unpickled: what would have to be is refused, before it is read.

    Args:
        path: Of the archive.
        allow: With "native", engines may be native code, which runs when they are called. With "pickle", pickles in a
            file of another tool are loaded, which can run code.
        engines: "verify" compares engines with their hashes; "rebuild" leaves their compiled forms out, too.
        verify: Whether to compare every byte with its hash now; otherwise tensors are compared by `check` of a method.

    Raises:
        FormatError: The file is missing, cut short, damaged, or something else than a PT2 archive; or `verify` is True
            and another tool wrote it.
        NotImported: An operator, or the class of a container among arguments or outputs, has to be imported first.
        UnsupportedVersion: A newer intarsia wrote it; nothing of it was loaded.
        EngineError: An engine's bytes are not those that were written; names the engine and the file.
    """
    path, words = checked_path(path), checked_words(allow)
    if engines not in get_args(Engines):
        raise _unknown_choice(engines)
    with open_archive(path) as archive:
        if is_ours(archive):
            methods, beside = _read(archive, verify=verify)
        else:
            check_kind(archive)
            if verify:
                raise _without_hashes(path)
            methods, beside = {METHOD: LoadedMethod(_read_foreign(archive, words), None, None)}, None
    with telling(path):
        check_engines(
            path, [method[:2] for method in methods.values()], beside, rebuild=engines == "rebuild", allow=words
        )
    return methods


def _read(archive: Archive, *, verify: bool) -> tuple[dict[str, LoadedMethod], FileConstants]:
    """The methods of an archive of ours, and what their engines refer to; the directory is judged first."""
    directory = archive.directory()
    check_own_members(archive.path, directory.values())
    contents = contents_of(archive, directory)
    compare_members(archive.path, directory, contents)
    check_byte_order(archive)
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
        member = graph_member(program)
        text = read_checked(archive, contents, member)
        values = read_values(archive, member, text, manifest=manifest)
        with telling(archive.path):
            state, constants = (
                {key: tensors.tensor(payload) for key, payload in tables[program, kind].items()} for kind in KINDS
            )
            exported = deserialize_graph(values, state, constants)
        engines = {engine.constant for engine in manifest.engines}
        members = {
            tensor_member(kind, payload.member)
            for kind in KINDS
            for key, payload in tables[program, kind].items()
            if kind == "weights" or key not in engines
        }
        methods[name] = LoadedMethod(exported, manifest, partial(integrity.check, members))
    if verify:
        integrity.check(contents.members)
    beside = FileConstants(archive.path, archive.file, directory, contents.members)
    programs = {name: method.program for name, method in methods.items()}
    vectors = find_vectors(archive.path, contents, programs, integrity)
    return {name: method._replace(vectors=vectors) for name, method in methods.items()}, beside


def _read_foreign(archive: Archive, allow: frozenset[str]) -> torch.export.ExportedProgram:
    with telling(archive.path):
        check_byte_order(archive)
        return read_foreign(archive, partial(read_values, archive, allow=allow), allow)


def read_values(
    archive: Archive,
    member: str,
    text: bytes,
    *,
    manifest: Manifest | None = None,
    allow: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The JSON values of a graph, which torch may read."""
    values, findings = read_graph(text, f"{archive.path}, member {quoted(member)}", allow=allow)
    if findings.operators:
        packages = manifest.packages if manifest else {}
        raise UnknownOperator(
            str(archive.path),
            found=f"operators that this process does not know: {describe_operators(findings.operators, packages)}",
            expected="operators that are registered with torch",
            fix="Import the packages that register them before loading: a load imports nothing by itself.",
            module="",
        )
    if findings.containers:
        raise unknown_container(archive.path, findings.containers)
    return values


def _read_table(archive: Archive, contents: Contents, member: str) -> dict[str, Payload]:
    return read_payloads(read_checked(archive, contents, member), f"{archive.path}, member {member!r}")


def read_checked(archive: Archive, contents: Contents, member: str) -> bytes:
    """The bytes of a member, compared with their hash."""
    if member not in contents.members:
        raise damaged(archive.path, f"no member {quoted(member)}")
    data = archive.read(member)
    if hashlib.sha256(data).hexdigest() != contents.members[member].sha256:
        raise damaged(archive.path, f"a damaged member {member!r}")
    return data


def compare_members(path: Path, directory: Mapping[str, Member], contents: Contents) -> None:
    """Refuse an archive whose members are not those that were written; what they hold is not read."""
    own = {MANIFEST_MEMBER, MANIFEST_HASH_MEMBER}
    found = {name: member.size_bytes for name, member in directory.items() if name not in own}
    expected = {name: entry.size_bytes for name, entry in contents.members.items()}
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            size = f"{found[name]} bytes" if name in found else "nothing"
            wanted = f"{expected[name]}" if name in expected else "no such member"
            raise damaged(path, f"{size} in member {name!r} where its manifest says {wanted}")


def check_byte_order(archive: Archive) -> None:
    """Refuse a file of the other byte order."""
    order = archive.read("byteorder") if "byteorder" in archive.members else b"no"
    if order != sys.byteorder.encode():
        raise FormatError(
            str(archive.path),
            found=f"tensors in the byte order {quoted(order.decode('ascii', 'replace'))}",
            expected=sys.byteorder,
            fix="Save the program on a machine of this byte order.",
        )


@contextmanager
def telling(path: str | os.PathLike[str]) -> Iterator[None]:
    """Tell in our words what torch says of a file, or what cannot be made of it.

    Raises:
        FormatError: Something else than an error of intarsia was raised meanwhile.
    """
    try:
        yield
    except IntarsiaError:
        raise
    except Exception as error:
        raise damaged(
            Path(path), f"contents that torch cannot read ({type(error).__name__}: {first_line(error)})"
        ) from error


def unknown_container(path: str | os.PathLike[str], names: Sequence[str]) -> UnknownContainer:
    """The error for classes among arguments or outputs that this process does not know."""
    return UnknownContainer(
        str(path),
        found=f"arguments or outputs in a {', '.join(names)}, which this process does not know",
        expected="containers that are registered as pytree nodes of torch",
        fix="Import its module before loading, or register it under that name: a load imports nothing by itself.",
        module=names[0].rpartition(".")[0],
    )


def _without_hashes(path: Path) -> FormatError:
    return FormatError(
        str(path),
        found="a file of another tool, without hashes",
        expected="one that intarsia wrote, to be verified",
        fix="Load it without verify=True, and save it with intarsia.",
    )


def _unknown_choice(engines: str) -> FormatError:
    choices = get_args(Engines)
    return FormatError(
        "engines",
        found=repr(engines),
        expected=" or ".join(map(repr, choices)),
        fix=near_match(str(engines), choices) or "Leave it out to compare engines with their hashes.",
    )
