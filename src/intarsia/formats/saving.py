"""Write exported programs as PT2 archives that `torch.export.load` reads too."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from intarsia._torch import serialize_graph
from intarsia.core.method_names import check_method_names
from intarsia.core.vectors import Vectors
from intarsia.errors import EngineError, FormatError, first_line
from intarsia.formats.archive.layout import (
    KINDS,
    MANIFEST_HASH_MEMBER,
    MANIFEST_MEMBER,
    Kind,
    checked_path,
    graph_member,
    table_member,
)
from intarsia.formats.archive.payload import Payload, write_payloads
from intarsia.formats.archive.writer import MemberEntry, Streamed, Writer
from intarsia.formats.contents import Contents, Method
from intarsia.formats.description import describe
from intarsia.formats.engines.calls import EngineReader, engine_tensor
from intarsia.formats.engines.members import ConstantMember, EngineMember, EnginePlan, plan_engines
from intarsia.formats.replacement import replacing
from intarsia.formats.tensors.storable import check_storable
from intarsia.formats.tensors.storages import PlannedMember, plan_storages, tensors_of
from intarsia.formats.vectors import write_vectors

Progress = Callable[[int, int, str], None]

MARKS = {"archive_format": b"pt2", "archive_version": b"0", ".data/version": b"6\n"}
"""Members by which torch knows an archive."""


def save_methods(
    programs: Mapping[str, torch.export.ExportedProgram],
    path: str | os.PathLike[str],
    *,
    facts: Mapping[str, Mapping[str, Any]],
    payloads: bool = True,
    vectors: Vectors | None = None,
    progress: Progress | None = None,
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
        payloads: Whether to store what the engines compiled to, and not only their portable forms.
        vectors: Test vectors of the methods; none are the same as None.
        progress: Called with bytes written, bytes in all, and the name of the next member.

    Raises:
        FormatError: The path cannot be written or has another ending, or a program is none or cannot be stored.
        ConventionError: There is no program, or a method's name is no name for an attribute, or is taken.
        StateError: A state entry is no plain tensor.
        EngineError: An engine of a program is damaged, or has no portable form, and `payloads` is false.
    """
    path = checked_path(path)
    if path.suffix != ".pt2":
        found = f"the ending {path.suffix!r}" if path.suffix else "no ending"
        raise FormatError(str(path), found=found, expected="'.pt2'", fix="Name the file *.pt2.")
    check_method_names(programs)
    for program in programs.values():
        check_storable(program, str(path))
    names = {method: method if len(programs) > 1 else "model" for method in programs}
    plan = _plan({names[method]: program for method, program in programs.items()}, payloads=payloads)
    count = len(vectors.calls) if vectors else 0
    methods = {
        method: Method(
            names[method],
            describe(program, plan.engines.entries(names[method]), facts[method], test_vectors=count),
        )
        for method, program in programs.items()
    }
    graphs = {
        names[method]: _serialize(program, path, _lengths(program, plan.engines.placed[names[method]]))
        for method, program in programs.items()
    }
    recorded = write_vectors(vectors) if vectors and vectors.calls else {}
    with replacing(path) as new:
        _write(new, plan, graphs, methods, recorded, progress=progress)


class _Plan(NamedTuple):
    """What to write.

    Attributes:
        tensors: Members with torch's tensors, and what each tensor is in them.
        engines: Members with engines, and with constants that engines share.
        tables: What each tensor and each engine is in the members: by program, folder and name.
    """

    tensors: list[PlannedMember]
    engines: EnginePlan
    tables: dict[str, dict[Kind, dict[str, Payload]]]


def _plan(programs: Mapping[str, torch.export.ExportedProgram], *, payloads: bool) -> _Plan:
    reader = EngineReader()
    engines = {name: reader.read(program) for name, program in programs.items()}
    storages = plan_storages(programs, engines)
    planned = plan_engines(programs, engines, storages.members, payloads=payloads)
    tables = {}
    for name, program in programs.items():
        members = planned.placed[name]
        tables[name] = {
            kind: {
                key: members[key].payload(tensor, storages.memories)
                if key in members
                else storages.payloads[name][kind][key]
                for key, tensor in tensors.items()
            }
            for kind, tensors in tensors_of(program)
        }
    return _Plan(storages.members, planned, tables)


def _serialize(program: torch.export.ExportedProgram, path: Path, lengths: Mapping[str, int]) -> bytes:
    try:
        return serialize_graph(program, lengths)
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


def _lengths(program: torch.export.ExportedProgram, members: Mapping[str, EngineMember]) -> dict[str, int]:
    """Placeholders of engines whose containers have other sizes in the file -> these."""
    return {
        spec.arg.name: members[spec.target].size_bytes
        for spec in program.graph_signature.input_specs
        if spec.target in members and members[spec.target].size_bytes != engine_tensor(program, spec.target).numel()
    }


def _write(
    new: Path,
    plan: _Plan,
    graphs: Mapping[str, bytes],
    methods: Mapping[str, Method],
    vectors: Mapping[str, bytes],
    *,
    progress: Progress | None,
) -> None:
    with Writer(new) as writer:
        for name, data in {**MARKS, "byteorder": sys.byteorder.encode()}.items():
            writer.write(name, data)
        _write_members(writer, [*plan.tensors, *plan.engines.engines, *plan.engines.constants], progress)
        for constant in plan.engines.constants:
            _compare(constant, writer.members[constant.name])
        for name, graph in graphs.items():
            for kind in KINDS:
                writer.write(table_member(name, kind), write_payloads(plan.tables[name][kind]))
            writer.write(graph_member(name), graph)
            writer.write(f"data/sample_inputs/{name}.pt", b"")  # torch wants a member, also for none
        for name, data in vectors.items():
            writer.write(name, data)
        writer.write(MANIFEST_MEMBER, Contents(methods, dict(writer.members)).to_text().encode())
        writer.write(MANIFEST_HASH_MEMBER, writer.members[MANIFEST_MEMBER].sha256.encode())


def _write_members(writer: Writer, members: Sequence[Streamed], progress: Progress | None) -> None:
    """Write what is large, and tell how far it has come: all else takes no time."""
    total = sum(member.size_bytes for member in members)
    done = 0

    def told(member: Streamed) -> Iterator[memoryview]:
        nonlocal done
        for chunk in member.chunks():
            if progress:
                progress(done, total, member.name)
            yield chunk
            done += chunk.nbytes

    for member in members:
        writer.stream(member.name, member.size_bytes, told(member))
    if progress:
        progress(total, total, "")


def _compare(constant: ConstantMember, written: MemberEntry) -> None:
    """Refuse a constant that is not what its engines say: they find it by its hash."""
    if written.sha256 != constant.sha256:
        raise EngineError(
            constant.engine,
            found="a constant that does not match its SHA-256",
            expected="the bytes that were written",
            consequence="The engine could not be built from its portable form.",
            fix="Compile or copy the program again.",
        )
