"""Draw the facts about a program for a person."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.report.drawing import byte_text, plain_table
from intarsia.report.program import LeafFacts, ProgramFacts, StateFacts


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
        sizes = [(size, span, facts.places.get(size, "")) for size, span in facts.ranges.items()]
        yield plain_table(("size", "range", "first seen"), sizes)
    if facts.engines:
        yield _engines(facts)
        yield plain_table(("engine", "signature"), [(engine.name, engine.signature) for engine in facts.engines])
    if facts.operators:
        rows = [(name, str(count)) for name, count in facts.operators.items()]
        yield plain_table(("operator left in torch", "nodes"), rows)
    if facts.state:
        yield _state(facts)
    yield plain_table(("part", "bytes"), [(part, byte_text(size)) for part, size in facts.size_bytes.items() if size])
    if facts.versions:
        yield plain_table(("made with", "version"), facts.versions.items())
    else:
        yield Text("made with another tool: the file tells neither versions nor a ledger")
    if facts.ledger:
        yield plain_table(("ledger of the export, counted in the hybrid",), [(line,) for line in facts.ledger])


def _leaves(leaves: tuple[LeafFacts, ...]) -> Iterator[tuple[str, str]]:
    for leaf in leaves:
        yield leaf.name, f"{leaf.type}, written by {', '.join(leaf.written_by)}" if leaf.written_by else leaf.type


def _engines(facts: ProgramFacts) -> RenderableType:
    rows = [
        (
            engine.name,
            f"{engine.backend} {_short_version(engine.backend_version)}",
            engine.target,
            byte_text(engine.payload_bytes),
            byte_text(engine.source_bytes),
        )
        for engine in facts.engines
    ]
    return plain_table(("engine", "backend", "target", "compiled", "portable"), rows)


def _short_version(text: str) -> str:
    """A version without the build that some libraries add to it: "2025.4.1-20426-82bbf029" is 2025.4.1."""
    return text.partition("-")[0]


def _state(facts: ProgramFacts) -> RenderableType:
    rows = [(entry.name, entry.kind, entry.type, byte_text(entry.size_bytes), _written(entry)) for entry in facts.state]
    return plain_table(("state", "kind", "type", "bytes", "written by"), rows)


def _written(entry: StateFacts) -> str:
    return "; ".join(filter(None, (", ".join(entry.written_by), entry.writing)))
