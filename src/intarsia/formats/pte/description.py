"""What a `.pte` of intarsia says of itself: a constant method that returns JSON text."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import torch

from intarsia._torch import deserialize_graph, serialize_graph
from intarsia.core.container import EngineContainer
from intarsia.errors import FormatError, UnsupportedVersion
from intarsia.formats.judgement.graph import read_graph
from intarsia.formats.loading import telling, unknown_container
from intarsia.formats.pte.boundary import boundary_of
from intarsia.formats.pte.positions import InputPositions, find_positions

DESCRIPTION = "intarsia_description"
"""Name of the method."""

FORMAT_VERSION = 1

_WRITERS = ("intarsia", "torch", "executorch")


class EngineFacts(NamedTuple):
    """What a `.pte` tells of an engine.

    Attributes:
        name: Its name.
        version: Backend and version that it was built with.
    """

    name: str
    version: str

    def texts(self) -> dict[str, str]:
        """What is known of the backend, by what it concerns."""
        backend, _, version = self.version.partition(" ")
        return {"backend": backend, "version": version}


class Description(NamedTuple):
    """What is known of the methods of a file.

    Attributes:
        boundaries: What each method takes and gives, by name.
        engines: Engines of each method, by name.
        versions: What wrote the file -> version.
        positions: Inputs of each method that engines read positions from, by name.
    """

    boundaries: Mapping[str, torch.export.ExportedProgram]
    engines: Mapping[str, Sequence[EngineFacts]]
    versions: Mapping[str, str]
    positions: Mapping[str, Sequence[InputPositions]]


def describe(
    programs: Mapping[str, torch.export.ExportedProgram], engines: Mapping[str, Mapping[str, EngineContainer]]
) -> str:
    """The text for programs and their engines, both by the names of the methods."""
    methods = {
        name: {
            "boundary": base64.b64encode(serialize_graph(boundary_of(program), {})).decode(),
            "engines": [
                EngineFacts(one, f"{container.backend} {container.backend_version}")
                for one, container in engines[name].items()
            ],
            "positions": find_positions(program, engines[name]),
        }
        for name, program in programs.items()
    }
    versions = {f"{package}_version": version(package) for package in _WRITERS}
    return json.dumps({"format_version": FORMAT_VERSION, **versions, "methods": methods})


def read_description(text: Any, subject: str) -> Description:
    """What `describe` wrote.

    Raises:
        UnsupportedVersion: A newer intarsia wrote it.
        FormatError: It is not such a text; `subject` names the file.
    """
    try:
        fields = json.loads(text)
        found = int(fields["format_version"])
        if found > FORMAT_VERSION:
            raise UnsupportedVersion(
                subject,
                found=f"format version {found}",
                expected=f"at most {FORMAT_VERSION}",
                fix=f"Install the intarsia that wrote it, {fields.get('intarsia_version')}, or a newer one.",
            )
        methods = fields["methods"]
        boundaries = {
            str(name): _read_boundary(base64.b64decode(method["boundary"]), subject) for name, method in methods.items()
        }
        facts = {str(name): [EngineFacts(*one) for one in method["engines"]] for name, method in methods.items()}
        versions = {package: str(fields[f"{package}_version"]) for package in _WRITERS}
        positions = {
            str(name): [InputPositions(*one) for one in method["positions"]] for name, method in methods.items()
        }
        return Description(boundaries, facts, versions, positions)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(
            subject,
            found=f"a description that cannot be read ({type(error).__name__}: {error})",
            expected="what intarsia.save wrote",
            fix="Save the program again.",
        ) from error


def _read_boundary(text: bytes, subject: str) -> torch.export.ExportedProgram:
    values, findings = read_graph(text, subject, allow=frozenset())
    if findings.containers:
        raise unknown_container(subject, findings.containers)
    with telling(subject):
        return deserialize_graph(values, {}, {})
