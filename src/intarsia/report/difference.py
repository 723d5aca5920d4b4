"""How two programs differ: their graphs, state, engines, signatures and versions, as frozen data."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

import torch
from torch.export import ExportedProgram

from intarsia.core.container import EngineContainer
from intarsia.core.engine_calls import read_containers
from intarsia.core.memory import bytes_of
from intarsia.errors import shorten
from intarsia.report.graph_lines import Symbols, graph_lines
from intarsia.report.program import EngineFacts, ProgramFacts, describe_program

Part = Literal["method", "version", "signature", "state", "engine", "graph"]
_LINE_WIDTH = 200


class Side(NamedTuple):
    """A program, as one of two that are compared.

    Attributes:
        program: Not modified.
        versions: What wrote it -> version; empty when the file does not tell.
    """

    program: ExportedProgram
    versions: Mapping[str, str]


class Change(NamedTuple):
    """One thing in which two programs differ.

    Attributes:
        method: The method.
        part: Of what kind it is.
        subject: What it is, named as the user knows it; empty for the method itself.
        before: What it is in the first program, or None when it is not there.
        after: What it is in the second one.
    """

    method: str
    part: Part
    subject: str
    before: str | None
    after: str | None


def compare_methods(before: Mapping[str, Side], after: Mapping[str, Side]) -> list[Change]:
    """Everything in which the methods of two files differ; empty when they are the same program.

    How nodes and sizes are numbered does not count. Neither does what a file does not tell: one of another tool says
    nothing of versions.

    Args:
        before: The programs of the first file, by the names of their methods.
        after: Those of the second one.

    Raises:
        EngineError: An engine's container is damaged.

    Example:
        >>> programs = [torch.export.export(op, (torch.ones(2),)) for op in (torch.nn.ReLU(), torch.nn.Tanh())]
        >>> one, other = ({"forward": Side(program, {})} for program in programs)
        >>> [change[2:] for change in compare_methods(one, other)][0]
        ('aten.relu.default', '1 node', None)
    """
    changes = []
    for name in {**before, **after}:
        if name in before and name in after:
            changes += [Change(name, *found) for found in _compare(_read(before[name]), _read(after[name]))]
        else:
            changes.append(Change(name, "method", "", _there(name in before), _there(name in after)))
    return changes


_Texts = Mapping[str, str]
_Found = tuple[Part, str, str | None, str | None]


class _Reading(NamedTuple):
    """What is compared of a program: texts by what they concern, the values of its state, and its graph."""

    versions: _Texts
    signature: _Texts
    state: _Texts
    values: Mapping[str, torch.Tensor]
    engines: Mapping[str, _Texts]
    graph: Sequence[str]


def _read(side: Side) -> _Reading:
    program, symbols = side.program, Symbols()
    facts, containers = describe_program(program), read_containers(program)
    state = {entry.name: f"{entry.kind} {entry.type}" for entry in facts.state}
    return _Reading(
        versions={**side.versions, "dialect": facts.dialect},
        signature=_signature(program, facts, symbols),
        state=state,
        values={name: _bytes(program.state_dict.get(name, program.constants.get(name))) for name in state},
        engines={engine.constant: _engine(engine, containers[engine.constant], symbols) for engine in facts.engines},
        graph=graph_lines(program, symbols),
    )


def _signature(program: ExportedProgram, facts: ProgramFacts, symbols: Symbols) -> _Texts:
    """What a caller must know."""
    texts = {f"input {leaf.name}": symbols.rename(leaf.type) for leaf in facts.inputs}
    texts |= {leaf.name: symbols.rename(leaf.type) for leaf in facts.outputs}
    texts |= {f"size {symbols.rename(size)}": values for size, values in facts.ranges.items()}
    spec = program.call_spec
    return {**texts, "structure of the arguments": str(spec.in_spec), "structure of the outputs": str(spec.out_spec)}


def _bytes(value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        return torch.empty(0, dtype=torch.uint8)  # of an object the type alone is compared
    return bytes_of(value.detach().cpu())


def _engine(engine: EngineFacts, container: EngineContainer, symbols: Symbols) -> _Texts:
    return {
        "name": engine.name,
        "backend": engine.backend,
        "version": engine.backend_version,
        "target": engine.target,
        "signature": symbols.rename(engine.signature),
        "options": str(dict(sorted(container.options.items()))),
        **_forms(container),
    }


def _forms(container: EngineContainer) -> _Texts:
    """The compiled form of an engine and the portable one, which has its large constants apart."""
    forms = {section.name: section for section in container.sections if section.name != "constant"}
    texts = {name: f"{section.size} bytes, {section.sha256[:12]}" for name, section in forms.items()}
    if container.constants:
        digest = hashlib.sha256("".join(constant.sha256 for constant in container.constants).encode()).hexdigest()
        size_bytes = sum(constant.size for constant in container.constants)
        texts["large constants"] = f"{size_bytes} bytes, {digest[:12]}"
    return texts


def _compare(one: _Reading, other: _Reading) -> Iterator[_Found]:
    told = one.versions.keys() & other.versions.keys()
    versions = ({name: text for name, text in side.versions.items() if name in told} for side in (one, other))
    yield from _compare_texts("version", *versions)
    yield from _compare_texts("signature", one.signature, other.signature)
    yield from _compare_state(one, other)
    yield from _compare_engines(one.engines, other.engines)
    yield from _compare_graphs(one.graph, other.graph)


def _compare_state(one: _Reading, other: _Reading) -> Iterator[_Found]:
    """Types first; where they agree, values: by their bytes, so that NaN is NaN and zero has a sign."""
    yield from _compare_texts("state", one.state, other.state)
    for name, text in one.state.items():
        before, after = one.values[name], other.values.get(name)
        if after is not None and other.state[name] == text and not torch.equal(before, after):
            yield "state", name, f"{text}, {_digest(before)}", f"{text}, {_digest(after)}"


def _digest(value: torch.Tensor) -> str:
    return hashlib.sha256(value.numpy().data).hexdigest()[:12]


def _compare_engines(before: Mapping[str, _Texts], after: Mapping[str, _Texts]) -> Iterator[_Found]:
    for name in {**before, **after}:
        if name not in before or name not in after:
            yield "engine", name, _there(name in before), _there(name in after)
            continue
        for part, fact, one, other in _compare_texts("engine", before[name], after[name]):
            yield part, f"{name}, {fact}", one, other


def _compare_graphs(before: Sequence[str], after: Sequence[str]) -> Iterator[_Found]:
    """The operators that there are more or fewer of, and the first line that differs."""
    yield from _compare_texts("graph", _counts(before), _counts(after))
    for one, other in zip_longest(before, after):
        if one != other:
            yield "graph", "first line that differs", _line(one), _line(other)
            return


def _counts(lines: Sequence[str]) -> _Texts:
    calls = (line.partition(" = ")[2] for line in lines if line.lstrip().startswith("%"))
    counts = Counter(call.partition("(")[0] for call in calls)
    del counts["operator.getitem"]  # it follows from the operator whose result it takes apart
    return {name: f"{count} node{'' if count == 1 else 's'}" for name, count in counts.items()}


def _line(text: str | None) -> str | None:
    return None if text is None else shorten(text.strip(), _LINE_WIDTH)


def _compare_texts(part: Part, before: _Texts, after: _Texts) -> Iterator[_Found]:
    for subject in {**before, **after}:
        if before.get(subject) != after.get(subject):
            yield part, subject, before.get(subject), after.get(subject)


def _there(is_there: bool) -> str | None:  # noqa: FBT001 - it says it all
    return "there" if is_there else None
