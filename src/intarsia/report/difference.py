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
from intarsia.errors import shorten
from intarsia.report.executorch import Plan
from intarsia.report.graph_lines import Symbols, graph_lines
from intarsia.report.program import EngineFacts, LeafFacts, describe_program
from intarsia.report.values import bytes_of, digest

Part = Literal["method", "version", "signature", "state", "engine", "graph", "test vector", "content"]
_LINE_WIDTH = 200


class Side(NamedTuple):
    """A program, as one of two that are compared.

    Attributes:
        program: Not modified.
        versions: What wrote it -> version; empty when the file does not tell.
        engines: Where the program is no more than a boundary, which has the inputs, ranges and structures of another
            and computes nothing, what is known of that one's engines: by constant, texts by what they concern.
        plan: Then also what a file for ExecuTorch tells of outputs and calls.
    """

    program: ExportedProgram
    versions: Mapping[str, str]
    engines: Mapping[str, Mapping[str, str]] | None = None
    plan: Plan | None = None


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
    nothing of versions, and one without a graph nothing of state.

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


def compare_stored(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """How what two files without a graph store differs: size and hash of each thing, by name.

    Example:
        >>> compare_stored({"weights": "8 bytes, 5a"}, {"weights": "8 bytes, f0"})[0][1:]
        ('content', 'weights', '8 bytes, 5a', '8 bytes, f0')
    """
    return [Change("", *found) for found in compare_texts("content", before, after)]


_Texts = Mapping[str, str]
_Found = tuple[Part, str, str | None, str | None]


class _Reading(NamedTuple):
    """What is compared of a program: texts by what they concern, the values of its state, and its graph.

    None is what nobody knows.
    """

    versions: _Texts
    inputs: _Texts
    engines: Mapping[str, _Texts]
    outputs: _Texts | None = None
    state: _Texts | None = None
    values: Mapping[str, torch.Tensor] | None = None
    graph: Sequence[str] | None = None
    plan: Plan | None = None


def _read(side: Side) -> _Reading:
    program, symbols = side.program, Symbols()
    facts = describe_program(program)
    inputs, outputs = (_leaves(leaves, symbols) for leaves in (facts.inputs, facts.outputs))
    sizes = {f"size {symbols.rename(size)}": values for size, values in facts.ranges.items()}
    known = {**{f"input {name}": text for name, text in inputs.items()}, **sizes, **_structures(program)}
    if side.engines is not None:
        engines = {
            name: {fact: symbols.rename(text) if fact == "signature" else text for fact, text in texts.items()}
            for name, texts in side.engines.items()
        }
        return _Reading(side.versions, known, engines, plan=side.plan)
    containers = read_containers(program)
    state = {entry.name: f"{entry.kind} {entry.type}" for entry in facts.state}
    return _Reading(
        versions={**side.versions, "dialect": facts.dialect},
        inputs=known,
        engines={engine.constant: _engine(engine, containers[engine.constant], symbols) for engine in facts.engines},
        outputs=outputs,
        state=state,
        values={name: bytes_of(program.state_dict.get(name, program.constants.get(name))) for name in state},
        graph=graph_lines(program, symbols),
    )


def _leaves(leaves: Sequence[LeafFacts], symbols: Symbols) -> dict[str, str]:
    return {leaf.name: symbols.rename(leaf.type) for leaf in leaves}


def _structures(program: ExportedProgram) -> dict[str, str]:
    spec = program.call_spec
    return {"structure of the arguments": str(spec.in_spec), "structure of the outputs": str(spec.out_spec)}


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
    yield from compare_texts("version", *_told_by_both(one.versions, other.versions))
    yield from compare_texts("signature", one.inputs, other.inputs)
    if one.outputs is not None and other.outputs is not None:
        yield from compare_texts("signature", one.outputs, other.outputs)
    yield from _compare_state(one, other)
    yield from _compare_engines(one, other)
    if one.graph is not None and other.graph is not None:
        yield from _compare_graphs(one.graph, other.graph)
    if one.plan is not None and other.plan is not None:
        yield from _compare_plans(one.plan, other.plan)


def _compare_plans(one: Plan, other: Plan) -> Iterator[_Found]:
    outputs = ({f"output {i}": text for i, text in enumerate(plan.outputs)} for plan in (one, other))
    yield from compare_texts("signature", *outputs)
    yield from compare_texts("graph", *(_count_texts(plan.calls, "call") for plan in (one, other)))


def _told_by_both(one: _Texts, other: _Texts) -> tuple[_Texts, _Texts]:
    told = one.keys() & other.keys()
    before, after = ({name: text for name, text in texts.items() if name in told} for texts in (one, other))
    return before, after


def _compare_state(one: _Reading, other: _Reading) -> Iterator[_Found]:
    """Types first; where they agree, values."""
    if one.state is None or other.state is None or one.values is None or other.values is None:
        return
    yield from compare_texts("state", one.state, other.state)
    for name, text in one.state.items():
        before, after = one.values[name], other.values.get(name)
        if after is not None and other.state[name] == text and not torch.equal(before, after):
            yield "state", name, f"{text}, {digest(before)}", f"{text}, {digest(after)}"


def _compare_engines(one: _Reading, other: _Reading) -> Iterator[_Found]:
    """Engine by engine; where a file tells little of them, only that."""
    is_whole = one.graph is not None and other.graph is not None
    for name in {**one.engines, **other.engines}:
        if name not in one.engines or name not in other.engines:
            yield "engine", name, _there(name in one.engines), _there(name in other.engines)
            continue
        facts = one.engines[name], other.engines[name]
        for part, fact, before, after in compare_texts("engine", *(facts if is_whole else _told_by_both(*facts))):
            yield part, f"{name}, {fact}", before, after


def _compare_graphs(before: Sequence[str], after: Sequence[str]) -> Iterator[_Found]:
    """The operators that there are more or fewer of, and the first line that differs."""
    yield from compare_texts("graph", _counts(before), _counts(after))
    for one, other in zip_longest(before, after):
        if one != other:
            yield "graph", "first line that differs", _line(one), _line(other)
            return


def _counts(lines: Sequence[str]) -> _Texts:
    calls = (line.partition(" = ")[2] for line in lines if line.lstrip().startswith("%"))
    counts = Counter(call.partition("(")[0] for call in calls)
    del counts["operator.getitem"]  # it follows from the operator whose result it takes apart
    return _count_texts(counts, "node")


def _count_texts(counts: Mapping[str, int], noun: str) -> dict[str, str]:
    return {name: f"{count} {noun}{'' if count == 1 else 's'}" for name, count in counts.items()}


def _line(text: str | None) -> str | None:
    return None if text is None else shorten(text.strip(), _LINE_WIDTH)


def compare_texts(part: Part, before: _Texts, after: _Texts) -> Iterator[_Found]:
    """The part, the subject and both texts of each in which they differ; None where one has none."""
    for subject in {**before, **after}:
        if before.get(subject) != after.get(subject):
            yield part, subject, before.get(subject), after.get(subject)


def _there(is_there: bool) -> str | None:  # noqa: FBT001 - it says it all
    return "there" if is_there else None
