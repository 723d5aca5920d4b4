"""The boundary of a program: what it takes and how it gives what it returns, as a program that computes nothing."""

from __future__ import annotations

import torch
from torch.export import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    OutputKind,
    OutputSpec,
)
from torch.fx import Graph, GraphModule, Node

from intarsia._torch import verifiers_for
from intarsia.errors import ConventionError
from intarsia.formats.pte.sizes import symbols_of


def boundary_of(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """A program with the inputs, ranges and structures of another, which returns None in each place.

    Raises:
        ConventionError: The program does not tell its calling convention.
    """
    call = program.module_call_graph[0].signature
    if call is None:
        raise ConventionError(
            "exported program",
            found="no calling convention",
            expected="one",
            fix="Export the model with torch.export or intarsia.",
        )
    graph = Graph()
    inputs = []
    for node, spec in zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            keep_name(graph.node_copy(node), node)
            inputs.append(spec)
    count = sum(spec.kind is OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs)
    graph.output((None,) * count)
    sizes = {size for node in graph.nodes for size in symbols_of(node.meta.get("val"))}
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, ConstantArgument("", None), None) for _ in range(count)]
    signature = ModuleCallSignature([], [], call.in_spec, call.out_spec, call.forward_arg_names)
    return torch.export.ExportedProgram(
        root=GraphModule({}, graph),
        graph=graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict={},
        range_constraints={size: bounds for size, bounds in program.range_constraints.items() if size in sizes},
        module_call_graph=[ModuleCallEntry(fqn="", signature=signature)],
        constants={},
        verifiers=verifiers_for(writes_in_place=False),
    )


def keep_name(copy: Node, node: Node) -> None:
    """Give the copy of a placeholder its name, which a graph changes where Python has a function of that name."""
    copy.name = copy.target = node.name
