"""The manifest of a program in a file: what is known of it besides its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch.export.graph_signature import InputKind, OutputKind

from intarsia.core.ledger import Ledger
from intarsia.core.writes import written_placeholders
from intarsia.formats.engines import EngineEntry

FORMAT_VERSION = 1

_WRITE_KINDS: Mapping[OutputKind, Literal["buffer", "parameter", "input"]] = {
    OutputKind.BUFFER_MUTATION: "buffer",
    OutputKind.PARAMETER_MUTATION: "parameter",
    OutputKind.USER_INPUT_MUTATION: "input",
}


@dataclass(frozen=True)
class WriteEntry:
    """One thing that a call of the program writes.

    Attributes:
        kind: What is written.
        name: Name of the state entry, or of the graph's input.
        declared: Whether the graph signature declares the write; otherwise an operator of the graph does it in place.
    """

    kind: Literal["buffer", "parameter", "constant", "input"]
    name: str
    declared: bool


@dataclass(frozen=True)
class Manifest:
    """What a file tells of a program.

    Attributes:
        format_version: Version of the manifest and of what else intarsia puts into the file.
        intarsia_version: Version of intarsia that wrote the file.
        torch_version: Version of torch that wrote the file.
        engines: Every engine of the program, in graph order.
        writes: Every write of the program.
        ledger: The account of the export, or None when the program was not exported by intarsia.
        coverage: Where each operator runs, as JSON values, or None when the program was not compiled by intarsia.
    """

    format_version: int
    intarsia_version: str
    torch_version: str
    engines: tuple[EngineEntry, ...]
    writes: tuple[WriteEntry, ...]
    ledger: Ledger | None
    coverage: Mapping[str, Any] | None

    @classmethod
    def of(
        cls, program: torch.export.ExportedProgram, engines: tuple[EngineEntry, ...], facts: Mapping[str, Any]
    ) -> Manifest:
        """The manifest of a program.

        Args:
            program: Not modified.
            engines: Its engines, in graph order.
            facts: JSON values: the `ledger`'s entries and the `coverage`, each where there is one.
        """
        entries = facts.get("ledger")
        return cls(
            FORMAT_VERSION,
            version("intarsia"),
            torch.__version__,
            engines,
            _read_writes(program),
            None if entries is None else Ledger.from_json(entries),
            facts.get("coverage"),
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
