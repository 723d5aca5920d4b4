"""Draw the facts about a program for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.report.drawing import byte_text, plain_table
from intarsia.report.executorch import DIALECT as EXECUTORCH
from intarsia.report.program import EngineFacts, LeafFacts, ProgramFacts, StateFacts
from intarsia.report.storage import StorageFacts


def draw_program(facts: ProgramFacts) -> RenderableType:
    """Inputs, outputs, engines, torch operators, state, size, versions and ledger, each as a table.

    Args:
        facts: What `describe_program` returns.

    Returns:
        Something that a rich console prints.
    """
    return Group(*_parts(facts))


def _parts(facts: ProgramFacts) -> Iterator[RenderableType]:
    distinct = sum(not engine.same_as for engine in facts.engines)
    engines = f"{distinct} engine{'' if distinct == 1 else 's'}"
    yield Text(f"program: {facts.nodes} nodes, {engines}, dialect {facts.dialect}\n")
    yield plain_table(("input", "type"), _leaves(facts.inputs))
    yield plain_table(("output", "type"), _leaves(facts.outputs))
    if facts.ranges:
        sizes = [(size, span, facts.places.get(size, "")) for size, span in facts.ranges.items()]
        yield plain_table(("size", "range", "first seen"), sizes)
    if facts.engines:
        yield _engines(facts)
        yield plain_table(("engine", "signature"), [(_name(engine), engine.signature) for engine in facts.engines])
    if facts.operators:
        rows = [(name, str(count)) for name, count in facts.operators.items()]
        told = ("kernel or delegate", "calls") if facts.dialect == EXECUTORCH else ("operator left in torch", "nodes")
        yield plain_table(told, rows)
    if facts.state:
        yield draw_state(facts.state)
    if facts.size_bytes:
        yield from _sizes(facts.size_bytes, facts.repeated_bytes)
    if facts.versions:
        yield plain_table(("made with", "version"), facts.versions.items())
    else:
        yield Text("made with another tool: the file tells neither versions nor a ledger")
    if facts.ledger:
        yield plain_table(("ledger of the export, counted in the hybrid",), [(line,) for line in facts.ledger])


def draw_storage(facts: StorageFacts) -> RenderableType:
    """What the methods of a file store together, as a table.

    Args:
        facts: What `describe_storage` returns for all of them.

    Returns:
        Something that a rich console prints.
    """
    return Group(*_sizes(facts.size_bytes, facts.repeated_bytes))


def _sizes(size_bytes: Mapping[str, int], repeated_bytes: int) -> Iterator[RenderableType]:
    yield plain_table(("part", "bytes"), [(part, byte_text(size)) for part, size in size_bytes.items() if size])
    if repeated_bytes:
        yield Text(f"compiled engines repeat up to {byte_text(repeated_bytes)} of weights; payloads=False saves none\n")


def _leaves(leaves: tuple[LeafFacts, ...]) -> Iterator[tuple[str, str]]:
    for leaf in leaves:
        yield leaf.name, f"{leaf.type}, written by {', '.join(leaf.written_by)}" if leaf.written_by else leaf.type


def _engines(facts: ProgramFacts) -> RenderableType:
    rows = [
        (
            _name(engine),
            f"{engine.backend} {_short_version(engine.backend_version)}",
            engine.target,
            *_form_texts(engine),
        )
        for engine in facts.engines
    ]
    return plain_table(("engine", "backend", "target", "compiled", "portable"), rows)


def _name(engine: EngineFacts) -> str:
    """The name of an engine; of one that is stored as another one, that of its own place."""
    return engine.constant if engine.same_as else engine.name


def _form_texts(engine: EngineFacts) -> tuple[str, str]:
    """How large the compiled and the portable form are."""
    if engine.same_as:
        return f"as {engine.name}", ""
    shared = f", {byte_text(engine.shared_bytes)} shared" if engine.shared_bytes else ""
    compiled = byte_text(engine.payload_bytes) if engine.payload_bytes else "when called"
    return compiled, byte_text(engine.source_bytes) + shared


def _short_version(text: str) -> str:
    """A version without the build that some libraries add to it: "2025.4.1-20426-82bbf029" is 2025.4.1."""
    return text.partition("-")[0]


def draw_state(state: tuple[StateFacts, ...]) -> RenderableType:
    """State entries as a table."""
    rows = [(entry.name, entry.kind, entry.type, _bytes(entry), _written(entry)) for entry in state]
    return plain_table(("state", "kind", "type", "bytes", "written by"), rows)


def _bytes(entry: StateFacts) -> str:
    """A file for ExecuTorch tells neither type nor size."""
    return byte_text(entry.size_bytes) if entry.type else ""


def _written(entry: StateFacts) -> str:
    return "; ".join(filter(None, (", ".join(entry.written_by), entry.writing)))
