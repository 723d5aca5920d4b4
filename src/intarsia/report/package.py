"""Facts about a package of compiled code, and how they are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
from torch.export import ExportedProgram

from intarsia.report.drawing import plain_table
from intarsia.report.program import describe_program


def describe_package(
    boundaries: Mapping[str, ExportedProgram], manifests: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """What a package says of itself, as JSON values.

    Args:
        boundaries: What each method takes, by name.
        manifests: JSON values of what the file tells of each method.
    """
    methods = {}
    for name, manifest in manifests.items():
        facts = describe_program(boundaries[name])
        methods[name] = {
            "inputs": {leaf.name: leaf.type for leaf in facts.inputs},
            "ranges": facts.ranges,
            "engines": list(manifest["engines"]),
            "writes": list(manifest["writes"]),
        }
    shared = next(iter(manifests.values()))
    versions = {name: shared[f"{name}_version"] for name in ("intarsia", "torch")}
    return {
        "methods": methods,
        "compiled": shared["compiled"],
        "versions": versions,
        "test_vectors": shared["test_vectors"],
    }


def draw_package(facts: Mapping[str, Any]) -> RenderableType:
    """The facts as tables.

    Args:
        facts: What `describe_package` returns.

    Returns:
        Something that a rich console prints.
    """
    return Group(*_parts(facts))


def _parts(facts: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text("AOTInductor package: compiled code, of which nothing is opened here\n")
    for name, method in facts["methods"].items():
        if len(facts["methods"]) > 1:
            yield Text(f"method {name}\n", style="bold")
        yield plain_table(("input", "type"), method["inputs"].items())
        if method["ranges"]:
            yield plain_table(("size", "range"), method["ranges"].items())
        if method["engines"]:
            rows = [
                (one["name"], one["backend"], one["backend_version"], one["signature"]) for one in method["engines"]
            ]
            yield plain_table(("engine", "backend", "version", "signature"), rows)
        if method["writes"]:
            yield plain_table(("written by a call", "kind"), [(one["name"], one["kind"]) for one in method["writes"]])
    yield plain_table(("made with", "version"), facts["versions"].items())
    yield Text(f"compiled for {facts['compiled']}")
