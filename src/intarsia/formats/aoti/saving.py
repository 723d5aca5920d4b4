"""Write exported programs as AOTInductor packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from intarsia._torch import serialize_graph
from intarsia.core.compiled.compiling import check_compiler, compile_programs, target_of, tell_fault
from intarsia.core.compiled.model import CompiledModel, read_package
from intarsia.core.method_names import check_method_names
from intarsia.core.vectors import Vectors
from intarsia.errors import FormatError, IntarsiaError, StateError
from intarsia.formats.aoti.layout import boundary_member, code_folder
from intarsia.formats.aoti.preparing import prepare
from intarsia.formats.archive.layout import MANIFEST_HASH_MEMBER, MANIFEST_MEMBER, checked_path
from intarsia.formats.archive.writer import Writer
from intarsia.formats.boundary import boundary_of
from intarsia.formats.contents import Contents, Method
from intarsia.formats.description import describe
from intarsia.formats.engines.calls import EngineReader
from intarsia.formats.manifest import EngineEntry
from intarsia.formats.replacement import find_target, replacing
from intarsia.formats.saving import MARKS
from intarsia.formats.tensors.storable import check_storable
from intarsia.formats.vectors import write_vectors


def save_aoti(
    programs: Mapping[str, torch.export.ExportedProgram],
    path: str | os.PathLike[str],
    *,
    facts: Mapping[str, Mapping[str, Any]],
    payloads: bool = True,
    vectors: Vectors | None = None,
) -> None:
    """Compile exported programs, and write them to one `.pt2` file.

    `torch._inductor.aoti_load_package` reads it too, where intarsia is imported. It appears in one step, so a failed
    save leaves an older file at `path` as it was.

    Args:
        programs: At least one, by the name of the method; one alone is called `model` in the package. Not modified.
        path: Ends in `.pt2`.
        facts: For each method, JSON values for the manifest, as for `save_methods`.
        payloads: True, for the engines stand in the code as they are.
        vectors: Test vectors of the methods; none are the same as None.

    Raises:
        FormatError: The file cannot be written, or torch cannot compile a program.
        EngineUnavailable: There is no C++ compiler.
        ConventionError: A program takes or gives something else than tensors.
        MutationError: A write would be lost.
        StateError: State is no plain tensor, or a method would not see what another writes.
        EngineError: An engine is damaged.
    """
    path = checked_path(path)
    _check_request(path, payloads=payloads)
    check_method_names(programs)
    find_target(path)
    for program in programs.values():
        check_storable(program, str(path))
    check_compiler(str(path))
    names = {method: method if len(programs) > 1 else "model" for method in programs}
    count = len(vectors.calls) if vectors else 0
    methods = {
        method: _describe(names[method], program, facts[method], test_vectors=count)
        for method, program in programs.items()
    }
    written = {write.name for method in methods.values() for write in method.manifest.writes if write.kind != "input"}
    package = _compile(programs, names, written, path)
    codes = {name: read_package(package, name) for name in names.values()}
    _check_state(programs, {method: codes[name] for method, name in names.items()}, written)
    with replacing(path) as new, Writer(new) as writer:
        for name, data in {**MARKS, "byteorder": sys.byteorder.encode()}.items():
            writer.write(name, data)
        for method, program in programs.items():
            for file, code in codes[names[method]].items():
                writer.write(f"{code_folder(names[method])}{file}", code)
            writer.write(boundary_member(names[method]), serialize_graph(boundary_of(program), {}))
        for name, data in (write_vectors(vectors) if vectors and vectors.calls else {}).items():
            writer.write(name, data)
        writer.write(MANIFEST_MEMBER, Contents(methods, dict(writer.members)).to_text().encode())
        writer.write(MANIFEST_HASH_MEMBER, writer.members[MANIFEST_MEMBER].sha256.encode())


def _check_request(path: Path, *, payloads: bool) -> None:
    faults = {
        f"the ending {path.suffix!r}": (path.suffix != ".pt2", "'.pt2'", "Name the file *.pt2."),
        "payloads=False": (not payloads, "compiled engines", "Leave payloads out."),
    }
    for found, (is_wrong, expected, fix) in faults.items():
        if is_wrong:
            raise FormatError(str(path), found=found, expected=f"{expected} for format='aoti'", fix=fix)


def _describe(
    name: str, program: torch.export.ExportedProgram, facts: Mapping[str, Any], *, test_vectors: int
) -> Method:
    containers = EngineReader().read(program)
    engines = tuple(EngineEntry.of(constant, one, one) for constant, one in containers.items())
    return Method(
        name, replace(describe(program, engines, facts, test_vectors=test_vectors), compiled=target_of([program]))
    )


def _compile(
    programs: Mapping[str, torch.export.ExportedProgram], names: Mapping[str, str], written: set[str], path: Path
) -> bytes:
    prepared = {}
    for method, program in programs.items():
        with IntarsiaError.of_method(method):
            prepared[names[method]] = prepare(program, written)
    try:
        return compile_programs(prepared, {})
    except Exception as error:
        raise FormatError(
            str(path),
            found=f"a program that AOTInductor cannot compile ({tell_fault(error)})",
            expected="one that it compiles",
            fix="Put the operator concerned into an engine, or save without format='aoti'.",
        ) from error


def _check_state(
    programs: Mapping[str, torch.export.ExportedProgram],
    codes: Mapping[str, Mapping[str, bytes]],
    written: set[str],
) -> None:
    """Refuse a method whose code has a constant in the place of state that a call writes."""
    for method, program in programs.items():
        specs = program.graph_signature.input_specs
        read = {spec.target for spec in specs if spec.kind is not InputKind.USER_INPUT and spec.target}
        lost = sorted(read & written - CompiledModel(codes[method]).state().keys())
        if lost:
            raise StateError(
                f"method {method!r}, state {lost[0]!r}",
                found="that AOTInductor compiled it as a constant, for the method only reads it",
                expected="state that other methods write",
                consequence="The method would not see what they write.",
                fix="Let the method write it too, make it larger than 8 numbers, or save without format='aoti'.",
            )
