"""Describe a program: the manifest that stands in its file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch.export.graph_signature import InputKind, OutputKind

from intarsia._torch import graph_schema
from intarsia.core.ledger import Ledger
from intarsia.core.writes import written_placeholders
from intarsia.formats.manifest import FORMAT_VERSION, EngineEntry, Manifest, WriteEntry
from intarsia.formats.packages import packages_of

_WRITE_KINDS: Mapping[OutputKind, Literal["buffer", "parameter", "input"]] = {
    OutputKind.BUFFER_MUTATION: "buffer",
    OutputKind.PARAMETER_MUTATION: "parameter",
    OutputKind.USER_INPUT_MUTATION: "input",
}


def describe(
    program: torch.export.ExportedProgram,
    engines: tuple[EngineEntry, ...],
    facts: Mapping[str, Any],
    *,
    test_vectors: int = 0,
) -> Manifest:
    """The manifest of a program.

    Args:
        program: Not modified.
        engines: Its engines, in graph order.
        facts: JSON values: the `ledger`'s entries, the `coverage` and the `precision`, each where there is one.
        test_vectors: How many calls the file records.
    """
    entries = facts.get("ledger")
    return Manifest(
        FORMAT_VERSION,
        version("intarsia"),
        torch.__version__,
        ".".join(map(str, graph_schema().version)),
        sys.byteorder,
        test_vectors,
        engines,
        _read_writes(program),
        None if entries is None else Ledger.from_json(entries),
        facts.get("coverage"),
        packages_of(program),
        precision=facts.get("precision", {}),
    )


def _read_writes(program: torch.export.ExportedProgram) -> tuple[WriteEntry, ...]:
    outputs = program.graph_signature.output_specs
    declared = [
        WriteEntry(_WRITE_KINDS[spec.kind], str(spec.target), declared=True)
        for spec in outputs
        if spec.kind in _WRITE_KINDS
    ]
    names = {node.name for node in written_placeholders(program.graph_module)}
    return (*declared, *(_in_place(spec) for spec in program.graph_signature.input_specs if spec.arg.name in names))


def _in_place(spec: torch.export.graph_signature.InputSpec) -> WriteEntry:
    if spec.kind is InputKind.PARAMETER:
        return WriteEntry("parameter", str(spec.target), declared=False)
    if spec.kind is InputKind.BUFFER:
        return WriteEntry("buffer", str(spec.target), declared=False)
    if spec.kind is InputKind.CONSTANT_TENSOR:
        return WriteEntry("constant", str(spec.target), declared=False)
    return WriteEntry("input", spec.arg.name, declared=False)
