"""The check of an export: the program computes what the hybrid computes, neither less nor more.

Hybrid and program are read by a second reader, which shares no code with the walk that made the one of the other. What
the program returns, writes and does must have the numbers of what the hybrid returns, writes and does. An output lost,
a call wired to another value, two tensors merged under one name, a write dropped or moved: each gives another number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node

from intarsia._torch import is_training, pytree, pytree_convention
from intarsia.core.numbering import Number, Numbering, key_of
from intarsia.core.reading import Reader, Traced
from intarsia.errors import ConservationError
from intarsia.surgery.difference import tell_apart
from intarsia.surgery.values import flatten

_USER = OutputKind.USER_OUTPUT


def check_conservation(
    hybrid: GraphModule,
    values: Mapping[Node, Any],
    program: ExportedProgram,
    *,
    traced: Traced,
    copies: Sequence[str],
) -> None:
    """Check that a program computes what its hybrid computes.

    Args:
        hybrid: The hybrid.
        values: For each of its placeholders a constant, or the program's placeholders in the structure it takes.
        program: What was made of it.
        traced: Graphs that stand for calls of something that has none.
        copies: Names of nodes of the program that were added to make a tensor like the one that is written.

    Raises:
        ConservationError: The two differ; names the first difference.
    """
    numbering = Numbering()
    in_place = is_training(program)
    inputs, state = _program_inputs(program, numbering)
    after = Reader(numbering, writes_in_place=in_place, copies=copies)
    known = inputs | state
    placed = {node: known[node.name] for node in program.graph.find_nodes(op="placeholder")}
    results = after.read(program.graph_module, program.graph, placed)
    before = Reader(numbering, writes_in_place=in_place, traced=traced)
    given = {node: pytree.tree_map_only(Node, lambda leaf: inputs[leaf.name], value) for node, value in values.items()}
    returned = before.read(hybrid, hybrid.graph, given)
    _compare_outputs(hybrid, returned, program, results, numbering)
    _compare_writes(before.written, program, results, known, numbering)
    _compare_effects(after.effects, before.effects, numbering)


def _program_inputs(program: ExportedProgram, numbering: Numbering) -> tuple[dict[str, Number], dict[str, Number]]:
    """Numbers of a program's user inputs, by position, and of its state, by identity; both by placeholder name."""
    inputs: dict[str, Number] = {}
    state: dict[str, Number] = {}
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind is InputKind.USER_INPUT:
            inputs[name] = numbering.number(("input", len(inputs)), name)
            continue
        held = program.state_dict.get(spec.target, program.constants.get(spec.target))
        state[name] = numbering.number(("attribute", id(held)), "state")
    return inputs, state


def _compare_outputs(
    hybrid: GraphModule, returned: Any, program: ExportedProgram, results: Sequence[Any], numbering: Numbering
) -> None:
    convention = pytree_convention(hybrid.graph)
    if convention is not None and convention.out_spec is not None:
        leaves = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        returned = pytree.tree_unflatten(leaves, convention.out_spec)
    expected, spec = flatten(returned)
    user = [r for r, s in zip(results, program.graph_signature.output_specs, strict=True) if s.kind is _USER]
    if spec != program.call_spec.out_spec or len(user) != len(expected):
        raise _lost("the outputs' structure", f"{program.call_spec.out_spec} of {len(user)} leaves", str(spec))
    for index, (found, wanted) in enumerate(zip(user, expected, strict=True)):
        if key_of(found) != key_of(wanted):
            raise _differing(f"output {index}", found, wanted, numbering)


def _compare_writes(
    written: Mapping[Number, Any],
    program: ExportedProgram,
    results: Sequence[Any],
    inputs: Mapping[str, Number],
    numbering: Numbering,
) -> None:
    placeholders = {spec.target: spec.arg.name for spec in program.graph_signature.input_specs}
    declared: dict[Number, Any] = {}
    for result, spec in zip(results, program.graph_signature.output_specs, strict=True):
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            declared[inputs[str(spec.target)]] = result
        elif spec.kind is not _USER:
            declared[inputs[placeholders[spec.target]]] = result
    for target in declared.keys() | written.keys():
        found, wanted = declared.get(target), written.get(target)
        if found is not wanted:
            raise _differing(f"the write of '{target.origin}'", found, wanted, numbering)


def _compare_effects(found: Sequence[Number], expected: Sequence[Number], numbering: Numbering) -> None:
    for one, two in zip(found, expected, strict=False):
        if one is not two:
            raise _differing("an effect", one, two, numbering)
    if len(found) != len(expected):
        raise _lost("the effects", f"{len(found)} of them", f"{len(expected)}")


def _differing(subject: str, found: Any, expected: Any, numbering: Numbering) -> ConservationError:
    return _lost(subject, *tell_apart(found, expected, numbering.keys()))


def _lost(subject: str, found: str, expected: str) -> ConservationError:
    return ConservationError(
        f"the export, {subject}",
        found=found,
        expected=expected,
        consequence="The program would not compute what the hybrid computes.",
        fix="This is a fault of intarsia: please report it with the hybrid.",
    )
