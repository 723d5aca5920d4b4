"""Draw the facts about a program for a person."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.report.drawing import byte_text, plain_table
from intarsia.report.program import LeafFacts, ProgramFacts


def draw_program(facts: ProgramFacts) -> RenderableType:
    """Inputs, outputs, engines, torch operators, state, size, versions and ledger, each as a table.

    Args:
        facts: What `describe_program` returns.

    Returns:
        Something that a rich console prints.
    """
    return Group(*_parts(facts))


def _parts(facts: ProgramFacts) -> Iterator[RenderableType]:
    engines = f"{len(facts.engines)} engine{'' if len(facts.engines) == 1 else 's'}"
    yield Text(f"program: {facts.nodes} nodes, {engines}, dialect {facts.dialect}\n")
    yield plain_table(("input", "type"), _leaves(facts.inputs))
    yield plain_table(("output", "type"), _leaves(facts.outputs))
    if facts.ranges:
        yield plain_table(("size", "range"), facts.ranges.items())
    if facts.engines:
        yield _engines(facts)
    if facts.operators:
        rows = [(name, str(count)) for name, count in facts.operators.items()]
        yield plain_table(("operator left in torch", "nodes"), rows)
    if facts.state:
        yield _state(facts)
    yield plain_table(("part", "bytes"), [(part, byte_text(size)) for part, size in facts.size_bytes.items() if size])
    if facts.versions:
        yield plain_table(("made with", "version"), facts.versions.items())
    if facts.ledger:
        yield plain_table(("ledger of the export",), [(line,) for line in facts.ledger])


def _leaves(leaves: tuple[LeafFacts, ...]) -> Iterator[tuple[str, str]]:
    for leaf in leaves:
        yield leaf.name, f"{leaf.type}, written" if leaf.written else leaf.type


def _engines(facts: ProgramFacts) -> RenderableType:
    rows = [
        (
            engine.name,
            f"{engine.backend} {engine.backend_version}",
            engine.target,
            byte_text(engine.payload_bytes),
            byte_text(engine.source_bytes),
            engine.signature,
        )
        for engine in facts.engines
    ]
    return plain_table(("engine", "backend", "target", "compiled", "portable", "signature"), rows)


def _state(facts: ProgramFacts) -> RenderableType:
    rows = [
        (entry.name, entry.kind, entry.type, byte_text(entry.size_bytes), "yes" if entry.written else "")
        for entry in facts.state
    ]
    return plain_table(("state", "kind", "type", "bytes", "written"), rows)
