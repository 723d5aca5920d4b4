"""The new graph to an `ExportedProgram`: dead nodes out, signature, ranges, calling convention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ArgumentSpec,
    ConstantArgument,
    CustomObjArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, Node

from intarsia._torch import TreeSpec, verifiers_for
from intarsia.core.effects import Effects
from intarsia.errors import ConventionError
from intarsia.surgery.ledger import Account
from intarsia.surgery.mutations import Mutations
from intarsia.surgery.ranges import Ranges
from intarsia.surgery.state import StateEntry

_MUTATION_KINDS = {
    InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
    InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
}


@dataclass(frozen=True)
class Parts:
    """What an exported program is assembled of.

    Attributes:
        graph: The new graph, with an output node of leaves.
        lifted: State entries with their placeholders.
        inputs: Placeholders of the input leaves.
        outputs: Leaves of the outputs: nodes and constants.
        mutations: Writes.
        in_spec: Structure of the inputs.
        out_spec: Structure of the outputs.
        names: Names of the arguments.
        ranges: Range of every symbol.
        bodies: Bodies of higher-order operators, by attribute name.
        examples: Example inputs `(args, kwargs)`, or None.
    """

    graph: Graph
    lifted: Sequence[tuple[StateEntry, Node]]
    inputs: Sequence[Node]
    outputs: Sequence[Any]
    mutations: Mutations
    in_spec: TreeSpec
    out_spec: TreeSpec
    names: Sequence[str]
    ranges: Ranges
    bodies: Mapping[str, Any]
    examples: tuple[tuple[Any, ...], dict[str, Any]] | None


def remove_dead(graph: Graph, bodies: Mapping[str, Any], account: Account) -> None:
    """Take out every node that no output, write or effect depends on.

    Args:
        graph: The new graph.
        bodies: What its `get_attr` nodes name, by their target.
        account: Takes what is removed.
    """
    effects = Effects()
    named = {node: bodies[str(node.target)] for node in graph.find_nodes(op="get_attr")}
    for node in reversed(graph.nodes):
        if node.users or node.op not in ("call_function", "get_attr"):
            continue
        if node.op == "get_attr" or not effects.has(node, named):
            graph.erase_node(node)
            account.remove(node)


def assemble(parts: Parts) -> ExportedProgram:
    """Make the exported program. Its state is the very tensors of the hybrid."""
    signature = _signature(parts)
    call = ModuleCallSignature(
        inputs=[],  # torch leaves both empty for the whole program; what is listed goes stale when nodes are renamed
        outputs=[],
        in_spec=parts.in_spec,
        out_spec=parts.out_spec,
        forward_arg_names=list(parts.names),
    )
    in_state_dict = {spec.target for spec in signature.input_specs if _is_persistent(spec)}
    state = {entry.name: entry.value for entry, _ in parts.lifted}
    return ExportedProgram(
        root=dict(parts.bodies),
        graph=parts.graph,
        graph_signature=signature,
        state_dict={name: value for name, value in state.items() if name in in_state_dict},
        range_constraints=parts.ranges,
        module_call_graph=[ModuleCallEntry(fqn="", signature=call)],
        example_inputs=parts.examples,
        constants={name: value for name, value in state.items() if name not in in_state_dict},
        verifiers=verifiers_for(writes_in_place=parts.mutations.in_place),
    )


def _is_persistent(spec: InputSpec) -> bool:
    return spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and bool(spec.persistent))


def _signature(parts: Parts) -> ExportGraphSignature:
    written = set(parts.mutations.written)
    inputs = [_state_spec(entry, node, is_written=node in written) for entry, node in parts.lifted]
    inputs += [InputSpec(InputKind.USER_INPUT, argument(node), None) for node in parts.inputs]
    specs = {spec.arg.name: spec for spec in inputs}
    outputs = []
    for placeholder, value in parts.mutations.values.items():
        spec = specs[placeholder.name]
        target = placeholder.name if spec.kind is InputKind.USER_INPUT else spec.target
        outputs.append(OutputSpec(_MUTATION_KINDS[spec.kind], TensorArgument(value.name), target))
    outputs += [OutputSpec(OutputKind.USER_OUTPUT, argument(leaf), None) for leaf in parts.outputs]
    return ExportGraphSignature(inputs, outputs)


def _state_spec(entry: StateEntry, node: Node, *, is_written: bool) -> InputSpec:
    kind, persistent = entry.kind, entry.persistent
    if kind is InputKind.CONSTANT_TENSOR and is_written:
        kind, persistent = InputKind.BUFFER, False
    return InputSpec(kind, argument(node), entry.name, persistent if kind is InputKind.BUFFER else None)


def argument(leaf: Any) -> ArgumentSpec:
    """How a signature names an input or output: by its node, or by its value when it is a constant.

    Raises:
        ConventionError: The leaf is of a kind that a program cannot return.
    """
    if not isinstance(leaf, Node):
        if leaf is None or isinstance(leaf, (int, float, bool, str)):
            return ConstantArgument(name="", value=leaf)
        raise ConventionError(
            "the program's outputs",
            found=f"a {type(leaf).__name__}",
            expected="tensors, numbers, strings, None, and containers of them",
            fix="Return only these.",
        )
    described = leaf.meta["val"]
    if isinstance(described, torch.Tensor):
        return TensorArgument(leaf.name)
    if isinstance(described, CustomObjArgument):
        return described
    for kind, spec in (
        (torch.SymInt, SymIntArgument),
        (torch.SymFloat, SymFloatArgument),
        (torch.SymBool, SymBoolArgument),
    ):
        if isinstance(described, kind):
            return spec(leaf.name)
    return ConstantArgument(name=leaf.name, value=described)
