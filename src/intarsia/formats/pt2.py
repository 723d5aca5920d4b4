"""Exported programs as PT2 archives that `torch.export.load` reads too."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from intarsia._torch import deserialize_graph, load_archive, serialize_graph
from intarsia.errors import EngineError, FormatError, IntarsiaError, first_line, with_article
from intarsia.formats.archive import Archive, check_kind, damaged, open_archive
from intarsia.formats.contents import Contents, Method
from intarsia.formats.directory import Member
from intarsia.formats.engines import EngineEntry, read_engines
from intarsia.formats.manifest import Manifest
from intarsia.formats.mapping import MappedTensors
from intarsia.formats.payload import Payload, read_payloads, write_payloads
from intarsia.formats.replacement import replacing, unwritable
from intarsia.formats.storable import check_storable
from intarsia.formats.storages import Kind, StoragePlan, plan_storages
from intarsia.formats.writer import Writer

MANIFEST_NAME = "intarsia_manifest.json"
METHOD = "forward"
"""Name of the method of a program that has one."""

_MANIFEST_MEMBER = f"extra/{MANIFEST_NAME}"
_KINDS: tuple[Kind, ...] = ("weights", "constants")
# What torch wants to find besides the programs.
_MARKS = {"archive_format": b"pt2", "archive_version": b"0", ".data/version": b"6\n"}
# What torch says of a container whose class was registered where the file was written, and is not here.
_UNKNOWN_CONTAINER = re.compile(
    r"Deserializing (\S+) in pytree (?:is not registered|failed because .* is not registered)"
)


class UnknownContainer(FormatError):
    """A class among the arguments or outputs of a program in a file is not known in this process."""


class LoadedMethod(NamedTuple):
    """A method of a file.

    Attributes:
        program: Its program.
        manifest: What the file tells of it, or None when another tool wrote the file.
    """

    program: torch.export.ExportedProgram
    manifest: Manifest | None


def save_pt2(program: torch.export.ExportedProgram, path: str | os.PathLike[str], *, facts: Mapping[str, Any]) -> None:
    """Write an exported program to a `.pt2` file, as `save_methods` does.

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
    save_methods({METHOD: program}, path, facts={METHOD: facts})


def save_methods(
    programs: Mapping[str, torch.export.ExportedProgram],
    path: str | os.PathLike[str],
    *,
    facts: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write exported programs to one `.pt2` file.

    The file is an ordinary PT2 archive and holds no pickle: example inputs are left out, and state must be plain
    tensors. What several programs share is stored once. It appears in one step, so a failed save leaves an older file
    at `path` as it was.

    Args:
        programs: At least one, by the name of the method. One alone is called `model` in the archive, so that
            `torch.export.load` finds it; several have the names of their methods. Not modified.
        path: Ends in `.pt2`.
        facts: For each method, JSON values for the manifest: `ledger` (a list of entries) and `coverage`, each where
            there is one.

    Raises:
        FormatError: The path cannot be written or has another ending, or there is no program, or one is no exported
            program or cannot be stored.
        StateError: A state entry is no plain tensor.
        EngineError: An engine of a program is damaged.
    """
    path = _checked_path(path)
    if path.suffix != ".pt2":
        raise FormatError(str(path), found=f"the ending {path.suffix!r}", expected="'.pt2'", fix="Name the file *.pt2.")
    _check_names(programs, path)
    for program in programs.values():
        check_storable(program, str(path))
    names = {method: method if len(programs) > 1 else "model" for method in programs}
    methods = {name: Method(names[name], Manifest.of(program, facts[name])) for name, program in programs.items()}
    plan = plan_storages({names[method]: program for method, program in programs.items()})
    graphs = {names[method]: _serialize(program, path) for method, program in programs.items()}
    with replacing(path) as new:
        try:
            _write(new, plan, graphs, methods)
        except OSError as error:
            raise unwritable(path, error) from error


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


def load_methods(path: str | os.PathLike[str]) -> dict[str, LoadedMethod]:
    """Read the exported programs of a PT2 archive, by the names of their methods.

    Tensors of a file that intarsia wrote are mapped: see `MappedTensors`. What another tool wrote is read by torch.

    Raises:
        FormatError: The file is missing, cut short, damaged, or something else than a PT2 archive.
        UnknownContainer: The class of a container among the arguments or outputs has to be imported first.
        UnsupportedVersion: A newer intarsia wrote it; nothing of it was loaded.
        EngineError: An engine's bytes are not those that were written; names the engine and the file.
    """
    path = _checked_path(path)
    with open_archive(path) as archive:
        if _MANIFEST_MEMBER in archive.members:
            methods = _read(archive)
        else:
            check_kind(archive)
            methods = {METHOD: LoadedMethod(_read_foreign(archive), None)}
    for method in methods.values():
        _check_engines(path, method)
    return methods


def read_contents(path: str | os.PathLike[str]) -> Contents | None:
    """What a PT2 archive says of itself, or None when another tool wrote it. Reads nothing else.

    Raises:
        FormatError: The file is missing, cut short, damaged, or something else than a PT2 archive.
        UnsupportedVersion: A newer intarsia wrote it.
    """
    with open_archive(_checked_path(path)) as archive:
        if _MANIFEST_MEMBER in archive.members:
            archive.directory()
            return Contents.from_text(archive.read(_MANIFEST_MEMBER), str(path))
        check_kind(archive)
    return None


def _checked_path(path: Any) -> Path:
    if isinstance(path, str | os.PathLike):
        return Path(path)
    raise FormatError(
        "path",
        found=with_article(type(path).__name__),
        expected="the path of a file, as a str or a pathlib.Path",
        fix="Pass a path; what is in memory has to be written to a file first.",
    )


def _check_names(programs: Mapping[str, Any], path: Path) -> None:
    wrong = [name for name in programs if not str(name).isidentifier()]
    if programs and not wrong:
        return
    raise FormatError(
        str(path),
        found=f"the method name {wrong[0]!r}" if wrong else "no method",
        expected="a name that Python takes for an attribute" if wrong else "at least one",
        fix="Name the methods like functions." if wrong else "Pass the programs to save.",
    )


def _serialize(program: torch.export.ExportedProgram, path: Path) -> bytes:
    try:
        return serialize_graph(program)
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


def _write(new: Path, plan: StoragePlan, graphs: Mapping[str, bytes], methods: Mapping[str, Method]) -> None:
    with Writer(new) as writer:
        for name, data in {**_MARKS, "byteorder": sys.byteorder.encode()}.items():
            writer.write(name, data)
        for member in plan.members:
            writer.stream(member.name, member.data.numel(), member.chunks())
        for name, graph in graphs.items():
            for kind in _KINDS:
                writer.write(_table(name, kind), write_payloads(plan.payloads[name][kind]))
            writer.write(_graph(name), graph)
            writer.write(f"data/sample_inputs/{name}.pt", b"")  # torch wants a member, also for none
        writer.write(_MANIFEST_MEMBER, Contents(methods, dict(writer.members)).to_text().encode())


def _graph(program: str) -> str:
    return f"models/{program}.json"


def _table(program: str, kind: Kind) -> str:
    return f"data/{kind}/{program}_{kind}_config.json"


def _read(archive: Archive) -> dict[str, LoadedMethod]:
    """The methods of an archive of ours. Its directory is judged before a member is read."""
    directory = archive.directory()
    contents = Contents.from_text(archive.read(_MANIFEST_MEMBER), str(archive.path))
    _compare_members(archive.path, directory, contents)
    _check_byte_order(archive)
    tables = {
        (method.program, kind): _read_table(archive, contents, _table(method.program, kind))
        for method in contents.methods.values()
        for kind in _KINDS
    }
    payloads = [(kind, payload) for (_, kind), table in tables.items() for payload in table.values()]
    tensors = MappedTensors(archive.path, archive.file, directory, payloads)
    methods = {}
    for name, (program, manifest) in contents.methods.items():
        text = _read_checked(archive, contents, _graph(program))
        with _telling(archive.path):
            state, constants = (
                {key: tensors.tensor(payload) for key, payload in tables[program, kind].items()} for kind in _KINDS
            )
            methods[name] = LoadedMethod(deserialize_graph(text, state, constants), manifest)
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
    found = {name: member.size_bytes for name, member in directory.items() if name != _MANIFEST_MEMBER}
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
    return UnknownContainer(
        str(path),
        found=f"arguments or outputs in a {name}, which this process does not know",
        expected="containers that are registered as pytree nodes of torch",
        fix="Import its module before loading, or register it under that name: a load imports nothing by itself.",
    )


def _check_engines(path: Path, method: LoadedMethod) -> None:
    try:
        engines = read_engines(method.program)
        if method.manifest is not None:
            _compare_engines(method.manifest.engines, engines)
    except EngineError as error:
        raise EngineError(
            f"{error.subject} in {path}",
            found=error.found,
            expected=error.expected,
            consequence=error.consequence,
            fix=error.fix,
        ) from error


def _compare_engines(expected: Sequence[EngineEntry], found: Sequence[EngineEntry]) -> None:
    for entry in expected:
        if entry not in found:
            raise EngineError(
                f"engine {entry.name!r} (constant {entry.constant!r})",
                found="another engine, or none, in its place",
                expected=f"the one whose SHA-256 is {entry.sha256[:16]}...",
                consequence="The program would compute something else.",
                fix="Save the program again.",
            )
