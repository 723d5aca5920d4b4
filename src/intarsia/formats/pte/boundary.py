"""The boundary of a program: what it takes and how it gives what it returns, as a program that computes nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    OutputKind,
    OutputSpec,
)
from torch.fx import Graph, GraphModule

from intarsia._torch import verifiers_for
from intarsia.errors import ConventionError
from intarsia.formats.pte.stand_ins import keep_name


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
    sizes = {symbol for node in graph.nodes for symbol in _symbols(node.meta.get("val"))}
    count = sum(spec.kind is OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs)
    graph.output((None,) * count)
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


def _symbols(value: Any) -> set[Any]:
    """Symbols in an input: a tensor's sizes, or a number."""
    numbers = value.shape if isinstance(value, torch.Tensor) else (value,)
    return set().union(*(number.node.expr.free_symbols for number in numbers if isinstance(number, torch.SymInt)))
