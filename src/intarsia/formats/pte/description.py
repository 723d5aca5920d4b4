"""Describe the methods of a `.pte`: what a file tells of them besides what ExecuTorch needs."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch

from intarsia._torch import deserialize_graph, serialize_graph
from intarsia.core.container import EngineContainer
from intarsia.core.positions import InputPositions
from intarsia.formats.boundary import boundary_of
from intarsia.formats.contents import Contents, Method
from intarsia.formats.description import describe as describe_program
from intarsia.formats.judgement.graph import read_graph
from intarsia.formats.judgement.typed import check_types
from intarsia.formats.loading import telling, unknown_container
from intarsia.formats.manifest import EngineEntry
from intarsia.formats.pte.contents import Description
from intarsia.formats.pte.positions import find_positions


def describe(
    programs: Mapping[str, torch.export.ExportedProgram],
    engines: Mapping[str, Mapping[str, EngineContainer]],
    *,
    facts: Mapping[str, Mapping[str, Any]],
    sealed: bool,
) -> Description:
    """What a file tells of programs and their engines, both by the names of the methods.

    Args:
        programs: Not modified.
        engines: Those of each method, by the constants that hold them.
        facts: For some methods, JSON values for the manifest.
        sealed: Whether the file will end with a seal.
    """
    methods = {
        name: Method(
            "", describe_program(program, tuple(_entry(*one) for one in engines[name].items()), facts.get(name, {}))
        )
        for name, program in programs.items()
    }
    boundaries = {
        name: base64.b64encode(serialize_graph(boundary_of(program), {})) for name, program in programs.items()
    }
    positions = {name: find_positions(program, engines[name]) for name, program in programs.items()}
    return Description(Contents(methods, {}), boundaries, positions, version("executorch"), sealed)


def read_boundary(text: bytes, subject: str) -> torch.export.ExportedProgram:
    """A program with the inputs, ranges and structures of a method.

    Raises:
        FormatError: The text is no such program, or what it needs has to be imported first; `subject` names the file.
    """
    with telling(subject):
        data = base64.b64decode(text, validate=True)
    values, findings = read_graph(data, subject, allow=frozenset())
    if findings.containers:
        raise unknown_container(subject, findings.containers)
    with telling(subject):
        return deserialize_graph(values, {}, {})


def read_positions(fields: Sequence[Sequence[Any]], subject: str) -> list[InputPositions]:
    """Inputs of a method that its engines read positions from; raises as `read_boundary`."""
    with telling(subject):
        positions = [InputPositions(*one) for one in fields]
        for one in positions:
            check_types(one)
    return positions


def _entry(constant: str, engine: EngineContainer) -> EngineEntry:
    """The entry of an engine; its portable form stays behind."""
    return replace(EngineEntry.of(constant, engine, engine), size_bytes=engine.payload_bytes, source_bytes=0)
